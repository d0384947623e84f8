//! Changes an account.

use super::AccountsState;
use crate::shard_common::CommandResult;
use crate::{AccountChange, AccountId, AccountStatus, EntryContext, Limits, Response};

/// The new values; absent fields stay.
pub(super) struct AccountUpdate<'a> {
    pub(super) full_name: &'a Option<String>,
    pub(super) status: &'a Option<AccountStatus>,
    pub(super) max_number_of_namespaces: &'a Option<u32>,
    pub(super) limits: &'a Option<Limits>,
}

impl AccountsState {
    /// A change to the current values changes nothing, so a repeat has no effect of its own; but its reply awaits the
    /// message of the first call.
    pub(super) fn update(
        &mut self,
        context: &EntryContext,
        id: AccountId,
        changed: &AccountUpdate<'_>,
    ) -> CommandResult {
        let before = self.account(id)?;
        let mut account = before.clone();
        if let Some(full_name) = changed.full_name {
            account.full_name.clone_from(full_name);
        }
        if let Some(status) = changed.status {
            account.status = *status;
        }
        if let Some(max) = changed.max_number_of_namespaces {
            account.max_number_of_namespaces = *max;
        }
        if let Some(limits) = changed.limits {
            account.limits = limits.clone();
        }
        let to_tell =
            account.max_number_of_namespaces != before.max_number_of_namespaces || account.limits != before.limits;
        let is_changed = account != *before;
        if to_tell {
            self.common.check_outbox(id)?;
            self.enqueue_open(&account);
        }
        if is_changed {
            account.revision = self.record_change(AccountChange::Account(id));
            account.updated_at_ms = context.wall_ms;
            self.accounts.insert(id, account.clone());
        }
        let concerns_namespaces = changed.max_number_of_namespaces.is_some() || changed.limits.is_some();
        let awaits = if concerns_namespaces { self.common.outbox.last_of(id) } else { None };
        Ok((Response::Account(account), awaits))
    }
}
