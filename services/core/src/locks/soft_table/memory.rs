//! What the tables take of the leader's memory, which commands would take more, and what can be spared.

use super::request::table_command;
use super::{SoftTable, asks};
use crate::locks::Charge;
use crate::shard::ShardState;
use crate::{AccountId, LocksCommand};

impl SoftTable {
    /// Returns the charges of the accounts whose charge changed since the last call.
    pub fn take_changed_charges(&mut self) -> Vec<Charge> {
        self.core.take_changed_charges()
    }

    /// Evicts all but the latest events, of one account or of all, to leave their room to locks.
    pub fn evict_events(&mut self, of: Option<AccountId>) {
        let slots = match of {
            Some(account) => self.core.slots_of(account),
            None => self.core.slots.values().copied().collect(),
        };
        self.core.evict_from(slots, u64::MAX);
        self.core.update_charges();
    }

    /// Returns whether a command for these tables would create state in them. Repeats and releases do not.
    pub fn creates_state(&self, log: &ShardState, command: &LocksCommand) -> bool {
        if Self::adds_request(log, command) {
            return true;
        }
        let session = log.locks().filter(|_| asks(command)).and_then(|log| log.table_session(command).ok());
        let Some((namespace, _, session)) = session else { return false };
        let number = session.facts.number;
        if self.is_unreported(namespace, number) {
            return false;
        }
        if !self.core.sessions.contains_key(&number) {
            // It has never asked for anything.
            return true;
        }
        let transition_ms = namespace.table_log.transition_ms(number).unwrap_or_default();
        table_command(command, transition_ms).is_ok_and(|command| self.core.creates_state(&command))
    }
}
