//! Creating a namespace.

use super::{NamespacesCore, check_description};
use crate::shard_common::CommandResult;
use crate::{AccountId, Answer, Context, Incarnation, Namespace, Refusal, RequestId};

impl NamespacesCore {
    pub(super) fn create(
        &mut self,
        context: &Context,
        request_id: RequestId,
        account: AccountId,
        name: &str,
        description: &str,
    ) -> CommandResult {
        if let Some(first) = self.remembered.get(&request_id).filter(|first| first.account == account) {
            let answer = Answer::Namespace(first.clone());
            // Everything that is pending for the account, so that the open of this one is among it.
            return Ok((answer, self.state.outbox.await_all_of(account)));
        }
        let record = self.accounts.get(&account).ok_or(Refusal::AccountNotFound(account))?;
        if record.namespaces.contains_key(name) {
            return Err(Refusal::NamespaceTaken(name.to_owned()));
        }
        let max = record.max_number_of_namespaces;
        if record.namespaces.len() as u64 >= u64::from(max) {
            return Err(Refusal::QuotaExceeded {
                what: "the number of namespaces of an account".into(),
                max: u64::from(max),
                hint: "delete one that is no longer used or have the limit raised".into(),
            });
        }
        check_description(description, &record.limits)?;
        self.state.outbox.check_room(self.state.bounds.pending_messages)?;
        let limits = record.limits.clone();
        let namespace = Namespace {
            incarnation: Incarnation(self.state.next_revision()),
            account,
            name: name.to_owned(),
            description: description.to_owned(),
            created_at_ms: context.wall_ms,
            updated_at_ms: context.wall_ms,
        };
        let record = self.accounts.get_mut(&account).ok_or(Refusal::AccountNotFound(account))?;
        record.namespaces.insert(namespace.name.clone(), namespace.clone());
        self.remembered.remember(request_id, namespace.clone(), self.state.bounds.remembered_creations);
        let number = self.tell_open(&namespace, &limits);
        Ok((Answer::Namespace(namespace), Some(number)))
    }
}
