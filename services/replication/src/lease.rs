//! The acknowledgements of a leader, which its lease and its quorum follow from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::state_machine_adapter::Raft;

/// The time of each follower's last acknowledgement of this leader, measured when the acknowledged message was *sent*:
/// from then, and not from the response, the follower votes for no other replica for a lease.
///
/// openraft keeps such a metric too, but takes a response to one append as a response to every later one that ends at
/// the same entry. It may therefore consider a lease fresher than it is.
pub(crate) struct LeaseTracker {
    /// The leader itself, which implicitly acknowledges its messages.
    own: u64,
    term_acks: Mutex<TermAcks>,
}

struct TermAcks {
    term: u64,
    acks: BTreeMap<u64, FollowerAck>,
    /// The voter sets; each needs a majority of acknowledgements. There are two during a membership change.
    voters: Vec<BTreeSet<u64>>,
}

#[derive(Clone, Copy)]
struct FollowerAck {
    /// How long the follower, after an acknowledgement, votes for no other replica.
    lease: Duration,
    /// Send time of the newest acknowledged message.
    sent_at: Instant,
    /// When the follower's last response was received.
    heard_at: Instant,
    /// The last entry that the follower reported in this term, and when the leader received the report.
    matched: Option<(u64, Instant)>,
}

impl LeaseTracker {
    /// Creates a tracker for a replica of a group with these voters.
    pub(crate) fn new(own: u64, voters: BTreeSet<u64>) -> Self {
        Self { own, term_acks: Mutex::new(TermAcks { term: 0, acks: BTreeMap::new(), voters: vec![voters] }) }
    }

    /// Sets the voters after a membership change.
    fn set_voters(&self, voters: Vec<BTreeSet<u64>>) {
        self.term_acks.lock().voters = voters;
    }

    /// Records that a follower with this lease accepted a message that the leader of this term sent at `sent_at`, and
    /// that its log matches up to `matched`.
    pub(crate) fn record(&self, term: u64, replica: u64, lease: Duration, sent_at: Instant, matched: Option<u64>) {
        let mut newest = self.term_acks.lock();
        if newest.term < term {
            newest.term = term;
            newest.acks.clear();
        }
        if newest.term == term {
            let heard_at = Instant::now();
            let known = newest.acks.entry(replica).or_insert(FollowerAck { lease, sent_at, heard_at, matched: None });
            (known.lease, known.sent_at, known.heard_at) = (lease, sent_at.max(known.sent_at), heard_at);
            if let Some(index) = matched.filter(|index| known.matched.is_none_or(|(last, _)| *index > last)) {
                known.matched = Some((index, heard_at));
            }
        }
    }

    /// Returns true if a follower lost an entry: it denies having it, in response to a message sent at `sent`, but
    /// reported it earlier in this term. No other replica removes a leader's entries from a log within the leader's
    /// term, so the entry was lost.
    pub(crate) fn is_lost(&self, term: u64, replica: u64, index: u64, sent: Instant) -> bool {
        let newest = self.term_acks.lock();
        let matched = newest.acks.get(&replica).and_then(|ack| ack.matched);
        newest.term == term && matched.is_some_and(|(last, heard)| index <= last && sent > heard)
    }

    /// Returns the time since which a quorum has acknowledged the leader of this term. A single replica is its own
    /// quorum.
    pub(crate) fn quorum_sent_at(&self, term: u64) -> Option<Instant> {
        self.quorum_time(term, |ack| ack.sent_at)
    }

    /// Returns the shortest lease among the voters that acknowledged the leader of this term.
    pub(crate) fn shortest_lease(&self, term: u64) -> Option<Duration> {
        let newest = self.term_acks.lock();
        let votes = |replica: &u64| newest.voters.iter().any(|voters| voters.contains(replica));
        let leases = newest.acks.iter().filter(|(replica, _)| newest.term == term && votes(replica));
        leases.map(|(_, ack)| ack.lease).min()
    }

    /// Returns when the leader of this term last received responses from a quorum, regardless of the age of the
    /// requests.
    pub(crate) fn quorum_heard_at(&self, term: u64) -> Option<Instant> {
        self.quorum_time(term, |ack| ack.heard_at)
    }

    fn quorum_time(&self, term: u64, time: impl Fn(&FollowerAck) -> Instant) -> Option<Instant> {
        let newest = self.term_acks.lock();
        let mut oldest: Option<Instant> = None;
        for voters in &newest.voters {
            let needed = voters.len() / 2 + usize::from(!voters.contains(&self.own));
            let Some(position) = needed.checked_sub(1) else { continue };
            if newest.term != term {
                return None;
            }
            let acks = newest.acks.iter().filter(|(replica, _)| voters.contains(replica));
            let mut times: Vec<Instant> = acks.map(|(_, ack)| time(ack)).collect();
            times.sort_unstable_by(|a, b| b.cmp(a));
            let acknowledged = times.get(position).copied()?;
            oldest = Some(oldest.map_or(acknowledged, |oldest| oldest.min(acknowledged)));
        }
        // A single replica acknowledges itself, now.
        Some(oldest.unwrap_or_else(Instant::now))
    }

