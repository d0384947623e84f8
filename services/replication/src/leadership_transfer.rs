//! Leadership transfer: before a stop, by an operator, or because the leader is worse off than a follower.

use std::cmp::Reverse;
use std::time::Duration;

use holdfast_supervise::spawn_temporary;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::group::Group;
use crate::shard_failures::ReplicaReport;
use crate::state_machine::FailedShards;
use crate::types::LogId;

/// How often the leader checks for a follower's acknowledgement.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Entries that a replica may lack while it is ready to lead: as many as are in flight under load, between two answers.
const MAX_READY_LAG: u64 = 256;

/// Timeout of a transfer because of a full disk.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3);

/// A replica hands its group over because of failed shards at most once in this time, whatever becomes of the shards.
const FAILURE_TRANSFER_INTERVAL: Duration = Duration::from_secs(600);

/// When this replica last handed its group over because of failed shards.
#[derive(Debug, Default)]
pub(crate) struct FailureTransfers(Option<Instant>);

impl FailureTransfers {
    fn is_allowed(&self, now: Instant) -> bool {
        self.0.is_none_or(|last| now.saturating_duration_since(last) >= FAILURE_TRANSFER_INTERVAL)
    }
}

/// A follower that may take over, ordered by preference: with disk space, then with few failed shards, then with a long
/// log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    has_disk_space: bool,
    failed_shards: Reverse<usize>,
    log: Option<LogId>,
    id: u64,
}

/// Returns true if more shards would serve if the follower led: those that failed there are among those that failed
/// here, and not all of them, and it is past the entries that the others failed at here. So leadership never returns
/// for the same reason, and no entry makes a shard fail at one leader after the other.
fn serves_more(failed_here: &FailedShards, there: &ReplicaReport) -> bool {
    let is_subset = there.failed_shards.iter().all(|shard| failed_here.contains_key(shard));
    let mut serving = failed_here.iter().filter(|(shard, _)| !there.failed_shards.contains(*shard)).peekable();
    is_subset && serving.peek().is_some() && serving.all(|(_, index)| there.applied_index >= *index)
}

/// Returns the number of shards that have failed there, or may fail once it applies what they failed at here.
fn failing_shards(failed_here: &FailedShards, there: &ReplicaReport) -> usize {
    let may_fail =
        |(shard, index): &(&u32, &u64)| !there.failed_shards.contains(*shard) && there.applied_index < **index;
    there.failed_shards.len() + failed_here.iter().filter(may_fail).count()
}

impl Group {
    /// Transfers leadership to the follower with disk space, the fewest failed shards and the longest log, and waits
    /// until commands proposed here have their replies. Returns true if this replica no longer leads; it keeps leading
    /// if no follower responds.
    ///
    /// From the start of the transfer it neither proposes nor serves reads: the next leader's voters do not wait for
    /// the end of this lease.
    pub async fn transfer_leadership(&self, within: Duration) -> bool {
        // All others may be down, so it waits no longer than the next heartbeat takes.
        self.transfer_leadership_when_acked(|_| true, self.timing().lease() / 2, within).await
    }

    /// As above, to a suitable voter. A live voter may briefly lack a fresh acknowledgement, especially right after it
    /// became a voter, so this waits for it.
    pub async fn transfer_leadership_among(&self, is_suitable: impl Fn(u64) -> bool, within: Duration) -> bool {
        // A live follower acknowledges two heartbeats within a lease.
        self.transfer_leadership_when_acked(is_suitable, 2 * self.timing().lease(), within).await
    }

    /// Transfers leadership because of shards that failed here, to a follower where more shards serve. It waits for one
    /// for as long as `max_wait`: followers may still have to apply what failed here. Returns true if this replica no
    /// longer leads. At most once in ten minutes: false at once within that time, and if it does not lead.
    pub async fn transfer_from_failed_shards(&self, max_wait: Duration, within: Duration) -> bool {
        let heard_by = Instant::now() + max_wait;
        // Several shards may fail at once: they wait for the same follower.
        let mut transfers = self.failure_transfers().lock().await;
        let max_wait = heard_by.saturating_duration_since(Instant::now());
        let Some(leads) = self.leadership().filter(|_| transfers.is_allowed(Instant::now())) else { return false };
        // A leader without disk space would serve less, whatever its shards do.
        let has_enough_space = |replica| self.peer_has_disk_space(replica) || !self.has_disk_space();
        let is_suitable =
            |replica| has_enough_space(replica) && serves_more(&self.failed_shards(), &self.replica_report(replica));
        let is_over = tokio::select! {
            biased;
            is_over = self.transfer_leadership_when_acked(is_suitable, max_wait, within) => is_over,
            // Ends when the replica has stopped.
            () = self.send_heartbeats() => false,
        };
        // Also if nobody has taken over in time, but not if the leadership ended for another reason.
        if self.has_relinquished(leads.term) {
            transfers.0 = Some(Instant::now());
        }
        is_over
    }

