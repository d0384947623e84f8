//! The acknowledgements of a leader, which its lease and its quorum follow from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_clock::{BootInstant, Clocks};
use holdfast_mutations::{Mutation, is_enabled};
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::state_machine_adapter::Raft;

/// The time of each follower's last acknowledgement of this leader, measured when the acknowledged message was *sent*:
/// from then, and not from the response, the follower votes for no other replica for a lease.
///
/// The follower counts its promise by its monotonic clock, which may stand still and thereby make it longer. The leader
/// relies on the promise, so it ages it by a clock that continues while its machine is suspended. An acknowledgement is
/// void once the machine may have been paused since.
///
/// openraft keeps such a metric too, but takes a response to one append as a response to every later one that ends at
/// the same entry. It may therefore consider a lease fresher than it is.
pub(crate) struct LeaseTracker {
    /// The leader itself, which implicitly acknowledges its messages.
    own: u64,
    clocks: Clocks,
    term_acks: Mutex<TermAcks>,
}

/// When a message was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendTime {
    /// Ages the acknowledgement.
    boot: BootInstant,
    /// Orders the messages and responses of this process, and times them out.
    pub(crate) monotonic: Instant,
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
    sent: SendTime,
    /// When the follower's last response was received.
    heard_at: Instant,
    /// The last entry that the follower reported in this term, and when the leader received the report.
    matched: Option<(u64, Instant)>,
}

impl LeaseTracker {
    /// Creates a tracker for a replica of a group with these voters.
    pub(crate) fn new(own: u64, voters: BTreeSet<u64>, clocks: Clocks) -> Self {
        let term_acks = Mutex::new(TermAcks { term: 0, acks: BTreeMap::new(), voters: vec![voters] });
        Self { own, clocks, term_acks }
    }

    /// Returns the time at which a message is sent now.
    pub(crate) fn send_time(&self) -> SendTime {
        SendTime { boot: self.clocks.now(), monotonic: Instant::now() }
    }

    /// Sets the voters after a membership change.
    fn set_voters(&self, voters: Vec<BTreeSet<u64>>) {
        self.term_acks.lock().voters = voters;
    }

    /// Records that a follower with this lease accepted a message that the leader of this term sent at `sent`, and that
    /// its log matches up to `matched`.
    pub(crate) fn record(&self, term: u64, replica: u64, lease: Duration, sent: SendTime, matched: Option<u64>) {
        let mut newest = self.term_acks.lock();
        if newest.term < term {
            newest.term = term;
            newest.acks.clear();
        }
        if newest.term == term {
            let heard_at = Instant::now();
            let known = newest.acks.entry(replica).or_insert(FollowerAck { lease, sent, heard_at, matched: None });
            (known.lease, known.heard_at) = (lease, heard_at);
            if sent.monotonic > known.sent.monotonic {
                known.sent = sent;
            }
            if let Some(index) = matched.filter(|index| known.matched.is_none_or(|(last, _)| *index > last)) {
                known.matched = Some((index, heard_at));
            }
        }
    }

    /// Returns true if a follower lost an entry: it denies having it, in response to a message sent at `sent`, but
    /// reported it earlier in this term. No other replica removes a leader's entries from a log within the leader's
    /// term, so the entry was lost.
    pub(crate) fn is_lost(&self, term: u64, replica: u64, index: u64, sent: SendTime) -> bool {
        let newest = self.term_acks.lock();
        let matched = newest.acks.get(&replica).and_then(|ack| ack.matched);
        newest.term == term && matched.is_some_and(|(last, heard)| index <= last && sent.monotonic > heard)
    }

    /// Returns how long ago the messages were sent with which a quorum acknowledged the leader of this term. A single
    /// replica is its own quorum.
    pub(crate) fn quorum_age(&self, term: u64) -> Option<Duration> {
        let now = self.clocks.now();
        self.quorum_time_ago(term, |ack| age(ack, now))
    }

    /// Returns the shortest lease among the voters that acknowledged the leader of this term.
    pub(crate) fn shortest_lease(&self, term: u64) -> Option<Duration> {
        let newest = self.term_acks.lock();
        let votes = |replica: &u64| newest.voters.iter().any(|voters| voters.contains(replica));
        let leases = newest.acks.iter().filter(|(replica, _)| newest.term == term && votes(replica));
        leases.map(|(_, ack)| ack.lease).min()
    }

    /// Returns for how long this process has run since the leader of this term received responses from a quorum,
    /// regardless of the age of the requests.
    pub(crate) fn quorum_silence(&self, term: u64) -> Option<Duration> {
        self.quorum_time_ago(term, |ack| Some(ack.heard_at.elapsed()))
    }

