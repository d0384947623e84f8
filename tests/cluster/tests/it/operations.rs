//! What is done to a running cluster in every week of its life, under a constant load: no request fails, and few wait.

use std::time::Duration;

use holdfast_cluster_tests::history::{History, Outcome, Record};
use holdfast_cluster_tests::{
    DiskProbe, DurationStats, Load, LoadPlan, assert_no_violations, lock_ids, overlap, print_summary, read_all_locks,
};
use holdfast_testkit::{Cluster, Program, Setup, Tenant, eventually, run_dev};
use serde_json::Value;

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
/// What may be exceeded by one call of a hundred at most. Leaders hand over in a tenth of it. A call that meets a leader
/// who left without handing over waits three times as long, until others elect one.
const MAX_P99: Duration = Duration::from_millis(500);
/// Where calls take longer when nothing is done, others use the machine, and times say nothing.
const MAX_QUIET_P99: Duration = Duration::from_millis(50);
const CLIENTS: usize = 20;

/// A loaded cluster, and how the calls of each step went.
struct LoadedCluster {
    cluster: Cluster,
    tenant: Tenant,
    history: History,
    load: Load,
    seen: usize,
    disk: DiskProbe,
    too_slow: Vec<String>,
    /// Whether calls were fast before anything was done: elsewhere their times say nothing.
    is_quiet: bool,
}

impl LoadedCluster {
    async fn start(name: &str, cluster: Cluster) -> Self {
        let tenant = cluster.create_tenant(name, &NAMESPACES).await;
        let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 20);
        let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
        let history = History::default();
        let plan = LoadPlan { clients: CLIENTS, locks, gateways, some_have_short_deadlines: false };
        let load = Load::start_paced(&plan, &history);
        let disk = DiskProbe::start(&cluster.dir()).expect("the disk can be watched");
        let (seen, too_slow, is_quiet) = (0, Vec::new(), false);
        let mut watched = Self { cluster, tenant, history, load, seen, disk, too_slow, is_quiet };
        watched.wait_for_calls(500).await;
        let figures = watched.finish_step("before anything is done").await;
        watched.is_quiet = figures.percentile(99) < MAX_QUIET_P99;
        watched
    }

    async fn wait_for_calls(&self, more: usize) {
        let calls = self.history.len();
        eventually("the clients go on", async || {
            if self.history.len() > calls + more { Ok(()) } else { Err(format!("{} calls", self.history.len())) }
        })
        .await;
    }

    /// Sums a step up: the calls since the last one, without the time in which the disk itself stood still.
    async fn finish_step(&mut self, what: &str) -> DurationStats {
        self.wait_for_calls(200).await;
        let stalls = self.disk.take();
        let times: Vec<Duration> = self.history.with_records(|records| {
            let took = |record: &Record| {
                let (start, end) = (self.history.instant(record.start), self.history.instant(record.end));
                (end - start).saturating_sub(overlap(&stalls, start, end))
            };
            records[self.seen..].iter().map(took).collect()
        });
        self.seen += times.len();
        let figures = DurationStats::from_durations(times);
        println!("{what}: {figures}");
        if figures.percentile(99) > MAX_P99 {
            self.too_slow.push(format!("{what}: {figures}"));
        }
        figures
    }

    async fn run_admin_command(&self, words: &[&str]) -> String {
        let said = self.cluster.run_admin_command(words).await.unwrap_or_else(|error| panic!("{error}"));
        println!("holdfast-admin {}: {said}", words.join(" "));
        said
    }

    async fn stop(mut self) {
        let too_slow = std::mem::take(&mut self.too_slow);
        let figures = self.finish_step("after everything is done").await;
        let is_quiet = self.is_quiet && figures.percentile(99) < MAX_QUIET_P99;
        let Self { cluster, tenant, history, load, .. } = self;
        load.stop().await;
        let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 20);
        read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;
        print_summary(&history);
        assert_no_violations(&history);
        let answered = |records: &[Record]| records.iter().all(|record| matches!(record.outcome, Outcome::Answered(_)));
        assert!(history.with_records(answered), "requests failed: {:?}", history.error_summaries());
        if is_quiet {
            assert_eq!(too_slow, [""; 0]);
        } else {
            println!("times are not judged: calls took long when nothing was done");
        }
    }
}

