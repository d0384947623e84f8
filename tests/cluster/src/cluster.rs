//! A cluster of real processes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::join_all;
use holdfast_auth::ServiceSigner;
use holdfast_bootstrap::Secrets;
use holdfast_cluster::{Application, ShardMap};
use holdfast_core::{AccountId, NamespaceRef};
use holdfast_proto::internal::StatusAnswer;
use holdfast_routing::{Router, RoutingOptions, TcpDialer};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::disk::Disk;
use crate::eventually::eventually;
use crate::history::LockId;
use crate::latency_proxy::LatencyProxy;
use crate::network::Network;
use crate::node_client::NodeClient;
use crate::process::Process;
use crate::programs::run_admin;
use crate::rest_client::RestClient;
use crate::setup::{PreparedCluster, PreparedStandalone, Setup, config_file, data_dir};

/// Tests of one program run side by side, and those with a cluster take turns: figures of time mean nothing while another
/// test loads the machine, and there is one network for each test process.
static MACHINE_LOCK: std::sync::LazyLock<Arc<Mutex<()>>> = std::sync::LazyLock::new(Arc::default);

/// Three nodes and their gateways. Only one exists at a time in a test process: whoever wants another one waits until this
/// one is dropped. All processes end with it.
pub struct Cluster {
    /// The nodes, `nd_1` first.
    pub nodes: Vec<Process>,
    /// Nodes that do not belong to the cluster yet, `nd_4` first; nothing starts them but the test.
    pub spare_nodes: Vec<Process>,
    /// The gateways.
    pub gateways: Vec<Process>,
    /// The topology.
    pub map: ShardMap,
    secrets: Secrets,
    http: reqwest::Client,
    network: Option<Network>,
    disks: Vec<Disk>,
    slow_ways: Vec<LatencyProxy>,
    // After the processes: their data goes when they are gone.
    dir: Option<TempDir>,
    _machine: OwnedMutexGuard<()>,
}

/// An account with a key and no limit of rate.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// The account.
    pub account: AccountId,
    /// Its key, with all scopes.
    pub key: String,
}

impl Cluster {
    /// Starts all processes and waits until they are ready.
    pub async fn start(setup: Setup) -> Self {
        let mut cluster = Self::prepare(setup).await;
        for process in cluster.nodes.iter_mut().chain(&mut cluster.gateways) {
            process.start();
        }
        cluster.wait_ready().await;
        cluster
    }

    /// Sets everything up and starts nothing.
    pub async fn prepare(setup: Setup) -> Self {
        let machine = Arc::clone(&MACHINE_LOCK).lock_owned().await;
        let parts = PreparedCluster::prepare(setup);
        Self {
            nodes: parts.nodes(),
            spare_nodes: parts.spare_nodes(),
            gateways: parts.gateways(),
            map: ShardMap::new(parts.config).expect("the config is valid"),
            secrets: parts.secrets,
            http: parts.http,
            network: parts.network,
            disks: parts.disks,
            slow_ways: parts.latency_proxies,
            dir: Some(parts.dir),
            _machine: machine,
        }
    }

    /// Starts one process with everything in it, as the only gateway of a cluster without nodes of their own, and waits
    /// until it is ready.
    pub async fn start_standalone() -> Self {
        let machine = Arc::clone(&MACHINE_LOCK).lock_owned().await;
        let parts = PreparedStandalone::make();
        let mut cluster = Self {
            nodes: Vec::new(),
            spare_nodes: Vec::new(),
            gateways: vec![parts.process],
            map: ShardMap::new(parts.config).expect("the config is valid"),
            secrets: parts.secrets,
            http: parts.http,
            network: None,
            disks: Vec::new(),
            slow_ways: Vec::new(),
            dir: Some(parts.dir),
            _machine: machine,
        };
        cluster.gateways[0].start();
        cluster.wait_ready().await;
        cluster
    }

    /// Waits until every process that runs can serve.
    pub async fn wait_ready(&mut self) {
        let started = self.nodes.iter_mut().chain(&mut self.gateways).filter(|process| process.is_started());
        join_all(started.map(Process::wait_ready)).await;
    }

