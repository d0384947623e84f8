//! What the lock tables do in steps, between which others have the shard, and what they leave to be freed.

use holdfast_core::locks::{SoftTable, TableGarbage};
use holdfast_core::shard::ShardState;
use holdfast_core::{EntryContext, Forfeit, JobState, Reset, Revision, Rules};
use metrics::histogram;

use super::SoftTables;

/// What is to be freed where nobody waits: it may be much.
#[derive(Debug)]
pub(crate) enum Garbage {
    /// What is gone from the tables of an epoch.
    OfTable { _freed: TableGarbage },
    /// The tables of an earlier epoch.
    Earlier { _freed: Box<SoftTable> },
}

impl SoftTables {
    /// Takes what is to be freed.
    pub(in crate::leader) fn take_garbage(&mut self) -> Vec<Garbage> {
        let of_table = self.table.as_mut().map(SoftTable::take_garbage).filter(|freed| !freed.is_empty());
        self.garbage.extend(of_table.map(|freed| Garbage::OfTable { _freed: freed }));
        std::mem::take(&mut self.garbage)
    }

    /// Ends the tables. Returns what is to be freed.
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
        self.note_rebuilt();
    }

    /// Follows a lock that the log has opened by force.
    pub(in crate::leader) fn forfeit(&mut self, core: &ShardState, context: &EntryContext, forfeit: &Forfeit) {
        if let Some(table) = &mut self.table {
            table.forfeit(core, context, forfeit);
        }
        self.note_rebuilt();
    }

    /// Ends what has ended in the log, a slice of it, before anything is granted.
    pub(in crate::leader) fn settle(&mut self, core: &ShardState, context: &EntryContext) {
        if let Some(table) = self.table.as_mut().filter(|table| table.is_behind()) {
            table.catch_up(core);
            table.advance(context);
            self.note_rebuilt();
        }
    }

    /// Does a step of what is due at this clock. Returns when more is due.
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
        self.note_rebuilt();
        let table = self.table.as_ref()?;
        self.scheduled_ms = table.next_deadline_ms();
        self.scheduled_ms
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{
        Application, Bounds, LocksCommand, Metadata, Mode, Path, ReportedHold, ReportedRequest, Response,
        SessionCommand, TableCommand, TableReport,
    };

    use super::super::tests::{acquire, core, outcome, with_namespace, write};
    use super::*;
    use crate::testing::namespace;

    /// More than two steps enter.
    const LOCKS: u64 = 1_300;

    /// Steps of one claim each enter so many.
    const SMALL_LOCKS: u64 = 5;

    /// A shard whose steps enter one claim each.
    fn core_of_small_steps() -> ShardState {
        let bounds = Bounds { ends_per_slice: 1, ..Bounds::of(Rules::TWO) };
        with_namespace(ShardState::with_bounds(Application::Locks, "locks_00", bounds))
    }

    fn report_of(core: &ShardState, session: &SessionCommand, locks: u64) -> TableReport {
        TableReport {
            namespace: namespace(),
            session: session.session,
            connection_epoch: session.message.epoch,
            seq: 0,
            table_epoch: core.table_epoch(),
            part: 1,
            parts: 1,
            granted: (0..locks).map(request).collect(),
            pending: Vec::new(),
        }
    }

    fn request(number: u64) -> ReportedRequest {
        let path = Path::flat(format!("l{number}"));
        ReportedRequest {
            request_id: format!("r{number}"),
            holder: None,
            metadata: Metadata::new(),
            claimed: 1,
            claims: vec![ReportedHold { path, mode: Mode::Write, fencing_token: number + 1 }],
        }
    }

    #[test]
    fn a_large_table_is_entered_in_steps_and_who_waits_is_woken_after_the_last() {
        let (mut core, mut tables) = (core(), SoftTables::default());
        write(&mut tables, &mut core, 7);
        let LocksCommand::Session(earlier) = acquire(&mut core, 1) else { panic!("it is of a session") };
        tables.end();
        write(&mut tables, &mut core, 8);
        let later = acquire(&mut core, 2);
        assert!(tables.take_wakes_all() && tables.must_wait(&core, &later));
        let report = LocksCommand::Table(TableCommand::Report(report_of(&core, &earlier, LOCKS)));
        assert_eq!(outcome(&mut tables, &core, &report), Ok(Response::Done));
        assert!(tables.needs_wakeup(), "a task goes on with it");
        for goes_on in [true, false] {
            assert!(tables.must_wait(&core, &later) && !tables.take_wakes_all());
            let due_ms = tables.advance(&core, 1_000, Rules::TWO);
            assert_eq!(due_ms.is_some_and(|due_ms| due_ms <= 1_000), goes_on);
        }
        assert!(!tables.must_wait(&core, &later) && tables.take_wakes_all());
        assert!(matches!(outcome(&mut tables, &core, &later), Ok(Response::Granted { .. })));
    }

    #[test]
    fn steps_of_one_claim_each_go_on_by_themselves_and_wake_who_waits_once() {
        let (mut core, mut tables) = (core_of_small_steps(), SoftTables::default());
        write(&mut tables, &mut core, 7);
        let LocksCommand::Session(earlier) = acquire(&mut core, 1) else { panic!("it is of a session") };
        tables.end();
        write(&mut tables, &mut core, 8);
        assert!(tables.take_wakes_all());
        let report = LocksCommand::Table(TableCommand::Report(report_of(&core, &earlier, SMALL_LOCKS)));
        assert_eq!(outcome(&mut tables, &core, &report), Ok(Response::Done));
        let (mut steps, mut wakeups) = (1, 0);
        loop {
            // The call did the first step. Until a task has gone on, it is to be woken.
            assert!(tables.needs_wakeup() || steps > 1, "a task goes on with it");
            let due_ms = tables.advance(&core, 1_000, Rules::TWO);
            (steps, wakeups) = (steps + 1, wakeups + u64::from(tables.take_wakes_all()));
            assert!(!tables.needs_wakeup(), "the task knows when it goes on");
            if due_ms.is_none_or(|due_ms| due_ms > 1_000) {
                break;
            }
            assert_eq!(wakeups, 0, "after step {steps} of {SMALL_LOCKS}");
        }
        assert_eq!((steps, wakeups), (SMALL_LOCKS, 1));
    }
}
