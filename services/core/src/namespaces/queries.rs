//! Queries of a namespaces shard.

use std::ops::Bound;

use holdfast_primitives::page;

use super::NamespacesState;
use crate::{AccountId, CommandError, Limits, Query, Response};

impl NamespacesState {
    /// Returns `None` for queries of other applications.
    pub(crate) fn query(&self, query: &Query) -> Option<Result<Response, CommandError>> {
        Some(match query {
            Query::Namespace { account, name } => {
                self.namespace(*account, name).map(|namespace| Response::of_namespace(namespace.clone()))
            }
            Query::Namespaces { account, after, limit } => self.page_of_namespaces(*account, after.as_deref(), *limit),
            _ => return None,
        })
    }

    pub(crate) fn limits_of(&self, account: AccountId) -> Option<&Limits> {
        self.accounts.get(&account).map(|record| &record.limits)
    }

    fn page_of_namespaces(
        &self,
        account: AccountId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Response, CommandError> {
        let record = self.accounts.get(&account).ok_or(CommandError::AccountNotFound(account))?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = record.namespaces.range::<str, _>((start, Bound::Unbounded));
        let (namespaces, more) = page::collect(rows, limit, |(_, namespace)| namespace.clone());
        Ok(Response::of_namespaces(namespaces, more))
    }
}
