//! Resets: the log ends sessions, and the table ends the holds of sessions that ended earlier.

use super::SoftTable;
use crate::shard::ShardState;
use crate::{CommandError, EntryContext, LocksCommand, Reset};

/// Resets that wait for earlier ones. The transitions that further ones would end run to their ends.
const MAX_RESETS: usize = 16;

impl SoftTable {
    /// Follows a reset in the log: ends the holds of ended sessions that it covers, which are in transition. The holds
    /// of open sessions end with these, in the order of the log.
    pub fn reset(&mut self, log: &ShardState, context: &EntryContext, reset: &Reset) {
        let Some(log) = log.locks().filter(|log| self.check_epoch(log).is_ok()) else { return };
        let Ok(of_log) = log.find(&reset.namespace) else { return };
        if self.core.slot_of(&reset.namespace).is_none() {
            return;
        }
        self.apply_ends(log);
        let open = of_log.sessions.keys().map(|id| id.to_string());
        let live_owners = reset.live_owners.iter().cloned().chain(open).collect();
        // Numbers of sessions that open before it begins here are higher.
        let next = log.common.revision.saturating_add(1);
        let before_revision = Some(reset.before_revision.map_or(next, |before| before.min(next)));
        if self.resets.len() < MAX_RESETS {
            self.resets.push_back(Reset { live_owners, before_revision, ..reset.clone() });
        }
        self.advance(context);
    }

    /// Begins the resets that can begin: one at a time in a namespace. Later steps continue each reset, and paths that
    /// it has not reached yet are not granted.
    pub(super) fn begin_resets(&mut self, context: &EntryContext) {
        for _ in 0..self.resets.len() {
            let Some(reset) = self.resets.pop_front() else { return };
            let command = LocksCommand::Reset(reset);
            if matches!(self.core.apply(context, &command), Err(CommandError::Busy(_)))
                && let LocksCommand::Reset(reset) = command
            {
                self.resets.push_back(reset);
            }
        }
    }
}
