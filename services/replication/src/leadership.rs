//! Who leads, and by which clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_plant::{Plant, is_planted};
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::ShardClock;
use crate::driver::Established;
use crate::error::NotLeader;
use crate::group::Raft;
use crate::machine::Machine;

/// That this replica leads, in which term, and by which clock. Exists only once an entry of that term is applied.
#[derive(Debug, Clone, Copy)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    /// The shard's clock while it leads.
    pub clock: ShardClock,
}

/// The furthest that a leader's running clock was heard to be, so that a clock does not fall back to the last entry
/// when the leader changes after a quiet time.
///
/// Clocks of different leaders can't be compared: one that was cut off ran on while the shard stood still, and going
/// on from it would cut short the leases that its successor granted meanwhile. So only the latest term counts.
#[derive(Clone)]
pub(crate) struct HeardClock(Arc<Mutex<Heard>>);

struct Heard {
    /// Term and clock.
    furthest: (u64, u64),
    last: Instant,
}

impl HeardClock {
    /// Nothing was heard yet.
    pub(crate) fn silent() -> Self {
        Self(Arc::new(Mutex::new(Heard { furthest: (0, 0), last: Instant::now() })))
    }

    /// The leader of a term was heard running at that clock.
    pub(crate) fn hear(&self, term: u64, clock_ms: u64) {
        let mut heard = self.0.lock();
        heard.furthest = heard.furthest.max((term, clock_ms));
        heard.last = Instant::now();
    }

    /// Whether a leader was heard within that time, or the replica began within it.
    pub(crate) fn is_within(&self, time: Duration) -> bool {
        self.0.lock().last.elapsed() < time
    }

    /// What was heard, unless a later leader than that one wrote entries: theirs is the clock to go on from then.
    fn since(&self, last_entry_term: u64) -> Option<u64> {
        let (term, clock_ms) = self.0.lock().furthest;
        (term >= last_entry_term).then_some(clock_ms)
    }
}

/// Where a new leader's clock starts: at the applied clock, or further if the leader before was heard running further.
pub(crate) struct ClockBase {
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) heard: HeardClock,
}

impl ClockBase {
    fn start(&self, established: Established) -> ShardClock {
        let heard = self.heard.since(established.term_before).unwrap_or(0);
        ShardClock::start(self.machine.clock_ms().max(heard))
    }
}

/// Publishes leadership once an entry of the own term is applied, and withdraws it as soon as openraft does or as it
/// is given away: terms up to `given_away` are over for this replica.
pub(crate) async fn follow(
    raft: Raft,
    base: ClockBase,
    mut established: watch::Receiver<Established>,
    mut given_away: watch::Receiver<u64>,
    leadership: watch::Sender<Option<Leadership>>,
) {
    let mut metrics = raft.server_metrics();
    // What is followed keeps openraft's handle no longer than openraft itself runs.
    drop(raft);
    let published = Published { base, leadership };
    loop {
        let leading = {
            let now = metrics.borrow_and_update();
            let term = now.vote.leader_id.term;
            (now.state.is_leader() && now.current_leader == Some(now.id)).then_some(term)
        };
        let applied = *established.borrow_and_update();
        let given = *given_away.borrow_and_update();
        let term = leading.filter(|term| *term == applied.term && *term > given);
        planted_delay(&published.leadership, term).await;
        published.set(term, applied);
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() { break },
            changed = established.changed() => if changed.is_err() { break },
            changed = given_away.changed() => if changed.is_err() { break },
        }
    }
}

/// What is told of a replica's leadership. Taken back when whoever tells it ends, in whatever way: a leader that nobody
/// withdraws would answer for as long as its lease seems to run.
struct Published {
    base: ClockBase,
    leadership: watch::Sender<Option<Leadership>>,
}

impl Published {
    fn set(&self, term: Option<u64>, applied: Established) {
        let Self { base, leadership } = self;
        leadership.send_if_modified(|current| {
            if current.map(|leads| leads.term) == term {
                return false;
            }
            if let Some(leads) = current {
                base.heard.hear(leads.term, leads.clock.now_ms());
            }
            base.machine.lead(term);
            *current = term.map(|term| Leadership { term, clock: base.start(applied) });
            true
        });
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.leadership.send_replace(None);
        self.base.machine.lead(None);
    }
}

/// Where that fault is planted, a leadership is withdrawn some time after it has ended.
async fn planted_delay(published: &watch::Sender<Option<Leadership>>, term: Option<u64>) {
    let withdraws = published.borrow().is_some() && term.is_none();
    if withdraws && is_planted(Plant::LeadershipWithdrawnLate) {
        let drawn = getrandom::u32().unwrap_or_default() % 40;
        tokio::time::sleep(Duration::from_millis(10 + u64::from(drawn))).await;
    }
}

/// Lets a restarted replica vote and stand for election once the lease that it may have granted has run out: the longest
/// that is known by then.
pub(crate) async fn vote_after(raft: Raft, mut longest: watch::Receiver<Duration>, votes: Arc<AtomicBool>) {
    let started = Instant::now();
    loop {
        let lease = *longest.borrow_and_update();
        tokio::select! {
            () = tokio::time::sleep_until(started + lease) => break,
            // The node is going away.
            changed = longest.changed() => if changed.is_err() { return },
        }
    }
    votes.store(true, Ordering::Relaxed);
    raft.runtime_config().elect(true);
}

/// Whether a replica holds back after a start: openraft forgets the lease that this replica granted before it stopped.
/// A replica that never ran has granted none, and one that is alone has nobody to grant one to.
pub(crate) fn holds_back(was_pristine: bool, members: usize) -> bool {
    !was_pristine && members > 1 && !is_planted(Plant::EarlyVote)
}

/// The leader that a replica knows of.
pub(crate) fn known_leader(raft: &Raft) -> NotLeader {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    // A replica that leads without having applied an entry of its term, or that has just lost its lease, is no leader
    // to send anybody to.
    let other = metrics.current_leader.filter(|leader| leader != raft.node_id());
    NotLeader { leader: other, term: if other.is_some() { metrics.current_term } else { 0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_an_earlier_leader_is_forgotten_once_a_later_one_was_heard() {
        let heard = HeardClock::silent();
        heard.hear(4, 9_000);
        heard.hear(5, 7_000);
        heard.hear(4, 9_500);
        assert_eq!(heard.since(5), Some(7_000));
    }

    #[test]
    fn a_clock_of_an_earlier_leader_does_not_count_after_entries_of_a_later_one() {
        let heard = HeardClock::silent();
        heard.hear(4, 9_000);
        assert_eq!(heard.since(4), Some(9_000));
        assert_eq!(heard.since(5), None);
    }
}