    /// Returns the longest time among the most recent ones of a quorum; an acknowledgement without a time is none.
    fn quorum_time_ago(&self, term: u64, time_ago: impl Fn(&FollowerAck) -> Option<Duration>) -> Option<Duration> {
        let newest = self.term_acks.lock();
        let mut longest = Duration::ZERO;
        for voters in &newest.voters {
            let needed = voters.len() / 2 + usize::from(!voters.contains(&self.own));
            let Some(position) = needed.checked_sub(1) else { continue };
            if newest.term != term {
                return None;
            }
            let acks = newest.acks.iter().filter(|(replica, _)| voters.contains(replica));
            let mut times: Vec<Duration> = acks.filter_map(|(_, ack)| time_ago(ack)).collect();
            times.sort_unstable();
            longest = longest.max(times.get(position).copied()?);
        }
        // A single replica acknowledges itself, now.
        Some(longest)
    }

    /// Returns the voters that acknowledged messages which the leader of this term sent within `lately`.
    pub(crate) fn acknowledged_within(&self, term: u64, lately: Duration) -> Vec<u64> {
        let now = self.clocks.now();
        let newest = self.term_acks.lock();
        let votes = |replica: &u64| newest.voters.iter().all(|voters| voters.contains(replica));
        let is_fresh = |ack: &FollowerAck| age(ack, now).is_some_and(|age| age <= lately);
        let fresh = newest.acks.iter().filter(|(_, ack)| newest.term == term && is_fresh(ack));
        let fresh = fresh.filter(|(replica, _)| votes(replica));
        fresh.map(|(replica, _)| *replica).collect()
    }
}

