//! A command that no replica can apply: what the operator's tool shows of it, and how the operator gets the shard back
//! without what other namespaces have in it.
//!
//! The programs have no such fault, so the nodes run in this process, with an observer that panics. The gateway and the
//! operator's tool are the programs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_cluster_tests::get_lock;
use holdfast_core::shard::ShardState;
use holdfast_core::{Reply, Response, codec};
use holdfast_node::{AdminEndpoints, ApplyObserver, Node, NodeOptions, serve};
use holdfast_replication::EntryHeader;
use holdfast_routing::TcpDialer;
use holdfast_testkit::{Cluster, Setup, Tenant, eventually, eventually_within};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

const NODES: usize = 3;
/// The lock whose grant nobody can apply.
const POISON: &str = "poison-pill";
/// How long the caller waits who gets no answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// The command waits itself until the shard serves everywhere.
const QUARANTINE_TIMEOUT: Duration = Duration::from_secs(180);

/// Panics on every replica, each time it applies a grant of [`POISON`].
struct PanickingObserver;

impl ApplyObserver for PanickingObserver {
    fn initialized(&self, _: &str, _: &ShardState) {}

    fn applied(&self, _: &str, _: EntryHeader, commands: &[Bytes], replies: &[Bytes], _: &ShardState) {
        let names = |bytes: &Bytes| bytes.windows(POISON.len()).any(|part| part == POISON.as_bytes());
        let grants = |bytes: &Bytes| {
            codec::decode::<Reply>(bytes).is_ok_and(|reply| matches!(reply.outcome, Ok(Response::Acquired { .. })))
        };
        let fails = commands.iter().zip(replies).any(|(command, reply)| names(command) && grants(reply));
        assert!(!fails, "a bug in the state machine");
    }

    fn restored(&self, _: &str, _: &ShardState) {}
}

struct RunningNode {
    node: Arc<Node>,
    _stop: oneshot::Sender<()>,
}

impl RunningNode {
    async fn start(cluster: &Cluster, number: usize) -> Self {
        let config = cluster.map.config().clone();
        let (id, address) = (config.nodes[number].id.clone(), config.nodes[number].address.clone());
        let secret = cluster.secrets.cluster_secret().clone();
        let options = NodeOptions::new(id, config, secret, cluster.data_dir(number));
        let node = Node::open(&options, Arc::new(TcpDialer)).expect("the store opens");
        let node = Arc::new(node.with_observer(Arc::new(PanickingObserver)));
        let listener = TcpListener::bind(&address).await.expect("the port is free");
        let endpoints = AdminEndpoints { metrics: Arc::new(String::new), is_operator: Arc::new(|_| false) };
        let (stop, stopped) = oneshot::channel::<()>();
        let served = Arc::clone(&node);
        tokio::spawn(async move {
            let stopped = async move { drop(stopped.await) };
            serve(listener, None, &served, endpoints, stopped).await
        });
        node.start_replicas(&options).await.expect("the replicas start");
        Self { node, _stop: stop }
    }
}

/// The nodes of this process, a gateway, and a tenant with namespaces.
struct PoisonedCluster {
    cluster: Cluster,
    nodes: Vec<RunningNode>,
    tenant: Tenant,
    /// The first two are in one shard, the last one is in another.
    namespaces: [String; 3],
}

impl PoisonedCluster {
    async fn start() -> Self {
        let mut cluster = Cluster::prepare(Setup::default()).await;
        let mut nodes = Vec::new();
        for number in 0..NODES {
            nodes.push(RunningNode::start(&cluster, number).await);
        }
        for running in &nodes {
            let is_ready = running.node.not_ready();
            eventually("the node is ready", async || is_ready().map_or(Ok(()), Err)).await;
        }
        cluster.gateways[0].start();
        cluster.wait_ready().await;
        let tenant = cluster.create_tenant("poison", &[]).await;
        let shard = |name: &String| cluster.locks_shard(&tenant, name);
        let mut names: Vec<String> = (0..64).map(|number| format!("ns-{number}")).collect();
        let first = names.remove(0);
        let of_same = names.iter().find(|name| shard(name) == shard(&first)).expect("some share a shard").clone();
        let of_other = names.iter().find(|name| shard(name) != shard(&first)).expect("there are more shards").clone();
        let namespaces = [first, of_same, of_other];
        let api = cluster.rest_client(0, &tenant.key);
        for name in &namespaces {
            api.create_namespace(name, name).await.expect("it is created");
        }
        Self { cluster, nodes, tenant, namespaces }
    }