async fn restart(process: &mut Program) {
    let status = process.terminate().await;
    assert!(status.success(), "{} ended with {status}", process.name());
    process.start();
    process.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_replicas_and_leaders_change_under_load_and_no_request_fails() {
    let cluster = Cluster::start(Setup { gateways: 2, spare_nodes: 1, ..Setup::default() }).await;
    let mut watched = LoadedCluster::start("operations", cluster).await;
    watched.run_admin_command(&["leader", "transfer", "--all"]).await;
    watched.finish_step("every leadership was transferred").await;

    // An additional node. It belongs to the cluster before it runs, and a second one of its name is rejected.
    let address = watched.cluster.spare_nodes[0].address().to_string();
    watched.run_admin_command(&["node", "add", "--node-id", "nd_4", "--address", &address]).await;
    watched.cluster.spare_nodes[0].start();
    watched.cluster.spare_nodes[0].wait_ready().await;
    watched.finish_step("a node was added").await;

    // A move that is cut short, undone, and made again. A shard does not move without its group.
    let shard = watched.cluster.locks_shard(&watched.tenant, "orders");
    let group = watched.cluster.locks_group(&watched.tenant, "orders");
    let there = ["replica", "move", "--group", &group, "--from", "nd_1", "--to", "nd_4"];
    let back = ["replica", "move", "--group", &group, "--from", "nd_4", "--to", "nd_1"];
    let alone = ["replica", "move", "--shard", &shard, "--from", "nd_1", "--to", "nd_4"];
    let refusal = watched.cluster.run_admin_command(&alone).await.unwrap_err();
    assert!(refusal.contains(&format!("shard {shard} is in group {group}")), "{refusal}");
    let cut = watched.cluster.run_admin_command(&[&there[..], &["--timeout", "0"]].concat()).await;
    println!("cut short: {cut:?}");
    watched.run_admin_command(&back).await;
    watched.run_admin_command(&there).await;
    watched.finish_step("a replica was moved, after a move that was cut short and undone").await;

    // A node goes, and its data with it.
    watched.run_admin_command(&["node", "replace", "--node-id", "nd_2", "--with", "nd_4"]).await;
    watched.finish_step("a node was replaced").await;
    let status = watched.cluster.nodes[1].terminate().await;
    assert!(status.success(), "{status}");
    let refusal = watched.cluster.run_admin_command(&["node", "remove", "--node-id", "nd_4"]).await.unwrap_err();
    assert!(refusal.contains("still keeps replicas") && refusal.contains("move them"), "{refusal}");

    // Every process once, with whatever config its file has.
    for node in [0, 2] {
        restart(&mut watched.cluster.nodes[node]).await;
    }
    restart(&mut watched.cluster.spare_nodes[0]).await;
    watched.finish_step("every node was restarted").await;
    for gateway in 0..2 {
        restart(&mut watched.cluster.gateways[gateway]).await;
    }
    watched.finish_step("every gateway was restarted").await;
    watched.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_that_goes_back_or_names_used_ids_is_refused_and_an_old_file_changes_nothing() {
    let mut cluster = Cluster::start(Setup { spare_nodes: 1, ..Setup::default() }).await;
    let old = std::fs::read_to_string(cluster.config_file()).unwrap();
    let address = cluster.spare_nodes[0].address().to_string();
    cluster.run_admin_command(&["node", "add", "--node-id", "nd_4", "--address", &address]).await.unwrap();
    cluster.spare_nodes[0].start();
    cluster.spare_nodes[0].wait_ready().await;
    let twice =
        cluster.run_admin_command(&["node", "add", "--node-id", "nd_4", "--address", "127.0.0.1:1"]).await.unwrap_err();
    assert!(twice.contains("nd_4"), "{twice}");
    let unknown = cluster.run_admin_command(&["node", "remove", "--node-id", "nd_9"]).await.unwrap_err();
    assert!(unknown.contains("there is no node \"nd_9\"; there are nd_1"), "{unknown}");

    // A node that starts with the earlier file continues with its data.
    let new = std::fs::read_to_string(cluster.config_file()).unwrap();
    std::fs::write(cluster.config_file(), &old).unwrap();
    restart(&mut cluster.nodes[0]).await;
    assert!(cluster.nodes[0].log().contains("an earlier one than the node had"));
    assert_eq!(cluster.status(0, false).await.unwrap().config_version, 2);
    let shown = cluster.run_admin_command(&["config", "show"]).await.unwrap();
    assert_eq!(shown.trim(), new.trim());
    std::fs::write(cluster.config_file(), &new).unwrap();

    // Another data directory under the same name: a second node with an id in use.
    let data = cluster.dir().join("second").display().to_string();
    cluster.nodes[1].kill().await;
    cluster.nodes[1].set_argument("--data-dir", &data);
    cluster.nodes[1].start();
    eventually("it is refused, with what to do", async || {
        let log = cluster.nodes[0].log();
        if log.contains("or two processes run as nd_2: stop one") { Ok(()) } else { Err("it is not".to_owned()) }
    })
    .await;
    assert!(cluster.nodes[1].readiness().await.is_err());
}

/// Waits until every process can serve. Nodes that encrypt are seen through a gateway.
async fn wait_serving(cluster: &mut Cluster) {
    for gateway in &mut cluster.gateways {
        gateway.wait_ready().await;
    }
    eventually("every node is ready", async || {
        let shown: Value =
            cluster.operator_client(0).fetch("GET /v1/cluster", None).await.map_err(|error| error.to_string())?;
        let nodes = shown["nodes"].as_array().cloned().unwrap_or_default();
        if nodes.len() == 3 && nodes.iter().all(|node| node["ready"] == true) { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_under_load_and_no_request_fails() {
    let mut cluster = Cluster::prepare(Setup { gateways: 2, ..Setup::default() }).await;
    let dir = cluster.dir().join("certs");
    let renew = || run_dev(&["certs", "--out", &dir.display().to_string()]).expect("certificates can be made");
    renew();
    for process in cluster.nodes.iter_mut().chain(&mut cluster.gateways) {
        for (flag, file) in [("cert", "server.pem"), ("key", "server-key.pem"), ("ca", "ca.pem")] {
            process.set_argument(&format!("--cluster-tls-{flag}-file"), &dir.join(file).display().to_string());
        }
        process.start();
    }
    wait_serving(&mut cluster).await;
    let mut watched = LoadedCluster::start("certificates", cluster).await;
    for node in 0..3 {
        let before = std::fs::read(dir.join("server.pem")).unwrap();
        renew();
        assert_ne!(std::fs::read(dir.join("server.pem")).unwrap(), before);
        watched.finish_step("certificates were renewed").await;
        // Processes that started with the new certificates and those that reloaded them connect to one another.
        let status = watched.cluster.nodes[node].terminate().await;
        assert!(status.success(), "{status}");
        watched.cluster.nodes[node].start();
        wait_serving(&mut watched.cluster).await;
        watched.finish_step("a node was restarted with them").await;
    }
    watched.stop().await;
}
