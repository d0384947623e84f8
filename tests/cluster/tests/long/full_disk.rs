//! Disks that are nearly full, quite full, and broken: writes are refused, reads go on, and all is well again when there
//! is space.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_cluster_tests::history::{Call, History, LockId};
use holdfast_cluster_tests::{
    Load, LoadPlan, assert_no_violations, call_lock, get_lock, lock_ids, print_summary, read_all_locks, shards_of,
};
use holdfast_testkit::{Cluster, DiskKind, RestClient, Setup, eventually, eventually_within, skip_without_net_ns};
use holdfast_types::Mode;

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const MIB: u64 = 1024 * 1024;
const DISK_MIB: u32 = 320;
const RESERVE_MIB: u64 = 64;

fn small_disk_setup() -> Setup {
    let node_flags = vec![("--disk-reserve-mib", RESERVE_MIB.to_string())];
    Setup { gateways: 1, is_networked: true, disk: Some(DiskKind::Small(DISK_MIB)), node_flags, ..Setup::default() }
}

const ACQUIRE: Call = Call::Acquire { mode: Mode::Write, ttl_ms: 60_000, token: None };

/// A write in each namespace: whether it was answered.
async fn write_everywhere(api: &RestClient, name: &str) -> Vec<Result<(), (u16, String)>> {
    let calls = NAMESPACES.map(async |namespace| match call_lock(api, namespace, name, "p", ACQUIRE).await {
        Ok(answer) => {
            assert!(answer.success, "{answer:?}");
            Ok(())
        }
        Err(error) => Err((error.status, error.code)),
    });
    join_all(calls).await
}

/// Clients of a tenant, and the history of their calls.
struct BackgroundCalls {
    api: RestClient,
    locks: Vec<LockId>,
    history: History,
    load: Load,
}

impl BackgroundCalls {
    async fn start(cluster: &Cluster, tenant: &str) -> Self {
        let tenant = cluster.create_tenant(tenant, &NAMESPACES).await;
        let locks = lock_ids(cluster, &tenant, &NAMESPACES, 5);
        let api = cluster.rest_client(0, &tenant.key);
        let history = History::default();
        let gateways = vec![api.clone()];
        let plan = LoadPlan { clients: 20, locks: locks.clone(), gateways, some_have_short_deadlines: true };
        let load = Load::start(&plan, &history);
        Self { api, locks, history, load }
    }

    /// The node that leads the first of their shards.
    async fn leader(&self, cluster: &Cluster) -> usize {
        cluster.wait_leader(&shards_of(&self.locks)[0]).await.0
    }

    /// Waits for so many calls from now on.
    async fn wait_more(&self, calls: usize) {
        let before = self.history.len();
        eventually_within(Duration::from_secs(30), "the clients go on", async || {
            let more = self.history.len() - before;
            if more > calls { Ok(()) } else { Err(format!("{more} calls")) }
        })
        .await;
    }

