//! Resets: the log ends sessions, and the table what it has of those that ended before.

use super::SoftTable;
use crate::shard::ShardState;
use crate::{EntryContext, LocksCommand, Reset, Response};

impl SoftTable {
    /// Follows a reset that the log has just done: ends the holds of ended sessions that it covers, which are in
    /// transition. Those of open ones end with their sessions, in the order of the log. Without revisions the
    /// transitions run to their ends.
    pub fn reset(&mut self, log: &ShardState, context: &EntryContext, reset: &Reset) {
        let Some(log) = log.locks().filter(|log| self.check_epoch(log).is_ok()) else { return };
        let Ok(of_log) = log.find(&reset.namespace) else { return };
        if self.core.slot_of(&reset.namespace).is_none() {
            return;
        }
        self.hear_of_ends(log);
        self.advance(context);
        if self.check_revisions().is_err() {
            return;
        }
        let open = of_log.sessions.keys().map(|id| id.to_string());
        let live_owners = reset.live_owners.iter().cloned().chain(open).collect();
        let reset = LocksCommand::Reset(Reset { live_owners, ..reset.clone() });
        let applied = self.core.apply(context, &reset);
        self.collect_effects();
        if let Ok((_, Some(began))) = applied {
            self.finish_job(context, began, Response::Done);
        }
    }
}