    async fn run_admin_command(&self, words: &[&str]) -> Result<String, String> {
        self.cluster.run_admin_command(words).await
    }

    /// What the nodes say that they failed at. An error as long as they do not answer.
    async fn poison_records(&self) -> Result<Vec<Value>, String> {
        let shown = self.run_admin_command(&["--output", "json", "inspect", "poison"]).await?;
        Ok(shown.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect())
    }

    /// Waits until all nodes have failed for good, alike, and returns one of the records.
    async fn wait_until_all_failed(&self) -> Value {
        let place = |record: &Value| ["shard", "term", "index", "step", "namespace"].map(|name| record[name].clone());
        let records = eventually("all nodes have failed", async || {
            let records = self.poison_records().await?;
            if records.len() == NODES { Ok(records) } else { Err(format!("{records:?}")) }
        })
        .await;
        assert!(records.iter().all(|record| place(record) == place(&records[0])), "{records:?}");
        let inspect = async || self.run_admin_command(&["inspect", "poison"]).await;
        let text = eventually("the nodes answer", inspect).await;
        assert!(text.contains("has failed on nd_1, nd_2, nd_3") && !text.contains("DIFFER"), "{text}");
        records.into_iter().next().expect("there are some")
    }

    async fn quarantine(&self, record: &Value, later: u64) -> Result<String, String> {
        let index = record["index"].as_u64().expect("it is a number") + later;
        let text = |name: &str| record[name].as_str().expect("it is text").to_owned();
        let (shard, namespace, index) = (text("shard"), text("namespace"), index.to_string());
        let words = ["quarantine", "--shard", &shard, "--index", &index, "--namespace", &namespace];
        self.run_admin_command(&words).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sets_aside_what_all_nodes_fail_at_and_no_other_namespace_loses_anything() {
    let running = PoisonedCluster::start().await;
    let [poisoned, other, elsewhere] = &running.namespaces;
    let api = running.cluster.rest_client(0, &running.tenant.key);
    let kept = api.acquire(other, "kept", "owner").await.expect("it serves");
    let unknown = api.with_timeout(CALL_TIMEOUT).acquire(poisoned, POISON, "owner").await;
    let unknown = unknown.expect_err("nobody can apply it");
    assert_eq!((unknown.status, &*unknown.code), (504, "DEADLINE_EXCEEDED"), "{unknown}");

    let record = running.wait_until_all_failed().await;
    assert_eq!(record["shard"], running.cluster.locks_shard(&running.tenant, poisoned));
    assert!(record["message"].as_str().is_some_and(|message| message.contains("a bug in the state machine")));
    assert!(record["command"].as_str().is_some_and(|command| command.contains(POISON)), "{record}");
    api.acquire(elsewhere, "meanwhile", "owner").await.expect("other shards serve");
    let refusal = running.quarantine(&record, 1).await.expect_err("they failed at another entry");
    assert!(refusal.contains(&format!("failed at entry {}", record["index"])), "{refusal}");
    // It is refused until the leader knows that the shard serves nowhere.
    let done = eventually_within(QUARANTINE_TIMEOUT, "it is set aside", async || running.quarantine(&record, 0).await);
    assert!(done.await.contains("serves on every node that answers"));
    let left = eventually("the nodes answer", async || running.poison_records().await).await;
    assert_eq!(left, [] as [Value; 0]);

    let refused = api.acquire(poisoned, "any", "owner").await.expect_err("it stands still");
    assert!(refused.code == "UNAVAILABLE" && refused.detail.contains("quarantined after a fault"), "{refused}");
    let holds = get_lock(&api, other, "kept").await.expect("the shard serves").holds;
    assert_eq!(holds.iter().map(|hold| hold.token).collect::<Vec<_>>(), [kept]);
    let next = api.acquire(other, "next", "owner").await.expect("the shard serves");
    assert!(next > kept, "{next} is not after {kept}");

    // Deleting it is the way out for its tenant.
    api.delete(&format!("/v1/namespaces/{poisoned}")).await.expect("that works");
    api.create_namespace(poisoned, "again").await.expect("the name is free");
    eventually("it serves anew", async || {
        api.acquire(poisoned, "any", "owner").await.map_err(|error| error.to_string())
    })
    .await;
    for stopping in running.nodes {
        stopping.node.stop().await;
    }
}
