//! Leadership of a replica and its clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_mutations::{Mutation, is_enabled};
use holdfast_supervise::TaskSet;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::clock::ShardClock;
use crate::error::NotLeader;
use crate::rules::GroupState;
use crate::state_machine::StateMachine;
use crate::state_machine_adapter::{Raft, TermStart};
use crate::types::TypeConfig;

/// How often the machine is prepared for a leadership because that took several steps, in which its state may have
/// changed. After that the leadership begins with whatever is prepared.
const MAX_PREPARATIONS: usize = 3;

/// Leadership of this replica: its term and its clock. Exists only once an entry of the term is applied.
#[derive(Debug, Clone, Copy)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    /// The shard's clock while it leads.
    pub clock: ShardClock,
}

/// The latest running clock observed from a leader. With it the clock does not fall back to the last entry when the
/// leader changes after an idle period.
///
/// Clocks of different leaders can't be compared: the clock of a leader that was cut off kept running while the shard
/// stood still. Continuing from it would shorten the leases that its successor granted meanwhile. So only the latest
/// term counts.
#[derive(Clone)]
pub(crate) struct ObservedClock(Arc<Mutex<Observation>>);

struct Observation {
    /// Term and clock.
    latest: (u64, u64),
    observed_at: Instant,
}

impl ObservedClock {
    /// Creates an empty observation.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Observation { latest: (0, 0), observed_at: Instant::now() })))
    }

    /// Records the running clock of a term's leader.
    pub(crate) fn observe(&self, term: u64, clock_ms: u64) {
        let mut heard = self.0.lock();
        heard.latest = heard.latest.max((term, clock_ms));
        heard.observed_at = Instant::now();
    }

    /// Returns true if a leader was observed, or the replica started, within this time.
    pub(crate) fn is_recent(&self, time: Duration) -> bool {
        self.0.lock().observed_at.elapsed() < time
    }

    /// Returns the observed clock, unless a later leader wrote entries: then the clock continues from those.
    fn clock_since(&self, last_entry_term: u64) -> Option<u64> {
        let (term, clock_ms) = self.0.lock().latest;
        (term >= last_entry_term).then_some(clock_ms)
    }
}

/// The process whose connection carried the latest term's appends: the leader's run. A restarted replica does not know
/// it until its leader appends again, and never if the leader's release does not name its run.
#[derive(Default)]
pub(crate) struct LeaderRun(Mutex<(u64, u64)>);

impl LeaderRun {
    /// Records that an append of this term from this run was accepted.
    pub(crate) fn observe(&self, term: u64, run: u64) {
        let mut latest = self.0.lock();
        if term >= latest.0 {
            *latest = (term, run);
        }
    }

    /// Returns true if this run is known to lead in this term.
    pub(crate) fn leads(&self, term: u64, run: u64) -> bool {
        run != 0 && *self.0.lock() == (term, run)
    }
}

/// The floor of a new leader's clock: the applied clock, or the previous leader's observed clock if that is later.
pub(crate) struct ClockFloor {
    pub(crate) machine: Arc<dyn StateMachine>,
    pub(crate) observed: ObservedClock,
}

impl ClockFloor {
    fn start(&self, start: TermStart) -> ShardClock {
        let observed_ms = self.observed.clock_since(start.previous_term).unwrap_or(0);
        ShardClock::start(self.machine.clock_ms().max(observed_ms))
    }
}

/// Publishes leadership once an entry of the own term is applied and the group has rules, and withdraws it when
/// openraft does or when it is relinquished: terms up to `relinquished_term` are over for this replica.
pub(crate) async fn watch_leadership(
    raft: Raft,
    base: ClockFloor,
    mut term_start: watch::Receiver<TermStart>,
    mut group_state: watch::Receiver<GroupState>,
    mut relinquished_term: watch::Receiver<u64>,
    leadership: watch::Sender<Option<Leadership>>,
) {
    let mut metrics = raft.server_metrics();
    // The task holds openraft's handle no longer than openraft itself runs.
    drop(raft);
    let published = LeadershipPublisher { base, leadership };
    let mut preparations = 0;
    loop {
        let leading = leading_term(&metrics.borrow_and_update());
        let start = *term_start.borrow_and_update();
        let has_rules = group_state.borrow_and_update().rules.is_some();
        let relinquished = *relinquished_term.borrow_and_update();
        let has_all = |term: u64| term == start.term || is_enabled(Mutation::LeadUndrained);
        let term = leading.filter(|term| has_all(*term) && *term > relinquished && has_rules);
        delay_if_mutated(&published.leadership, term).await;
        if let Some(term) = term {
            published.withdraw_other(term, start);
            let is_current =
                |term: u64| leading_term(&metrics.borrow_watched()) == Some(term) && *relinquished_term.borrow() < term;
            if preparations < MAX_PREPARATIONS && published.prepare(term, is_current).await {
                // Much may have changed meanwhile.
                preparations += 1;
                continue;
            }
        }
        preparations = 0;
        published.set(term, start);
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() { break },
            changed = term_start.changed() => if changed.is_err() { break },
            changed = group_state.changed() => if changed.is_err() { break },
            changed = relinquished_term.changed() => if changed.is_err() { break },
        }
    }
}

