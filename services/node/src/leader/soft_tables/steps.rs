//! The work of lock tables that is done in steps, between which other calls use the shard, and the memory that it
//! leaves to free.

use holdfast_core::locks::{SoftTable, TableGarbage};
use holdfast_core::shard::ShardState;
use holdfast_core::{EntryContext, Forfeit, JobState, Reset, Revision, Rules};
use metrics::histogram;

use super::SoftTables;

/// Memory to free in the background: it may be large.
#[derive(Debug)]
pub(crate) enum Garbage {
    /// Items removed from the tables of an epoch.
    OfTable { _freed: TableGarbage },
    /// The tables of an earlier epoch.
    Earlier { _freed: Box<SoftTable> },
}

impl SoftTables {
    /// Takes the memory to free.
    pub(in crate::leader) fn take_garbage(&mut self) -> Vec<Garbage> {
        let of_table = self.table.as_mut().map(SoftTable::take_garbage).filter(|freed| !freed.is_empty());
        self.garbage.extend(of_table.map(|freed| Garbage::OfTable { _freed: freed }));
        std::mem::take(&mut self.garbage)
    }

    /// Ends the tables. Returns the memory to free.
    pub(in crate::leader) fn end(&mut self) -> Vec<Garbage> {
        self.garbage.extend(self.table.take().map(|freed| Garbage::Earlier { _freed: Box::new(freed) }));
        std::mem::take(&mut self.garbage)
    }

    /// Returns the progress of what a reply of the tables awaits.
    pub(in crate::leader) fn job_state(&self, core: &ShardState, began: Revision) -> JobState {
        self.current(core).map_or(JobState::Unknown, |table| table.job_state(began))
    }

    /// Follows a reset of the log.
    pub(in crate::leader) fn reset(&mut self, core: &ShardState, context: &EntryContext, reset: &Reset) {
        if let Some(table) = &mut self.table {
            table.reset(core, context, reset);
        }
        self.record_rebuilt();
    }

    /// Follows a lock that the log has opened by force.
    pub(in crate::leader) fn forfeit(&mut self, core: &ShardState, context: &EntryContext, forfeit: &Forfeit) {
        if let Some(table) = &mut self.table {
            table.forfeit(core, context, forfeit);
        }
        self.record_rebuilt();
    }

    /// Applies the ends recorded in the log, a slice of them, before any grant. After the last of them, copies the
    /// events of the log.
    pub(in crate::leader) fn settle(&mut self, core: &ShardState, context: &EntryContext) {
        if let Some(table) = &mut self.table {
            let was_behind = table.is_behind();
            // Its effect may still be to come: a session that has ended gives up its holds before its event is copied.
            table.catch_up(core);
            if was_behind {
                table.advance(context);
            }
            table.copy_events(core);
        }
        self.record_rebuilt();
    }

    /// Does a step of the work that is due at this clock. Returns when more is due.
    pub(in crate::leader) fn advance(&mut self, core: &ShardState, now_ms: u64, rules: Rules) -> Option<u64> {
        let context = self.context(now_ms, rules);
        let table = self.table.as_mut()?;
        if self.rebuilding.is_some() {
            table.rebuild_all(core, &context);
            let since = self.rebuilding.take_if(|_| !table.is_rebuilding(core));
            since.into_iter().for_each(|since| {
                histogram!("holdfast_table_rebuild_seconds").record(since.elapsed().as_secs_f64());
            });
        }
        if table.next_deadline_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            table.catch_up(core);
            table.advance(&context);
        }
        table.copy_events(core);
        self.record_rebuilt();
        let table = self.table.as_ref()?;
        self.scheduled_ms = table.next_deadline_ms();
        self.scheduled_ms
    }
}

#[cfg(test)]
mod tests;
