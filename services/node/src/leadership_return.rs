//! Returns leaderships to the preferred leaders, so that no node leads the groups of another for longer than needed.
//!
//! A leadership returns once its preferred leader has been ready for a while. What an operator has moved stays until the
//! process of the preferred leader is another one: a node that was emptied for work on it stays empty until it is
//! restarted. A node that stops moves its leaderships in the same way.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::node::NodeInner;
use crate::replica::Replica;

/// How often the leader looks at the preferred leader.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two returns from one node: each costs the callers of a group a moment.
const RETURN_INTERVAL: Duration = Duration::from_secs(10);
/// Returns of a group within this time double the next wait, each: its preferred leader does not last.
const RECENT_RETURNS: Duration = Duration::from_secs(600);
/// Doublings at most: an hour and four minutes by default.
const MAX_DOUBLINGS: u32 = 6;
/// Timeout of a transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// What a leader sees of the preferred leader.
#[derive(Clone, Copy, Debug)]
struct Observation {
    /// The term of the leader that sees it.
    term: u64,
    /// Whether that leadership was moved here.
    was_moved: bool,
    /// The run of the preferred leader's process.
    run: u64,
    /// Whether it could lead now.
    is_ready: bool,
}

/// When the leadership of a group that this node leads returns to its preferred leader.
#[derive(Debug, Default)]
struct ReturnSchedule {
    /// The first observation of the term.
    first: Option<Observation>,
    /// Since when the preferred leader is ready, in this term.
    ready_since: Option<Instant>,
    returns: VecDeque<Instant>,
}

impl ReturnSchedule {
    /// Records an observation. Returns true if the leadership is to return now.
    fn check(&mut self, seen: Observation, after: Duration) -> bool {
        if self.first.is_none_or(|first| first.term != seen.term) {
            (self.first, self.ready_since) = (Some(seen), None);
        }
        if !seen.is_ready {
            self.ready_since = None;
            return false;
        }
        let ready_for = self.ready_since.get_or_insert_with(Instant::now).elapsed();
        let may_return = self.first.is_some_and(|first| !first.was_moved || first.run != seen.run);
        may_return && ready_for >= self.wait(after)
    }

    /// Returns how long the preferred leader has to be ready.
    fn wait(&mut self, after: Duration) -> Duration {
        self.returns.retain(|at| at.elapsed() < RECENT_RETURNS);
        let doublings = u32::try_from(self.returns.len()).unwrap_or(MAX_DOUBLINGS).min(MAX_DOUBLINGS);
        after * 2_u32.pow(doublings)
    }

    fn record_return(&mut self) {
        self.returns.push_back(Instant::now());
    }
}

/// Returns the leaderships of this node that are due, one at a time, until the node stops.
pub(crate) async fn run(node: Weak<NodeInner>, after: Duration) {
    let mut schedules = HashMap::<u64, ReturnSchedule>::new();
    loop {
        let Some(due) = node.upgrade().map(|node| next_due(&node, &mut schedules, after)) else { return };
        let Some((replica, preferred, to)) = due else {
            sleep(CHECK_INTERVAL).await;
            continue;
        };
        let is_over = replica.group.transfer_leadership_among(|id| id == preferred, TRANSFER_TIMEOUT).await;
        tracing::info!(group = replica.group.id(), to, is_over, "the leadership returns to the preferred leader");
        if let Some(schedule) = schedules.get_mut(&replica.group.replica()) {
            schedule.record_return();
        }
        drop(replica);
        sleep(RETURN_INTERVAL).await;
    }
}

/// Looks at all groups that this node leads for others. Returns the first that is due, with its preferred replica and
/// the node of that one.
fn next_due(
    node: &NodeInner,
    schedules: &mut HashMap<u64, ReturnSchedule>,
    after: Duration,
) -> Option<(Arc<Replica>, u64, String)> {
    let (map, replicas) = (node.map(), node.replicas());
    schedules.retain(|id, _| replicas.iter().any(|replica| replica.group.replica() == *id));
    let mut due = None;
    for replica in replicas {
        let group = &replica.group;
        let Some(leads) = *group.subscribe_leadership().borrow() else { continue };
        let Some(first) = map.group(group.id()).and_then(|config| config.replicas.first()) else { continue };
        if first.id == group.replica() {
            continue;
        }
        let schedule = schedules.entry(group.replica()).or_default();
        let (term, was_moved) = (leads.term, group.was_named(leads.term));
        let seen =
            Observation { term, was_moved, run: group.run_of(first.id), is_ready: group.is_ready_to_lead(first.id) };
        // Each is looked at every time, whatever is due.
        if schedule.check(seen, after) && due.is_none() {
            due = Some((Arc::clone(&replica), first.id, first.node_id.clone()));
        }
    }
    due
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const AFTER: Duration = Duration::from_secs(60);

    fn ready(term: u64, was_moved: bool, run: u64) -> Observation {
        Observation { term, was_moved, run, is_ready: true }
    }

    /// Sees the same each second for so long. Returns after how many seconds the leadership is to return, if it is.
    async fn due_after(schedule: &mut ReturnSchedule, seen: Observation, seconds: u64) -> Option<u64> {
        for second in 0..=seconds {
            if schedule.check(seen, AFTER) {
                return Some(second);
            }
            advance(CHECK_INTERVAL).await;
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn it_returns_once_the_preferred_leader_has_been_ready_without_a_break() {
        let (mut schedule, seen) = (ReturnSchedule::default(), ready(3, false, 1));
        assert_eq!(due_after(&mut schedule, seen, 59).await, None);
        assert!(!schedule.check(Observation { is_ready: false, ..seen }, AFTER));
        assert_eq!(due_after(&mut schedule, seen, 100).await, Some(60));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_moved_here_stays_until_the_preferred_leader_is_restarted() {
        let (mut schedule, moved) = (ReturnSchedule::default(), ready(3, true, 1));
        assert_eq!(due_after(&mut schedule, moved, 1_000).await, None);
        assert!(!schedule.check(Observation { is_ready: false, ..moved }, AFTER), "it is out of reach");
        assert_eq!(due_after(&mut schedule, moved, 1_000).await, None, "it is the same process");
        assert!(!schedule.check(Observation { is_ready: false, ..moved }, AFTER));
        assert_eq!(due_after(&mut schedule, ready(3, true, 2), 100).await, Some(60));
        assert_eq!(due_after(&mut schedule, ready(5, true, 2), 1_000).await, None, "it was moved here again");
    }

    #[tokio::test(start_paused = true)]
    async fn each_return_within_ten_minutes_doubles_the_wait() {
        let mut schedule = ReturnSchedule::default();
        let mut waits = Vec::new();
        for term in 1..4 {
            waits.push(due_after(&mut schedule, ready(term, false, 1), 1_000).await);
            schedule.record_return();
        }
        assert_eq!(waits, [Some(60), Some(120), Some(240)]);
        advance(RECENT_RETURNS).await;
        assert_eq!(due_after(&mut schedule, ready(4, false, 1), 1_000).await, Some(60));
        (0..100).for_each(|_| schedule.record_return());
        assert_eq!(schedule.wait(AFTER), AFTER * 64, "it is bounded");
    }
}