/// Returns the term in which this replica leads, as far as openraft knows.
fn leading_term(now: &RaftServerMetrics<TypeConfig>) -> Option<u64> {
    let term = now.vote.leader_id.term;
    (now.state.is_leader() && now.current_leader == Some(now.id)).then_some(term)
}

/// Publishes a replica's leadership and withdraws it on drop: a leader whose leadership is never withdrawn would answer
/// for as long as its lease seems to run.
struct LeadershipPublisher {
    base: ClockFloor,
    leadership: watch::Sender<Option<Leadership>>,
}

impl LeadershipPublisher {
    /// Withdraws the leadership of an earlier term, so that nobody is served in it while the next one is prepared.
    fn withdraw_other(&self, term: u64, start: TermStart) {
        let is_other = self.leadership.borrow().is_some_and(|leads| leads.term != term);
        if is_other {
            self.set(None, start);
        }
    }

    /// Prepares the machine for a leadership that is to be published, for as long as this replica leads in the term.
    /// Returns true if that took several steps.
    async fn prepare(&self, term: u64, is_current: impl Fn(u64) -> bool) -> bool {
        if self.leadership.borrow().is_some_and(|leads| leads.term == term) {
            return false;
        }
        let mut took_steps = false;
        while !self.base.machine.prepare_leadership(term) {
            took_steps = true;
            yield_now().await;
            if !is_current(term) {
                break;
            }
        }
        took_steps
    }

    fn set(&self, term: Option<u64>, start: TermStart) {
        let Self { base, leadership } = self;
        leadership.send_if_modified(|current| {
            if current.map(|leads| leads.term) == term {
                return false;
            }
            if let Some(leads) = current {
                base.observed.observe(leads.term, leads.clock.now_ms());
            }
            base.machine.on_leadership_change(term);
            *current = term.map(|term| Leadership { term, clock: base.start(start) });
            true
        });
    }
}

impl Drop for LeadershipPublisher {
    fn drop(&mut self) {
        self.leadership.send_replace(None);
        self.base.machine.on_leadership_change(None);
    }
}

/// With the mutation enabled, delays the withdrawal of a leadership.
async fn delay_if_mutated(published: &watch::Sender<Option<Leadership>>, term: Option<u64>) {
    let withdraws = published.borrow().is_some() && term.is_none();
    if withdraws && is_enabled(Mutation::LeadershipWithdrawnLate) {
        let drawn = getrandom::u32().unwrap_or_default() % 40;
        tokio::time::sleep(Duration::from_millis(10 + u64::from(drawn))).await;
    }
}

/// Runs [`enable_voting_after`] in a task.
pub(crate) fn hold_back_votes(
    tasks: &TaskSet,
    raft: &Raft,
    longest: watch::Receiver<Duration>,
    votes: &Arc<AtomicBool>,
) {
    let (raft, votes) = (raft.clone(), Arc::clone(votes));
    tasks.spawn_until_done("vote", move || enable_voting_after(raft.clone(), longest.clone(), Arc::clone(&votes)));
}

/// Lets a restarted replica vote and stand for election once any lease that it may have granted has expired: the
/// longest known by then.
async fn enable_voting_after(raft: Raft, mut longest: watch::Receiver<Duration>, votes: Arc<AtomicBool>) {
    let started = Instant::now();
    loop {
        let lease = *longest.borrow_and_update();
        tokio::select! {
            () = tokio::time::sleep_until(started + lease) => break,
            // The node is shutting down.
            changed = longest.changed() => if changed.is_err() { return },
        }
    }
    votes.store(true, Ordering::Relaxed);
    raft.runtime_config().elect(true);
}

