//! What can be asked of a namespaces shard.

use std::ops::Bound;

use super::NamespacesCore;
use crate::{AccountId, Answer, Query, Refusal, page};

impl NamespacesCore {
    /// Nothing for queries of other applications.
    pub(crate) fn query(&self, query: &Query) -> Option<Result<Answer, Refusal>> {
        Some(match query {
            Query::Namespace { account, name } => {
                self.namespace(*account, name).map(|namespace| Answer::Namespace(namespace.clone()))
            }
            Query::Namespaces { account, after, limit } => self.page_of_namespaces(*account, after.as_deref(), *limit),
            _ => return None,
        })
    }

    fn page_of_namespaces(&self, account: AccountId, after: Option<&str>, limit: u32) -> Result<Answer, Refusal> {
        let record = self.accounts.get(&account).ok_or(Refusal::AccountNotFound(account))?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = record.namespaces.range::<str, _>((start, Bound::Unbounded));
        let (namespaces, more) = page::cut(rows, limit, |(_, namespace)| namespace.clone());
        Ok(Answer::Namespaces { namespaces, more })
    }
}