    /// Ends the calls, and checks all of them.
    async fn check(self) {
        self.load.stop().await;
        read_all_locks(&self.api, &self.locks, &self.history).await;
        print_summary(&self.history);
        assert_no_violations(&self.history);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_disks_full_writes_are_refused_reads_go_on_and_space_brings_all_back() {
    if skip_without_net_ns("full disks") {
        return;
    }
    let mut cluster = Cluster::start(small_disk_setup()).await;
    let tenant = cluster.create_tenant("full", &NAMESPACES).await;
    let api = cluster.rest_client(0, &tenant.key);
    assert!(write_everywhere(&api, "before").await.iter().all(Result::is_ok));
    for node in 0..3 {
        cluster.disk(node).fill(RESERVE_MIB / 2 * MIB);
    }
    let full_at = Instant::now();
    eventually("writes are refused", async || {
        let answers = write_everywhere(&api, &format!("full-{:?}", full_at.elapsed())).await;
        if answers.iter().all(Result::is_err) { Ok(()) } else { Err(format!("{answers:?}")) }
    })
    .await;
    let asked = Instant::now();
    let refused = write_everywhere(&api, "refused").await;
    println!("refused after {:.1?}: {refused:?}", asked.elapsed());
    assert!(refused.iter().all(|answer| *answer == Err((503, "UNAVAILABLE".to_owned()))), "{refused:?}");
    // Nodes that fill up give leaderships away to those of which they don't know yet that they are full as well.
    eventually("leaderships have settled", async || {
        let views = join_all(NAMESPACES.map(|namespace| get_lock(&api, namespace, "before"))).await;
        if views.iter().all(Result::is_ok) { Ok(()) } else { Err(format!("{views:?}")) }
    })
    .await;
    for namespace in NAMESPACES {
        for _ in 0..20 {
            let view = get_lock(&api, namespace, "before").await.expect("reads go on");
            assert_eq!(view.holds.len(), 1, "{view:?}");
            let view = get_lock(&api, namespace, "refused").await.expect("reads go on");
            assert_eq!(view.holds.len(), 0, "UNAVAILABLE means that nothing was done: {view:?}");
        }
    }
    for node in &mut cluster.nodes {
        node.readiness().await.expect("the node still serves");
    }
    // Leaders can change without disk space: a new one needs nothing that its followers do not have.
    let leader = cluster.wait_leader(&cluster.locks_shard(&tenant, NAMESPACES[0])).await.0;
    cluster.nodes[leader].kill().await;
    for namespace in NAMESPACES {
        eventually_within(Duration::from_secs(10), "reads go on under another leader", async || {
            let view = get_lock(&api, namespace, "before").await.map_err(|error| error.to_string())?;
            assert_eq!(view.holds.len(), 1, "{view:?}");
            Ok(())
        })
        .await;
    }
    cluster.nodes[leader].start();
    cluster.wait_ready().await;
    (0..3).for_each(|node| cluster.disk(node).free());
    let freed_at = Instant::now();
    eventually("writes are answered again", async || {
        let answers = write_everywhere(&api, "after").await;
        if answers.iter().all(Result::is_ok) { Ok(()) } else { Err(format!("{answers:?}")) }
    })
    .await;
    println!("writes are answered again {:.1?} after there is space", freed_at.elapsed());
    cluster.wait_equal_states().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_is_full_gives_its_leaderships_away_and_catches_up_when_there_is_space() {
    if skip_without_net_ns("one full disk") {
        return;
    }
    let mut cluster = Cluster::start(small_disk_setup()).await;
    let calls = BackgroundCalls::start(&cluster, "one-full").await;
    let full = calls.leader(&cluster).await;

    for leave in [RESERVE_MIB / 2 * MIB, 0] {
        cluster.disk(full).fill(leave);
        eventually("the others lead", async || {
            if cluster.nodes[full].readiness_if_running().await.is_none() {
                return Ok(());
            }
            let led = cluster.shards_led_by(full).await;
            if led.is_empty() { Ok(()) } else { Err(format!("it leads {led:?}")) }
        })
        .await;
        calls.wait_more(1_000).await;
        cluster.disk(full).free();
        wait_recovered(&mut cluster, full, leave).await;
    }
    calls.check().await;
    cluster.wait_equal_states().await;
}

/// Waits until the node serves, and starts it again if it has ended: only a disk without any space is a reason.
async fn wait_recovered(cluster: &mut Cluster, node: usize, left: u64) {
    eventually("the node serves again", async || {
        let node = &mut cluster.nodes[node];
        if let Some(status) = node.try_exit_status() {
            println!("with {left} bytes left it ended with {status}");
            assert!(!status.success() && left == 0, "{status}");
            let log = node.log();
            assert!(log.contains("o space left on device"), "it does not say why: {log}");
            node.start();
        }
        node.readiness_if_running().await.unwrap_or_else(|| Err("it has ended".to_owned()))
    })
    .await;
    cluster.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_fails_ends_and_the_others_go_on() {
    if skip_without_net_ns("a failing disk") {
        return;
    }
    if !Path::new("/dev/loop-control").exists() {
        return eprintln!("SKIPPED: a failing disk: there are no loop devices here");
    }
    let disk = Some(DiskKind::Failing(DISK_MIB));
    let mut cluster = Cluster::start(Setup { disk, ..small_disk_setup() }).await;
    let calls = BackgroundCalls::start(&cluster, "failing").await;
    let failing = calls.leader(&cluster).await;
    cluster.disk(failing).fail();
    let failed_at = Instant::now();
    let status = cluster.nodes[failing].wait_for_exit().await;
    println!("it ended with {status}, {:.1?} after its disk began to fail", failed_at.elapsed());
    assert!(!status.success());
    let log = cluster.nodes[failing].log();
    assert!(log.contains("a synced write failed in"), "it does not say why: {log}");
    calls.wait_more(2_000).await;
    calls.check().await;
}
