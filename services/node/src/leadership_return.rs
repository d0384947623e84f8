//! Returns leaderships to the preferred leaders, so that no node leads the groups of another for longer than needed.
//!
//! A leadership returns once its preferred leader has been ready for a while. What an operator has moved stays as long
//! as the same process runs at the preferred leader: a node that was emptied for work on it stays empty until it is
//! restarted.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_replication::Group;
use tokio::time::{Instant, sleep};

use crate::node::NodeInner;
use crate::replica::Replica;

/// How often the leader looks at the preferred leader.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two returns from one node: each costs the callers of a group a moment.
const RETURN_INTERVAL: Duration = Duration::from_secs(10);
/// A preferred leader that leads for so long after a return lasts: it no longer has to wait longer.
const LASTING: Duration = Duration::from_secs(600);
/// Each return to one that does not last doubles the next wait, so many times at most: to an hour and four minutes by
/// default.
const MAX_DOUBLINGS: u32 = 6;
/// Timeout of a transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// What a leader sees of the preferred leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Observation {
    /// The term of the leader that sees it.
    term: u64,
    /// The run of the preferred leader's process.
    run: u64,
    /// Whether it could lead now, and nobody moved the leadership away from it.
    may_lead: bool,
}

/// When the leadership of a group that this node leads returns to its preferred leader.
#[derive(Debug, Default)]
struct ReturnSchedule {
    /// Since when the preferred leader may lead, and what was seen of it.
    since: Option<(Instant, Observation)>,
    /// Returns to a preferred leader that did not last.
    returns: u32,
    latest_return: Option<Instant>,
}

impl ReturnSchedule {
    /// Records an observation. Returns true if the leadership is to return now.
    fn check(&mut self, seen: Observation, after: Duration) -> bool {
        if !seen.may_lead {
            self.since = None;
            return false;
        }
        let since = match self.since {
            Some((since, before)) if before == seen => since,
            _ => self.since.insert((Instant::now(), seen)).0,
        };
        since.elapsed() >= self.wait(after)
    }

    /// Returns for how long the preferred leader has to be ready.
    fn wait(&mut self, after: Duration) -> Duration {
        let wait = after * 2_u32.pow(self.returns.min(MAX_DOUBLINGS));
        // It was ready for as long before it leads again.
        if self.latest_return.is_some_and(|latest| latest.elapsed() > LASTING + wait) {
            (self.returns, self.latest_return) = (0, None);
            return after;
        }
        wait
    }

    fn record_return(&mut self) {
        self.returns = self.returns.saturating_add(1);
        (self.since, self.latest_return) = (None, Some(Instant::now()));
    }
}

/// Returns the leaderships of this node that are due, one at a time, until the node stops.
pub(crate) async fn run(node: Weak<NodeInner>, after: Duration) {
    let mut schedules = HashMap::<u64, ReturnSchedule>::new();
    let mut next_return = Instant::now();
    loop {
        sleep(CHECK_INTERVAL).await;
        let Some(due) = node.upgrade().map(|node| next_due(&node, &mut schedules, after)) else { return };
        let Some((group, preferred, to)) = due.filter(|_| Instant::now() >= next_return) else { continue };
        let is_over = group.transfer_leadership_among(|id| id == preferred, TRANSFER_TIMEOUT).await;
        tracing::info!(group = group.id(), to, is_over, "the leadership returns to the preferred leader");
        if let Some(schedule) = schedules.get_mut(&group.replica()) {
            schedule.record_return();
        }
        next_return = Instant::now() + RETURN_INTERVAL;
    }
}

/// Looks at all groups of this node. Returns the first that it leads for another and that is due, with its preferred
/// replica and the node of that one.
fn next_due(
    node: &NodeInner,
    schedules: &mut HashMap<u64, ReturnSchedule>,
    after: Duration,
) -> Option<(Group, u64, String)> {
    let (map, replicas) = (node.map(), node.replicas());
    schedules.retain(|id, _| replicas.iter().any(|replica| replica.group.replica() == *id));
    let mut due = None;
    for group in replicas.iter().map(|replica| &replica.group) {
        let Some(first) = map.group(group.id()).and_then(|config| config.replicas.first()) else { continue };
        let leads = *group.subscribe_leadership().borrow();
        let Some(leads) = leads.filter(|_| first.id != group.replica()) else {
            forget_moves(group, first.id);
            continue;
        };
        let run = group.run_of(first.id);
        let stays = group.operator_move().is_some_and(|moved| moved.run == run);
        let seen = Observation { term: leads.term, run, may_lead: !stays && group.is_ready_to_lead(first.id) };
        // Each is looked at every time, whatever is due.
        if schedules.entry(group.replica()).or_default().check(seen, after) && due.is_none() {
            due = Some((group.clone(), first.id, first.node_id.clone()));
        }
    }
    due
}

/// Forgets that the leadership was moved away once the preferred replica leads again.
fn forget_moves(group: &Group, preferred: u64) {
    let known = group.not_leader();
    if known.leader == Some(preferred) {
        group.forget_moves_before(known.term);
    }
}

/// Lets a leadership that an operator moves stay where it goes, unless that is the preferred leader.
pub(crate) async fn announce_move(node: &NodeInner, replica: &Arc<Replica>, to: u64) {
    let (group, map) = (&replica.group, node.map());
    let Some(first) = map.group(group.id()).and_then(|config| config.replicas.first()) else { return };
    let run = if first.id == group.replica() { node.run } else { group.run_of(first.id) };
    if first.id != to && run != 0 {
        group.announce_move(run).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const AFTER: Duration = Duration::from_secs(60);

    fn ready(term: u64, run: u64) -> Observation {
        Observation { term, run, may_lead: true }
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
    async fn it_returns_once_one_process_has_been_ready_without_a_break() {
        let (mut schedule, seen) = (ReturnSchedule::default(), ready(3, 1));
        assert_eq!(due_after(&mut schedule, seen, 59).await, None);
        assert!(!schedule.check(Observation { may_lead: false, ..seen }, AFTER));
        assert_eq!(due_after(&mut schedule, seen, 59).await, None);
        assert_eq!(due_after(&mut schedule, ready(3, 2), 59).await, None, "another process");
        assert_eq!(due_after(&mut schedule, ready(4, 2), 100).await, Some(60), "another leadership");
    }

    #[tokio::test(start_paused = true)]
    async fn each_return_to_one_that_does_not_last_doubles_the_wait() {
        let mut schedule = ReturnSchedule::default();
        let mut waits = Vec::new();
        for term in 1..=9 {
            waits.push(due_after(&mut schedule, ready(term, term), 10_000).await.unwrap_or_default());
            schedule.record_return();
        }
        assert_eq!(waits, [60, 120, 240, 480, 960, 1_920, 3_840, 3_840, 3_840]);
        advance(LASTING + 64 * AFTER).await;
        assert_eq!(due_after(&mut schedule, ready(10, 10), 10_000).await, Some(60), "it lasted");
    }
}