    /// Returns the voters that acknowledged the leader of this term after `time`.
    pub(crate) fn acknowledged_since(&self, term: u64, time: Instant) -> Vec<u64> {
        let newest = self.term_acks.lock();
        let votes = |replica: &u64| newest.voters.iter().all(|voters| voters.contains(replica));
        let fresh = newest.acks.iter().filter(|(_, ack)| newest.term == term && ack.sent_at >= time);
        let fresh = fresh.filter(|(replica, _)| votes(replica));
        fresh.map(|(replica, _)| *replica).collect()
    }
}

/// Updates the voters whose acknowledgements count, until the replica stops.
pub(crate) async fn track_voters(raft: Raft, lease_tracker: Arc<LeaseTracker>) {
    let mut metrics = raft.server_metrics();
    // The task holds openraft's handle no longer than openraft itself runs.
    drop(raft);
    loop {
        {
            let now = metrics.borrow_and_update();
            let configs = now.membership_config.get_joint_config();
            if !configs.is_empty() {
                lease_tracker.set_voters(configs.clone());
            }
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(850);

    #[test]
    fn a_lease_is_as_old_as_the_quorum_th_newest_acknowledgement() {
        let (acks, now) = (LeaseTracker::new(10, (10..15).collect()), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        acks.record(2, 11, LEASE, at(40), None);
        assert_eq!(acks.quorum_sent_at(2), None);
        acks.record(2, 12, LEASE, at(10), None);
        assert_eq!(acks.quorum_sent_at(2), Some(at(10)));
        acks.record(2, 13, LEASE, at(30), None);
        assert_eq!(acks.quorum_sent_at(2), Some(at(30)));
        // A reordered response does not set the time back.
        acks.record(2, 13, LEASE, at(5), None);
        assert_eq!(acks.quorum_sent_at(2), Some(at(30)));
    }

    #[test]
    fn acknowledgements_of_another_term_do_not_count() {
        let (acks, now) = (LeaseTracker::new(10, (10..13).collect()), Instant::now());
        acks.record(2, 11, LEASE, now, None);
        assert_eq!(acks.quorum_sent_at(3), None);
        acks.record(3, 12, LEASE, now, None);
        acks.record(2, 11, LEASE, now, None);
        assert_eq!(acks.acknowledged_since(3, now), [12]);
        assert_eq!(acks.quorum_sent_at(2), None);
    }

    #[test]
    fn an_entry_is_lost_that_was_there_in_the_same_term_before_it_was_asked_for() {
        let (acks, before) = (LeaseTracker::new(10, (10..13).collect()), Instant::now());
        acks.record(2, 11, LEASE, before, Some(7));
        acks.record(2, 11, LEASE, before, Some(5));
        let after = Instant::now() + Duration::from_millis(1);
        assert!(acks.is_lost(2, 11, 7, after));
        assert!(!acks.is_lost(2, 11, 8, after), "it never had that one");
        assert!(!acks.is_lost(2, 11, 7, before), "an answer that was overtaken");
        assert!(!acks.is_lost(2, 12, 7, after), "another replica");
        acks.record(3, 12, LEASE, after, Some(9));
        assert!(!acks.is_lost(2, 11, 7, after), "another leader may have taken it out");
        assert!(!acks.is_lost(3, 11, 7, after));
    }

    #[test]
    fn a_replica_that_is_alone_is_its_own_quorum() {
        assert!(LeaseTracker::new(10, [10].into()).quorum_sent_at(7).is_some());
    }

    #[test]
    fn only_voters_count_and_while_members_change_a_majority_of_both_sets_does() {
        let (acks, now) = (LeaseTracker::new(10, [10, 11, 12].into()), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        acks.record(2, 20, LEASE, at(50), None);
        assert_eq!(acks.quorum_sent_at(2), None);
        assert!(acks.acknowledged_since(2, now).is_empty());
        acks.record(2, 11, LEASE, at(10), None);
        assert_eq!(acks.quorum_sent_at(2), Some(at(10)));
        acks.set_voters(vec![[10, 11, 12].into(), [10, 20, 21].into()]);
        assert_eq!(acks.quorum_sent_at(2), Some(at(10)));
        acks.set_voters(vec![[10, 20, 21].into()]);
        assert_eq!(acks.quorum_sent_at(2), Some(at(50)));
        // A leader that is no longer a voter needs a majority of the others.
        acks.set_voters(vec![[11, 20, 21].into()]);
        assert_eq!(acks.quorum_sent_at(2), Some(at(10)));
    }

    #[test]
    fn the_shortest_lease_is_that_of_a_voter_who_acknowledged_this_term() {
        let (acks, now) = (LeaseTracker::new(10, [10, 11, 12].into()), Instant::now());
        assert_eq!(acks.shortest_lease(2), None);
        acks.record(2, 11, 2 * LEASE, now, None);
        acks.record(2, 20, LEASE / 2, now, None);
        assert_eq!(acks.shortest_lease(2), Some(2 * LEASE), "one that only learns promises nothing");
        acks.record(2, 12, LEASE, now, None);
        assert_eq!(acks.shortest_lease(2), Some(LEASE));
        // The follower was restarted with another release.
        acks.record(2, 12, 3 * LEASE, now, None);
        assert_eq!(acks.shortest_lease(2), Some(2 * LEASE));
        assert_eq!(acks.shortest_lease(3), None);
    }
}
