//! Snapshots whose transfer is interrupted, and large ones.

use std::time::Duration;

use holdfast_replication::testing;
use holdfast_storage::PartSummary;

use crate::common::journal::Ballast;
use crate::common::{Cluster, ProxyMode, Setup, command, eventually_within, replica_id};

const MIB: u64 = 1024 * 1024;
/// Bytes that were sent and not yet stored when a transfer is interrupted, at most: the window, and what is on its way.
const LOST_BYTES: u64 = 5 * MIB;

/// What a test sends, and how.
struct Transfer {
    ballast: Ballast,
    rocks: bool,
    /// 0 if there is no limit.
    bytes_per_second: u64,
    patience: Duration,
}

/// How much the memory of this process has grown, at most.
struct Memory {
    before: u64,
    peak: u64,
}

impl Memory {
    fn now() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
        let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("it has that field");
        pages * 4_096
    }

    fn measure() -> Self {
        let before = Self::now();
        Self { before, peak: before }
    }

    fn record(&mut self) {
        self.peak = self.peak.max(Self::now());
    }

    fn growth(&self) -> u64 {
        self.peak - self.before
    }
}

impl Transfer {
    /// Sends a snapshot to a follower that was away. It is cut three times, and each end is restarted. Returns the
    /// bytes that were sent, and how much memory has grown.
    async fn run(&self) -> (u64, Memory) {
        let setup = Setup {
            rocks: self.rocks,
            ballast: self.ballast,
            snapshot_interval_entries: 50,
            retain_entries: 10,
            ..Setup::default()
        };
        let mut cluster = Cluster::bootstrapped(setup).await;
        let (leader, _) = cluster.leader().await;
        let follower = (leader + 1) % 3;
        cluster.kill(follower).await;
        self.compact_away(&cluster).await;
        cluster.limit_rate_to(follower, self.bytes_per_second);
        let (began, mut memory) = (cluster.sent_to(follower), Memory::measure());
        cluster.start(follower).await;
        for interruption in 1..=5 {
            // Each comes a sixth of the snapshot later than the one before.
            let until = began + interruption * (self.ballast.bytes() / 6);
            self.wait_until_sent(&cluster, follower, until, &mut memory).await;
            match interruption {
                2 => {
                    cluster.kill(follower).await;
                    cluster.start(follower).await;
                }
                4 => {
                    let (leader, _) = cluster.leader().await;
                    assert_ne!(leader, follower, "it lacks what the others have");
                    cluster.kill(leader).await;
                    cluster.start(leader).await;
                }
                _ => self.cut(&cluster, follower).await,
            }
        }
        let is_installed = || async { (cluster.group(follower).status().snapshot_index > 0).then_some(()) };
        self.wait_for("it is installed", &mut memory, is_installed).await;
        let sent = cluster.sent_to(follower) - began;
        cluster.limit_rate_to(follower, 0);
        cluster.all_applied().await;
        assert_equal_ballast(&cluster, self.ballast);
        (sent, memory)
    }

    /// Until the logs of those that run begin behind what the absent one has.
    async fn compact_away(&self, cluster: &Cluster) {
        let absent = cluster.running().map(|(_, node)| node.group.status().last_log_index).max().unwrap_or(0);
        // Snapshots are due by then, and their making may take long.
        for number in 0..100 {
            // Whatever becomes of one of them: it is an entry.
            cluster.propose(&command(format!("while away {number}"))).await;
        }
        let have_purged =
            || async { cluster.running().all(|(_, node)| node.group.status().purged_index > absent).then_some(()) };
        eventually_within(self.patience, "logs are purged", have_purged).await;
    }

    /// Ends all connections of the follower, once.
    async fn cut(&self, cluster: &Cluster, follower: usize) {
        cluster.cut_off(follower, ProxyMode::Cut);
        let is_cut = || async {
            let mut others = cluster.running().filter(|(index, _)| *index != follower);
            others.all(|(_, node)| !testing::is_connected(&node.group, replica_id(follower))).then_some(())
        };
        eventually_within(self.patience, "the follower is cut off", is_cut).await;
        cluster.cut_off(follower, ProxyMode::Open);
    }

    async fn wait_until_sent(&self, cluster: &Cluster, follower: usize, until: u64, memory: &mut Memory) {
        let is_sent = || async { (cluster.sent_to(follower) >= until).then_some(()) };
        self.wait_for("more is sent", memory, is_sent).await;
    }

    async fn wait_for<F>(&self, what: &str, memory: &mut Memory, mut look: impl FnMut() -> F)
    where
        F: Future<Output = Option<()>>,
    {
        eventually_within(self.patience, what, || {
            memory.record();
            look()
        })
        .await;
    }
}