/// Returns how long ago the acknowledged message was sent, unless nobody can tell.
fn age(ack: &FollowerAck, now: BootInstant) -> Option<Duration> {
    if is_enabled(Mutation::MonotonicLease) {
        // Of the two clocks that which stood still, and nothing notices that it did.
        return Some(ack.sent.monotonic.elapsed().min(now.boot_time_since(ack.sent.boot)));
    }
    now.duration_since(ack.sent.boot)
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const LEASE: Duration = Duration::from_millis(850);

    /// Clocks that a test sets, in milliseconds.
    #[derive(Clone, Default)]
    struct TestClocks {
        boot: Arc<AtomicU64>,
        wall: Arc<AtomicU64>,
    }

    impl TestClocks {
        fn tracker<const N: usize>(&self, own: u64, voters: [u64; N]) -> LeaseTracker {
            let Self { boot, wall } = self.clone();
            let boot_time = move || Duration::from_millis(boot.load(Ordering::Relaxed));
            let clocks = Clocks::new(boot_time, move || wall.load(Ordering::Relaxed));
            LeaseTracker::new(own, voters.into(), clocks)
        }

        /// Lets that time pass on both.
        fn advance(&self, ms: u64) {
            self.boot.fetch_add(ms, Ordering::Relaxed);
            self.wall.fetch_add(ms, Ordering::Relaxed);
        }
    }

    /// A message that was sent so long after that one, by all clocks.
    fn later(first: SendTime, clocks: &TestClocks, ms: u64) -> SendTime {
        let (boot, wall) = (clocks.boot.load(Ordering::Relaxed), clocks.wall.load(Ordering::Relaxed));
        let boot = BootInstant::new(Duration::from_millis(boot + ms), wall + ms);
        SendTime { boot, monotonic: first.monotonic + Duration::from_millis(ms) }
    }

    fn ms(age: Option<Duration>) -> Option<u128> {
        age.map(|age| age.as_millis())
    }

    #[test]
    fn a_lease_is_as_old_as_the_quorum_th_newest_acknowledgement() {
        let clocks = TestClocks::default();
        let acks = clocks.tracker(10, [10, 11, 12, 13, 14]);
        let first = acks.send_time();
        let at = |ms| later(first, &clocks, ms);
        let sent = [at(40), at(10), at(30), at(5)];
        clocks.advance(100);
        acks.record(2, 11, LEASE, sent[0], None);
        assert_eq!(acks.quorum_age(2), None);
        acks.record(2, 12, LEASE, sent[1], None);
        assert_eq!(ms(acks.quorum_age(2)), Some(90));
        acks.record(2, 13, LEASE, sent[2], None);
        assert_eq!(ms(acks.quorum_age(2)), Some(70));
        // A reordered response does not set the time back.
        acks.record(2, 13, LEASE, sent[3], None);
        assert_eq!(ms(acks.quorum_age(2)), Some(70));
    }

    #[test]
    fn acknowledgements_of_another_term_do_not_count() {
        let acks = TestClocks::default().tracker(10, [10, 11, 12]);
        let sent = acks.send_time();
        acks.record(2, 11, LEASE, sent, None);
        assert_eq!(acks.quorum_age(3), None);
        acks.record(3, 12, LEASE, sent, None);
        acks.record(2, 11, LEASE, sent, None);
        assert_eq!(acks.acknowledged_within(3, Duration::ZERO), [12]);
        assert_eq!(acks.quorum_age(2), None);
    }

    #[test]
    fn a_machine_that_was_suspended_finds_its_acknowledgements_old() {
        let clocks = TestClocks::default();
        let acks = clocks.tracker(10, [10, 11, 12]);
        acks.record(2, 11, LEASE, acks.send_time(), None);
        // For the process no time has passed.
        clocks.advance(60_000);
        assert_eq!(ms(acks.quorum_age(2)), Some(60_000));
        assert!(acks.acknowledged_within(2, LEASE).is_empty());
        assert!(acks.quorum_silence(2).is_some_and(|silence| silence < Duration::from_secs(30)));
    }

    #[test]
    fn a_wall_clock_that_is_set_voids_all_acknowledgements_of_messages_before() {
        let clocks = TestClocks::default();
        let acks = clocks.tracker(10, [10, 11, 12, 13, 14]);
        let before = acks.send_time();
        acks.record(2, 11, LEASE, before, None);
        acks.record(2, 12, LEASE, before, None);
        clocks.wall.fetch_add(100, Ordering::Relaxed);
        assert_eq!(ms(acks.quorum_age(2)), Some(100), "so much is counted as a pause");
        clocks.wall.fetch_add(1, Ordering::Relaxed);
        assert_eq!(acks.quorum_age(2), None);
        // A response that comes now says nothing of a message that was sent before.
        acks.record(2, 13, LEASE, before, None);
        assert_eq!(acks.quorum_age(2), None);
        for replica in [11, 12] {
            acks.record(2, replica, LEASE, later(before, &clocks, 1), None);
        }
        assert!(acks.quorum_age(2).is_some(), "a quorum has answered anew");
    }

    #[test]
    fn an_entry_is_lost_that_was_there_in_the_same_term_before_it_was_asked_for() {
        let clocks = TestClocks::default();
        let acks = clocks.tracker(10, [10, 11, 12]);
        let before = acks.send_time();
        acks.record(2, 11, LEASE, before, Some(7));
        acks.record(2, 11, LEASE, before, Some(5));
        let after = later(acks.send_time(), &clocks, 1);
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
        assert_eq!(TestClocks::default().tracker(10, [10]).quorum_age(7), Some(Duration::ZERO));
    }

    #[test]
    fn only_voters_count_and_while_members_change_a_majority_of_both_sets_does() {
        let clocks = TestClocks::default();
        let acks = clocks.tracker(10, [10, 11, 12]);
        let first = acks.send_time();
        let (early, late) = (later(first, &clocks, 10), later(first, &clocks, 50));
        clocks.advance(100);
        acks.record(2, 20, LEASE, late, None);
        assert_eq!(acks.quorum_age(2), None);
        assert!(acks.acknowledged_within(2, LEASE).is_empty());
        acks.record(2, 11, LEASE, early, None);
        assert_eq!(ms(acks.quorum_age(2)), Some(90));
        acks.set_voters(vec![[10, 11, 12].into(), [10, 20, 21].into()]);
        assert_eq!(ms(acks.quorum_age(2)), Some(90));
        acks.set_voters(vec![[10, 20, 21].into()]);
        assert_eq!(ms(acks.quorum_age(2)), Some(50));
        // A leader that is no longer a voter needs a majority of the others.
        acks.set_voters(vec![[11, 20, 21].into()]);
        assert_eq!(ms(acks.quorum_age(2)), Some(90));
    }

    #[test]
    fn the_shortest_lease_is_that_of_a_voter_who_acknowledged_this_term() {
        let acks = TestClocks::default().tracker(10, [10, 11, 12]);
        let sent = acks.send_time();
        assert_eq!(acks.shortest_lease(2), None);
        acks.record(2, 11, 2 * LEASE, sent, None);
        acks.record(2, 20, LEASE / 2, sent, None);
        assert_eq!(acks.shortest_lease(2), Some(2 * LEASE), "one that only learns promises nothing");
        acks.record(2, 12, LEASE, sent, None);
        assert_eq!(acks.shortest_lease(2), Some(LEASE));
        // The follower was restarted with another release.
        acks.record(2, 12, 3 * LEASE, sent, None);
        assert_eq!(acks.shortest_lease(2), Some(2 * LEASE));
        assert_eq!(acks.shortest_lease(3), None);
    }
}