/// Returns true if a replica must not vote after its start: openraft forgets the lease that the replica granted before.
/// A replica that never ran has granted none, and a single replica grants none.
pub(crate) fn needs_election_holdoff(was_pristine: bool, members: usize) -> bool {
    !was_pristine && members > 1 && !is_enabled(Mutation::EarlyVote)
}

/// Returns the leader that a replica knows.
pub(crate) fn known_leader(raft: &Raft) -> NotLeader {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    // A replica that leads without an applied entry of its term, or that just lost its lease, is no redirect target.
    let other = metrics.current_leader.filter(|leader| leader != raft.node_id());
    NotLeader { leader: other, term: if other.is_some() { metrics.current_term } else { 0 } }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use holdfast_storage::SnapshotPart;

    use super::*;
    use crate::state_machine::{
        Applied, ApplyFailure, CommandCost, EntryHeader, FrozenState, ReplyMode, StateMachineError,
    };

    /// A machine that is never prepared, and the terms that it was told.
    #[derive(Default)]
    struct Unprepared(Mutex<Vec<Option<u64>>>);

    impl StateMachine for Unprepared {
        fn apply<'a>(
            &'a self,
            _: EntryHeader,
            _: u32,
            _: &'a [Bytes],
            _: ReplyMode,
        ) -> Result<Applied<'a>, ApplyFailure> {
            Ok(Applied::Done(Vec::new()))
        }

        fn assess(&self, _: u16, _: u32, _: &[u8]) -> Result<CommandCost, StateMachineError> {
            Ok(CommandCost { account: None, kind: 0, units: 0 })
        }

        fn price(&self, _: u32, _: u64, _: u8, min_units: u64) -> u64 {
            min_units
        }

        fn set_rules(&self, _: u16) {}

        fn prepare_leadership(&self, _: u64) -> bool {
            false
        }

        fn on_leadership_change(&self, term: Option<u64>) {
            self.0.lock().push(term);
        }

        fn clock_ms(&self) -> u64 {
            0
        }

        fn freeze(&self, _: &dyn Fn(u32) -> bool) -> Result<FrozenState, StateMachineError> {
            Ok(Vec::new())
        }

        fn restore(&self, _: u64, _: &[SnapshotPart]) -> Result<(), StateMachineError> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_earlier_leadership_ends_before_the_next_one_is_prepared_and_that_stops_with_its_term() {
        let (leadership, published) = watch::channel(None);
        let machine = Arc::new(Unprepared::default());
        let base =
            ClockFloor { machine: Arc::clone(&machine) as Arc<dyn StateMachine>, observed: ObservedClock::new() };
        let publisher = LeadershipPublisher { base, leadership };
        let start = TermStart::default();
        publisher.set(Some(3), start);
        publisher.withdraw_other(3, start);
        assert!(published.borrow().is_some_and(|leads| leads.term == 3));
        publisher.withdraw_other(4, start);
        assert!(published.borrow().is_none());
        let pages = Cell::new(0);
        let is_current = |term: u64| {
            pages.set(pages.get() + 1);
            term == 4 && pages.get() < 5
        };
        assert!(publisher.prepare(4, is_current).await);
        assert_eq!(pages.get(), 5);
        assert_eq!(*machine.0.lock(), [Some(3), None]);
    }

    #[test]
    fn a_clock_of_an_earlier_leader_is_forgotten_once_a_later_one_was_heard() {
        let heard = ObservedClock::new();
        heard.observe(4, 9_000);
        heard.observe(5, 7_000);
        heard.observe(4, 9_500);
        assert_eq!(heard.clock_since(5), Some(7_000));
    }

    #[test]
    fn a_clock_of_an_earlier_leader_does_not_count_after_entries_of_a_later_one() {
        let heard = ObservedClock::new();
        heard.observe(4, 9_000);
        assert_eq!(heard.clock_since(4), Some(9_000));
        assert_eq!(heard.clock_since(5), None);
    }

    #[test]
    fn the_run_of_the_latest_term_leads_and_of_no_other() {
        let latest = LeaderRun::default();
        assert!(!latest.leads(0, 0), "nothing is known of it");
        latest.observe(3, 7);
        latest.observe(2, 9);
        assert!(latest.leads(3, 7) && !latest.leads(2, 9) && !latest.leads(3, 9));
        latest.observe(4, 0);
        assert!(!latest.leads(3, 7) && !latest.leads(4, 0), "its leader's release does not say");
    }
}