    /// Sends heartbeats more often than usual: their answers say what followers have applied.
    async fn send_heartbeats(&self) {
        while self.raft().trigger().heartbeat().await.is_ok() {
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn transfer_leadership_when_acked(
        &self,
        is_suitable: impl Fn(u64) -> bool,
        heard_within: Duration,
        within: Duration,
    ) -> bool {
        let deadline = Instant::now() + within;
        let heard_by = deadline.min(Instant::now() + heard_within);
        loop {
            let Some(leads) = self.leadership() else { return true };
            if let Some((target, _)) = self.transfer_target(leads.term, &is_suitable) {
                return self.transfer_leadership_to(target, leads.term, deadline).await;
            }
            if Instant::now() >= heard_by || self.members().len() == 1 {
                return false;
            }
            sleep_until(heard_by.min(Instant::now() + POLL_INTERVAL)).await;
        }
    }

    /// Continues if the caller disconnects: after it relinquished the term, this replica serves nothing, so another
    /// replica must take over.
    async fn transfer_leadership_to(&self, target: u64, term: u64, deadline: Instant) -> bool {
        let group = self.clone();
        let over = spawn_temporary("leadership_transfer", async move { group.relinquish_to(target, term).await });
        timeout_at(deadline, over).await.is_ok() && self.leadership().is_none()
    }

    async fn relinquish_to(&self, target: u64, term: u64) {
        self.relinquish(term);
        let mut leadership = self.subscribe_leadership();
        // An error means that the replica has stopped.
        if leadership.wait_for(|leads| leads.is_none_or(|leads| leads.term != term)).await.is_err() {
            return;
        }
        drop(leadership);
        // A later term, in which it may lead again, is not relinquished.
        if self.elected_term() != Some(term) {
            return;
        }
        if self.raft().trigger().transfer_leader(target).await.is_ok() {
            self.wait_transferred().await;
        }
    }

    /// Returns true if a voter could take over from this leader now and serve as well: it answers, it has the log but for
    /// what is in flight, has applied it up to this index, all of its shards serve, and its disk has space.
    pub fn is_ready_to_lead(&self, replica: u64, applied: u64) -> bool {
        let Some(leads) = self.leadership() else { return false };
        let alive = self.lease_tracker().acknowledged_within(leads.term, self.timing().usable_lease());
        let (matched, last) = {
            let metrics = self.raft().metrics();
            let metrics = metrics.borrow_watched();
            let matched = metrics.replication.as_ref().and_then(|matched| matched.get(&replica).copied().flatten());
            (matched.map(|log| log.index), metrics.last_log_index.unwrap_or_default())
        };
        let has_log = matched.is_some_and(|matched| last.saturating_sub(matched) <= MAX_READY_LAG);
        let report = self.replica_report(replica);
        let serves_all = report.failed_shards.is_empty() && self.peer_has_disk_space(replica);
        alive.contains(&replica) && has_log && report.applied_index >= applied && serves_all
    }

    /// Returns the run of the process that has another replica, as far as this one knows; 0 if it never met any.
    pub fn run_of(&self, replica: u64) -> u64 {
        self.connection_to(replica).map_or(0, |connection| connection.latest_run())
    }

    /// Transfers leadership if a follower has more disk space.
    pub(crate) async fn transfer_if_disk_full(&self) {
        let Some(leads) = self.leadership() else { return };
        if self.transfer_target(leads.term, |_| true).is_some_and(|(_, has_disk_space)| has_disk_space) {
            let is_over = self.transfer_leadership(TRANSFER_TIMEOUT).await;
            tracing::info!(group = self.id(), is_over, "leadership transfer attempted: disk nearly full");
        }
    }

    /// Returns the preferred one of the responding followers, and whether its disk has space.
    fn transfer_target(&self, term: u64, is_suitable: impl Fn(u64) -> bool) -> Option<(u64, bool)> {
        let alive = self.lease_tracker().acknowledged_within(term, self.timing().usable_lease());
        let metrics = self.raft().metrics();
        let matched = metrics.borrow_watched().replication.clone().unwrap_or_default();
        let candidates =
            matched.into_iter().filter(|(id, _)| *id != self.replica() && alive.contains(id) && is_suitable(*id));
        let failed_here = self.failed_shards();
        let candidates = candidates.map(|(id, log)| Candidate {
            has_disk_space: self.peer_has_disk_space(id),
            failed_shards: Reverse(failing_shards(&failed_here, &self.replica_report(id))),
            log,
            id,
        });
        candidates.max().map(|best| (best.id, best.has_disk_space))
    }

    /// Waits for another leader, and until all entries of this one are applied here and thereby answered.
    async fn wait_transferred(&self) {
        let mut metrics = self.raft().metrics();
        let written = metrics.borrow_watched().last_log_index;
        loop {
            {
                let now = metrics.borrow_and_update();
                let led_by_another = now.current_leader.is_some_and(|leader| leader != self.replica());
                if led_by_another && now.last_applied.map(|id| id.index) >= written {
                    break;
                }
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
        self.adapter().queues.wait_applied(written.unwrap_or(0)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(applied_index: u64, failed_shards: &[u32]) -> ReplicaReport {
        ReplicaReport { applied_index, failed_shards: failed_shards.iter().copied().collect() }
    }

    #[test]
    fn a_follower_takes_over_failed_shards_only_where_a_proper_subset_failed() {
        let failed_here: FailedShards = [(3, 100), (5, 80)].into();
        for fewer in [&[][..], &[3], &[5]] {
            assert!(serves_more(&failed_here, &report(100, fewer)), "{fewer:?}");
        }
        for others in [&[3, 5][..], &[4], &[3, 4], &[3, 4, 5]] {
            assert!(!serves_more(&failed_here, &report(100, others)), "{others:?}");
        }
        assert!(!serves_more(&FailedShards::new(), &report(100, &[])), "there is no reason");
    }

    #[test]
    fn a_follower_takes_over_only_past_the_entries_that_its_shards_could_fail_at_too() {
        let failed_here: FailedShards = [(3, 100), (5, 80)].into();
        assert!(!serves_more(&failed_here, &report(99, &[])));
        assert!(!serves_more(&failed_here, &report(0, &[])), "it has not said what it has applied");
        assert!(serves_more(&failed_here, &report(80, &[3])), "shard 3 has failed there as well");
        assert!(!serves_more(&failed_here, &report(79, &[3])));
    }

    #[test]
    fn a_follower_that_has_yet_to_apply_what_failed_here_is_no_better() {
        let failed_here: FailedShards = [(3, 100), (5, 80)].into();
        for (applied, failed, expected) in
            [(100, &[][..], 0), (99, &[], 1), (79, &[], 2), (79, &[3], 2), (100, &[4], 1)]
        {
            assert_eq!(failing_shards(&failed_here, &report(applied, failed)), expected, "{applied} {failed:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_is_handed_over_for_failed_shards_once_in_ten_minutes() {
        let mut transfers = FailureTransfers::default();
        assert!(transfers.is_allowed(Instant::now()));
        transfers.0 = Some(Instant::now());
        tokio::time::advance(FAILURE_TRANSFER_INTERVAL - Duration::from_millis(1)).await;
        assert!(!transfers.is_allowed(Instant::now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(transfers.is_allowed(Instant::now()));
    }

    #[test]
    fn a_replica_with_failed_shards_is_a_leader_of_last_resort() {
        let candidate =
            |has_disk_space, failed, id| Candidate { has_disk_space, failed_shards: Reverse(failed), log: None, id };
        let best = |candidates: &[Candidate]| candidates.iter().max().map(|best| best.id);
        assert_eq!(best(&[candidate(true, 0, 1), candidate(true, 1, 2)]), Some(1));
        assert_eq!(best(&[candidate(true, 2, 1), candidate(true, 1, 2)]), Some(2));
        assert_eq!(best(&[candidate(false, 0, 1), candidate(true, 1, 2)]), Some(2), "a full disk stops all shards");
        assert_eq!(best(&[candidate(true, 3, 1)]), Some(1));
    }
}