    /// The network between the processes; its places are the nodes and then the gateways. Panics when the cluster was
    /// set up without one.
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("the cluster was set up with a network")
    }

    /// Whether it was set up with a network.
    pub fn has_network(&self) -> bool {
        self.network.is_some()
    }

    /// Where a node keeps its data.
    pub fn data_dir(&self, node: usize) -> PathBuf {
        data_dir(&self.dir(), self.nodes[node].name())
    }

    /// The disk of a node. Panics when the cluster was set up without.
    pub fn disk(&self, node: usize) -> &Disk {
        &self.disks[node]
    }

    /// The way to a node, from all other processes. Panics when the cluster was set up without.
    pub fn latency_proxy(&self, node: usize) -> &LatencyProxy {
        &self.slow_ways[node]
    }

    /// The topology that processes read when they start.
    pub fn config_file(&self) -> PathBuf {
        config_file(&self.dir())
    }

    /// Returns the flags by which `holdfast-admin` finds the nodes.
    pub fn cluster_flags(&self) -> [String; 4] {
        let text = |path: PathBuf| path.display().to_string();
        let secret = text(self.secrets.cluster_secret_file());
        ["--cluster-config".into(), text(self.config_file()), "--cluster-secret-file".into(), secret]
    }

    /// Runs `holdfast-admin` on the nodes, concurrently with everything else.
    ///
    /// # Errors
    /// If it fails: its standard error.
    pub async fn run_admin_command(&self, words: &[&str]) -> Result<String, String> {
        let mut arguments: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        arguments.extend(self.cluster_flags());
        let running =
            tokio::task::spawn_blocking(move || run_admin(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
        running.await.expect("the tool can be waited for")
    }

    /// A folder for the test, beside the data.
    pub fn dir(&self) -> PathBuf {
        self.dir.as_ref().map(|dir| dir.path().to_owned()).expect("it is there until the cluster is dropped")
    }

    /// Makes an account of that name with a key and namespaces, and without a limit of rate.
    pub async fn create_tenant(&self, name: &str, namespaces: &[&str]) -> Tenant {
        let tenant = self.create_tenant_with_default_limits(name).await;
        let unlimited = json!({"max_number_of_namespaces": 10_000, "limits": {"max_requests_per_second": 0}});
        send_json(&self.operator_client(0), Method::PATCH, &format!("/v1/accounts/{}", tenant.account), unlimited)
            .await;
        let api = self.rest_client(0, &tenant.key);
        for namespace in namespaces {
            api.create_namespace(namespace, &format!("first {namespace}"))
                .await
                .unwrap_or_else(|error| panic!("{namespace}: {error}"));
        }
        tenant
    }

    /// Makes an account of that name with a key and the limits that accounts have from the start.
    pub async fn create_tenant_with_default_limits(&self, name: &str) -> Tenant {
        let operator = self.operator_client(0);
        let body = json!({"email": format!("{name}@example.com"), "full_name": name});
        let account = send_json(&operator, Method::POST, "/v1/accounts", body).await;
        let id = account["id"].as_str().expect("an account has an id").to_owned();
        let key = send_json(&operator, Method::POST, &format!("/v1/accounts/{id}/api-keys"), json!({})).await;
        let key = key["api_key"].as_str().expect("a new key is shown").to_owned();
        Tenant { account: id.parse().expect("the id of an account can be read"), key }
    }

    /// Calls a gateway with a key.
    pub fn rest_client(&self, gateway: usize, key: &str) -> RestClient {
        let base = format!("http://{}", self.gateways[gateway].address());
        RestClient::new(self.http.clone(), base, key.to_owned())
    }

    /// Calls a gateway as the operator.
    pub fn operator_client(&self, gateway: usize) -> RestClient {
        self.rest_client(gateway, self.secrets.operator_token().reveal().expose())
    }

    /// Calls a node by the internal protocol.
    pub fn node_client(&self, node: usize) -> NodeClient {
        NodeClient::of_cluster(self.nodes[node].address(), self.secrets.cluster_secret())
    }

    /// The way to the shards that gateways use, without a gateway: for loads that no gateway is to be measured with.
    pub fn router(&self, caller: &str) -> Router {
        let signer = ServiceSigner::new(self.secrets.cluster_secret(), "cluster test");
        Router::start(self.map.clone(), signer, caller.to_owned(), Arc::new(TcpDialer), RoutingOptions::default())
    }

    /// The shard of a namespace's locks.
    pub fn locks_shard(&self, tenant: &Tenant, namespace: &str) -> String {
        self.map.shard_of(Application::Locks, tenant.account.0, namespace).id.clone()
    }

    /// The shard of a tenant's namespaces.
    pub fn namespaces_shard(&self, tenant: &Tenant) -> String {
        self.map.shard_of(Application::Namespaces, tenant.account.0, "").id.clone()
    }

    /// How the nodes know a namespace. Panics when it is not there.
    pub async fn namespace_ref(&self, tenant: &Tenant, name: &str) -> NamespaceRef {
        let path = format!("/v1/namespaces/{name}");
        let shown: Value =
            self.rest_client(0, &tenant.key).json(Method::GET, &path, None).await.expect("it can be read");
        let incarnation = shown["id"].as_str().and_then(|id| id.parse().ok()).expect("a namespace has an id");
        NamespaceRef { account: tenant.account, name: name.to_owned(), incarnation }
    }

    /// A lock of a tenant, for the history.
    pub fn lock(&self, tenant: &Tenant, namespace: &str, name: &str) -> LockId {
        let shard = self.locks_shard(tenant, namespace);
        LockId { shard: shard.into(), namespace: namespace.into(), name: name.into() }
    }

    /// So many locks in each of these namespaces.
    pub fn locks(&self, tenant: &Tenant, namespaces: &[&str], in_each: usize) -> Vec<LockId> {
        let in_one = |namespace: &&str| -> Vec<LockId> {
            (1..=in_each).map(|lock| self.lock(tenant, namespace, &format!("lock-{lock}"))).collect()
        };
        namespaces.iter().flat_map(in_one).collect()
    }

    /// The shards that a node leads, as it says itself. Panics when it does not answer.
    pub async fn shards_led_by(&self, node: usize) -> Vec<String> {
        let status = self.status(node, false).await.unwrap_or_else(|error| panic!("{error}"));
        let led = status.replicas.into_iter().filter(|replica| replica.leader == replica.replica);
        led.map(|replica| replica.shard).collect()
    }

    /// A look at every replica of a node.
    pub async fn status(&self, node: usize, with_digests: bool) -> Result<StatusAnswer, String> {
        let status = self.node_client(node).status(with_digests).await;
        status.map_err(|error| format!("{}: {error}", self.nodes[node].name()))
    }

    /// The node that leads a shard, its replica and the term, as that replica itself says. Waits until there is one.
    pub async fn wait_leader(&self, shard: &str) -> (usize, u64, u64) {
        eventually(&format!("{shard} has a leader"), async || {
            for node in 0..self.nodes.len() {
                let Ok(status) = self.status(node, false).await else { continue };
                let found = status.replicas.iter().find(|replica| replica.shard == shard);
                if let Some(replica) = found.filter(|replica| replica.leader == replica.replica) {
                    return Ok((node, replica.replica, replica.term));
                }
            }
            Err("no replica says that it leads".to_owned())
        })
        .await
    }

    /// How a shard stands, replica by replica, for people.
    pub async fn describe(&self, shard: &str) -> String {
        let statuses = join_all((0..self.nodes.len()).map(|node| self.status(node, false))).await;
        let lines = statuses.into_iter().map(|status| match status {
            Ok(status) => {
                // A node that has just started has none yet.
                let replica = status.replicas.iter().find(|replica| replica.shard == shard);
                format!("{}: {replica:?}", status.node_id)
            }
            Err(error) => error,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Waits until all nodes have applied the same of every shard and their states are the same, byte for byte.
    /// Returns how many shards were compared.
    pub async fn wait_equal_states(&self) -> usize {
        eventually("all replicas hold the same", async || {
            let statuses = join_all((0..self.nodes.len()).map(|node| self.status(node, true))).await;
            let statuses: Vec<StatusAnswer> = statuses.into_iter().collect::<Result<_, _>>()?;
            compare_states(&statuses)
        })
        .await
    }
}

/// Replicas at the same index must have the same digest; that they are at different indexes is no fault.
fn compare_states(statuses: &[StatusAnswer]) -> Result<usize, String> {
    let mut late = None;
    for replica in &statuses[0].replicas {
        for other in &statuses[1..] {
            let other = other.replicas.iter().find(|other| other.shard == replica.shard);
            let Some(other) = other else { return Err(format!("{} is not everywhere", replica.shard)) };
            if replica.applied_index != other.applied_index || replica.state_digest.is_empty() {
                late = Some(format!("{}: {} and {}", replica.shard, replica.applied_index, other.applied_index));
            } else if !other.state_digest.is_empty() {
                let index = replica.applied_index;
                assert_eq!(replica.state_digest, other.state_digest, "{} differs at {index}", replica.shard);
            }
        }
    }
    late.map_or(Ok(statuses[0].replicas.len()), Err)
}

/// The shards that these locks are in.
pub fn shards_of(locks: &[LockId]) -> Vec<String> {
    let shards: BTreeSet<String> = locks.iter().map(|lock| lock.shard.to_string()).collect();
    shards.into_iter().collect()
}

async fn send_json(api: &RestClient, method: Method, path: &str, body: Value) -> Value {
    api.json(method, path, Some(body)).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let keep = std::thread::panicking() || std::env::var_os("HOLDFAST_KEEP_DATA").is_some();
        if let (true, Some(dir)) = (keep, self.dir.take()) {
            eprintln!("data and logs of the processes are kept in {}", dir.keep().display());
        }
    }
}
