//! Returns leaderships to the preferred leaders, so that no node leads the groups of another for longer than needed.
//!
//! A leadership returns once its preferred leader has been ready for a while. What an operator has moved stays as long
//! as the same process runs at the preferred leader: a node that was emptied for work on it stays empty until it is
//! restarted.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use holdfast_replication::{Group, OperatorMove};
use tokio::time::{Instant, sleep};

use crate::node::NodeInner;

/// How often the leader looks at the preferred leader.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two returns from one node: each costs the callers of a group a moment.
const RETURN_INTERVAL: Duration = Duration::from_secs(10);
/// A preferred leader that leads for so long lasts: it no longer has to wait longer.
const LASTING: Duration = Duration::from_secs(600);
/// Maximum doublings of the wait before the next return: each return to a preferred leader that does not last doubles
/// it, by default up to an hour and four minutes.
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

/// When the leadership of a group returns from this node to its preferred leader.
#[derive(Debug, Default)]
struct ReturnSchedule {
    /// Since when the preferred leader may lead, and what was seen of it.
    since: Option<(Instant, Observation)>,
    /// What this leader had applied at its last look.
    applied: u64,
    /// Returns to a preferred leader that did not last.
    returns: u32,
    /// The term in which the preferred leader leads, and since when it was seen.
    leads: Option<(u64, Instant)>,
}

impl ReturnSchedule {
    /// Records an observation. Returns true if the leadership is to return now.
    fn check(&mut self, seen: Observation, after: Duration) -> bool {
        self.leads = None;
        if !seen.may_lead {
            self.since = None;
            return false;
        }
        let since = match self.since {
            Some((since, before)) if before == seen => since,
            _ => self.since.insert((Instant::now(), seen)).0,
        };
        since.elapsed() >= after * 2_u32.pow(self.returns.min(MAX_DOUBLINGS))
    }

    /// Records that another node leads in this term: the preferred leader, or none.
    fn record_leader(&mut self, preferred_leads: Option<u64>) {
        self.since = None;
        self.leads = match (self.leads, preferred_leads) {
            (Some((term, since)), Some(now)) if term == now => Some((term, since)),
            (_, preferred) => preferred.map(|term| (term, Instant::now())),
        };
        if self.leads.is_some_and(|(_, since)| since.elapsed() >= LASTING) {
            self.returns = 0;
        }
    }

    fn record_return(&mut self) {
        self.returns = self.returns.saturating_add(1);
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
        tracing::info!(group = group.id(), to, is_over, "leadership transfer to preferred leader attempted");
        if let Some(schedule) = schedules.get_mut(&group.replica()).filter(|_| is_over) {
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
        let preferred = map.group(group.id()).and_then(|config| config.replicas.first());
        let Some(first) = preferred.filter(|first| first.id != group.replica()) else { continue };
        let schedule = schedules.entry(group.replica()).or_default();
        let leads = *group.subscribe_leadership().borrow();
        let Some(leads) = leads else {
            let known = group.not_leader();
            schedule.record_leader((known.leader == Some(first.id)).then_some(known.term));
            continue;
        };
        let run = group.run_of(first.id);
        let is_ready = group.is_ready_to_lead(first.id, schedule.applied);
        let seen = Observation { term: leads.term, run, may_lead: is_ready && !group.stays_away_from(run) };
        schedule.applied = group.last_applied_index();
        // Each is looked at every time, whatever is due.
        if schedule.check(seen, after) && due.is_none() {
            due = Some((group.clone(), first.id, first.node_id.clone()));
        }
    }
    due
}

/// Returns what replicas have to know of an operator's order to move the leadership from this one: that it stays away
/// from the preferred leader, or that it no longer does. An order to leave a leader who is not preferred says nothing of
/// the one who is. One to leave the preferred leader counts even if that one does not lead any more.
pub(crate) fn operator_move(node: &NodeInner, group: &Group, to: u64, stays: bool) -> Option<OperatorMove> {
    let map = node.map();
    let first = map.group(group.id())?.replicas.first()?;
    let is_preferred = first.id == group.replica();
    let leads = group.subscribe_leadership().borrow().map(|leads| leads.term);
    let term = leads.or_else(|| is_preferred.then(|| group.current_term()))?;
    if first.id == to {
        return Some(OperatorMove { term, run: 0 });
    }
    let run = if is_preferred { node.run } else { group.run_of(first.id) };
    (stays && (is_preferred || to != 0) && run != 0).then_some(OperatorMove { term, run })
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
            schedule.record_leader(Some(100 + term));
            advance(LASTING - CHECK_INTERVAL).await;
            schedule.record_leader(Some(100 + term));
            schedule.record_leader(None);
        }
        assert_eq!(waits, [60, 120, 240, 480, 960, 1_920, 3_840, 3_840, 3_840]);
        schedule.record_leader(Some(200));
        advance(LASTING).await;
        schedule.record_leader(Some(200));
        assert_eq!(due_after(&mut schedule, ready(10, 10), 10_000).await, Some(60), "it lasted");
    }
}
