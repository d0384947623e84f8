//! A snapshot of 1 GiB goes from node to node over a slow network that breaks, and both ends are restarted meanwhile.

use std::time::{Duration, Instant};

use futures::stream::{StreamExt, iter};
use holdfast_testkit::{
    Cluster, RestClient, Setup, eventually, eventually_within, folder_bytes, replica_of, skip_without_net_ns, wait_out,
};
use serde_json::json;

use crate::resource_usage::{PeakMemory, rss};

const MIB: u64 = 1 << 20;
/// Locks of a request, each with as much metadata.
const CLAIMS: usize = 64;
const METADATA_BYTES: usize = 1_000;
/// As many as make 1 GiB of metadata alone.
const REQUESTS: usize = (1 << 30) / (CLAIMS * METADATA_BYTES) + 1;
const CALLS_AT_ONCE: usize = 64;
/// 50 MB a second.
const BITS_PER_SECOND: u64 = 400_000_000;
/// How much more the node has on its disk before each disturbance. Disks have it compressed: the locks of a request have
/// the same metadata.
const STEP: u64 = 25 * MIB;
/// How long the network is cut, each time.
const CUT: Duration = Duration::from_secs(2);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(300);
/// By how much the memory of each end may grow besides the state.
const MAX_GROWTH: u64 = 64 * MIB;
const NAMESPACE: &str = "large";
const RECEIVER: usize = 2;

/// Bytes on the disk of the receiver.
fn received_bytes(cluster: &Cluster) -> u64 {
    folder_bytes(&cluster.data_dir(RECEIVER)).expect("the receiver has a data directory")
}

/// Text that does not compress, another one for each number.
fn noise(number: usize) -> String {
    let mut state = number as u64 + 1;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[(state >> 58) as usize])
    };
    (0..METADATA_BYTES).map(|_| letter()).collect()
}

async fn acquire(api: &RestClient, number: usize) {
    let claim = |claim: usize| json!({"path": [format!("r{number}"), format!("c{claim}")], "mode": "WRITE"});
    let body = json!({
        "process_id": format!("p{number}"),
        "ttl_ms": 3_600_000,
        "resources": (0..CLAIMS).map(claim).collect::<Vec<_>>(),
        "metadata": {"noise": noise(number)},
    });
    api.json(&format!("POST /v1/namespaces/{NAMESPACE}/lock-sets/acquire"), body).await.ok();
}

/// Waits until the receiver has so many bytes more on its disk than at `before`.
async fn wait_received(cluster: &Cluster, before: u64, more: u64) {
    eventually_within(TRANSFER_TIMEOUT, "the snapshot arrives", async || {
        let received = received_bytes(cluster).saturating_sub(before);
        if received >= more { Ok(()) } else { Err(format!("{} MiB", received / MIB)) }
    })
    .await;
}

async fn break_network(cluster: &Cluster, sender: usize) {
    cluster.network().cut_both_ways(&[RECEIVER], &[sender]);
    wait_out(CUT).await;
    cluster.network().heal();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a state of 1 GiB on three nodes; make snapshots runs it"]
async fn one_gibibyte_goes_from_node_to_node_and_the_digests_are_equal() {
    if skip_without_net_ns("a large snapshot") {
        return;
    }
    let node_flags = vec![("--snapshot-after", "500".to_owned()), ("--retain-entries", "10".to_owned())];
    let mut cluster = Cluster::start(Setup { shards: 1, is_networked: true, node_flags, ..Setup::default() }).await;
    let tenant = cluster.create_tenant(NAMESPACE, &[NAMESPACE]).await;
    let limits = json!({"max_state_bytes": 8_u64 << 30, "max_holds_per_namespace": 10_000_000});
    cluster.update_account(&tenant, json!({"limits": limits})).await;
    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    let had = replica_of(&cluster.status(RECEIVER, false).await.unwrap(), &shard).last_log_index;
    cluster.nodes[RECEIVER].kill().await;

    let (api, began) = (cluster.rest_client(0, &tenant.key), Instant::now());
    iter(0..REQUESTS).for_each_concurrent(CALLS_AT_ONCE, |number| acquire(&api, number)).await;
    println!("{REQUESTS} requests of {CLAIMS} locks in {:.1?}", began.elapsed());
    let (sender, _, _) = cluster.wait_leader(&shard).await;
    assert_ne!(sender, RECEIVER);
    eventually("the log of the leader is compacted", async || {
        let replica = replica_of(&cluster.status(sender, false).await?, &shard).clone();
        if replica.purged_index > had { Ok(()) } else { Err(format!("{replica:?}")) }
    })
    .await;

    cluster.network().limit_rate(RECEIVER, BITS_PER_SECOND);
    let sender_before = rss(cluster.nodes[sender].pid().expect("the sender runs"));
    let sender_peak = PeakMemory::start(vec![cluster.nodes[sender].pid().expect("the sender runs")]);
    let (on_disk, began) = (received_bytes(&cluster), Instant::now());
    cluster.nodes[RECEIVER].start();
    for part in 1..=3 {
        wait_received(&cluster, on_disk, part * STEP).await;
        break_network(&cluster, sender).await;
        println!("{} MiB are on the disk after {:.1?}; the network broke", part * STEP / MIB, began.elapsed());
    }
    cluster.nodes[RECEIVER].kill().await;
    cluster.nodes[RECEIVER].start();
    let receiver_peak = PeakMemory::start(vec![cluster.nodes[RECEIVER].pid().expect("the receiver runs")]);
    wait_received(&cluster, on_disk, 4 * STEP).await;
    let sender_most = sender_peak.max()[0];
    cluster.nodes[sender].kill().await;
    cluster.nodes[sender].start();

    eventually_within(TRANSFER_TIMEOUT, "the node has caught up", async || {
        let (leader, _, _) = cluster.wait_leader(&shard).await;
        let first = replica_of(&cluster.status(leader, false).await?, &shard).applied_index;
        let replica = replica_of(&cluster.status(RECEIVER, false).await?, &shard).clone();
        if replica.applied_index >= first { Ok(()) } else { Err(format!("{replica:?}")) }
    })
    .await;
    println!("it has caught up after {:.1?}", began.elapsed());
    let receiver_now = rss(cluster.nodes[RECEIVER].pid().expect("the receiver runs"));
    let receiver_most = receiver_peak.max()[0];
    let compared = cluster.wait_equal_states().await;
    println!("{compared} shards have the same digests on all nodes");
    let figures = [("sender", sender_before, sender_most), ("receiver", receiver_now, receiver_most)];
    for (end, usual, most) in figures {
        println!("{end}: {} MiB of {} MiB", most.saturating_sub(usual) / MIB, most / MIB);
    }
    for (end, usual, most) in figures {
        assert!(most <= usual + MAX_GROWTH, "the {end} had {} MiB, usually {}", most / MIB, usual / MIB);
    }
}