/// Each replica has the same ballast, by its digests.
fn assert_equal_ballast(cluster: &Cluster, ballast: Ballast) {
    let of_replica = |(index, node): (usize, &crate::common::node::Node)| {
        let snapshot = node.store.replica(replica_id(index)).snapshot().expect("it is readable").expect("there is one");
        snapshot.summaries().filter(|part| part.name.starts_with("ballast")).cloned().collect::<Vec<PartSummary>>()
    };
    let all: Vec<Vec<PartSummary>> = cluster.running().map(of_replica).collect();
    assert_eq!((all.len(), all[0].len()), (3, ballast.parts as usize));
    assert_eq!(all[0].iter().map(|part| part.bytes).sum::<u64>(), ballast.bytes());
    assert!(all.iter().all(|replica| *replica == all[0]), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_goes_on_where_it_was_after_cuts_and_a_restart_of_either_end() {
    for rocks in [false, true] {
        let ballast = Ballast { parts: 3, chunks: 10 };
        let transfer = Transfer { ballast, rocks, bytes_per_second: 20 * MIB, patience: 4 * crate::common::MAX_WAIT };
        let (sent, _) = transfer.run().await;
        println!("{sent} bytes were sent of {}", ballast.bytes());
        assert!(sent >= ballast.bytes(), "it was not all sent");
        assert!(sent <= ballast.bytes() + 5 * LOST_BYTES, "more was sent again than was lost");
    }
}

/// A cluster where a follower that was away needs a snapshot with this ballast, and that follower.
async fn with_absent_follower(ballast: Ballast) -> (Cluster, Transfer, usize) {
    let patience = 2 * crate::common::MAX_WAIT;
    let transfer = Transfer { ballast, rocks: false, bytes_per_second: 0, patience };
    let setup = Setup { ballast, snapshot_interval_entries: 50, retain_entries: 10, ..Setup::default() };
    let mut cluster = Cluster::bootstrapped(setup).await;
    let (leader, _) = cluster.leader().await;
    let follower = (leader + 1) % 3;
    cluster.kill(follower).await;
    transfer.compact_away(&cluster).await;
    (cluster, transfer, follower)
}

async fn wait_until_installed(cluster: &Cluster, follower: usize) {
    let is_installed = || async { (cluster.group(follower).status().snapshot_index > 0).then_some(()) };
    eventually_within(2 * crate::common::MAX_WAIT, "a snapshot is installed", is_installed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_behind_a_snapshot_stays_while_it_is_sent_whatever_is_written() {
    let (mut cluster, transfer, follower) = with_absent_follower(Ballast { parts: 1, chunks: 30 }).await;
    cluster.limit_rate_to(follower, 10 * MIB);
    let began = cluster.sent_to(follower);
    cluster.start(follower).await;
    transfer.wait_until_sent(&cluster, follower, began + 4 * MIB, &mut Memory::measure()).await;
    let (leader, leads) = cluster.leader().await;
    let sent = cluster.group(leader).status().snapshot_index;
    // As many as four further snapshots cover, each in an entry of its own.
    for number in 0..200 {
        cluster.propose(&command(format!("meanwhile {number}"))).await;
    }
    let has_newer = || async { (cluster.group(leader).status().snapshot_index > sent + 100).then_some(()) };
    eventually_within(transfer.patience, "newer snapshots are made", has_newer).await;
    cluster.limit_rate_to(follower, 0);
    wait_until_installed(&cluster, follower).await;
    cluster.all_applied().await;
    // On a busy machine the leader may change, which ends what it sends.
    if cluster.leader().await.1.term == leads.term {
        assert!(cluster.node(follower).machine.entries() >= 200, "it came with another snapshot, and not by the log");
    }
    // Once it has caught up, the log is kept for nobody.
    let is_purged = || async {
        cluster.propose(&command("afterwards")).await;
        let (leader, _) = cluster.leader().await;
        (cluster.group(leader).status().purged_index > sent + 100).then_some(())
    };
    eventually_within(transfer.patience, "the log is purged", is_purged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_part_that_nothing_changes_is_written_again_and_sent() {
    let ballast = Ballast { parts: 2, chunks: 2 };
    let (mut cluster, _, follower) = with_absent_follower(ballast).await;
    for leader in (0..3).filter(|node| *node != follower) {
        assert!(cluster.disks[leader].memory().corrupt_pieces(replica_id(leader)) > 0);
    }
    cluster.start(follower).await;
    wait_until_installed(&cluster, follower).await;
    let is_sound = |node: usize| {
        let snapshot = cluster.node(node).store.replica(replica_id(node)).snapshot();
        let parts = snapshot.expect("it is readable").expect("there is one").parts();
        assert_eq!(parts.iter().filter(|part| part.name().starts_with("ballast")).count(), ballast.parts as usize);
        parts.iter().all(|part| part.chunks().all(|chunk| chunk.is_ok()))
    };
    assert!(is_sound(follower));
    assert!((0..3).filter(|node| *node != follower).any(is_sound), "nobody could send it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "three disks of 6 GiB and ten minutes"]
async fn six_gibibytes_arrive_over_a_slow_network_and_memory_stays_flat() {
    let ballast = Ballast { parts: 3, chunks: 2_048 };
    let patience = Duration::from_secs(1_800);
    let transfer = Transfer { ballast, rocks: true, bytes_per_second: 50_000_000, patience };
    let (sent, memory) = transfer.run().await;
    println!("{sent} bytes were sent of {}; memory grew by {} bytes", ballast.bytes(), memory.growth());
    assert!(sent <= ballast.bytes() + 5 * LOST_BYTES, "more was sent again than was lost");
    // Both ends are in this process.
    assert!(memory.growth() <= 2 * 64 * MIB, "memory grew by {} bytes", memory.growth());
}
