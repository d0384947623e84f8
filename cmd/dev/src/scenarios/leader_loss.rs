//! Takes the leader of a namespace's locks away: `dev cluster up` kills its process, or, where that can't be done, the
//! leadership moves to another node.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_auth::read_secret_file;
use holdfast_cluster::{Application, shard_key};
use holdfast_operator::ClusterFiles;
use holdfast_operator::api::text_field;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::time::timeout;

use super::MAX_WAIT;
use super::lock_table::LockTable;
use super::runner::{POLL_INTERVAL, ScenarioRunner};
use crate::cluster_up::SOCKET_FILE;

const ADMIN_PROGRAM: &str = "holdfast-admin";
/// Where `dev cluster up` has the operator token, in the directory of the cluster.
const TOKEN_FILE: &str = "operator.token";
/// Fewer replicas have no majority without one of them.
const MIN_REPLICAS: usize = 3;
const ELECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a killed node to be ready again.
const RETURN_TIMEOUT: Duration = Duration::from_secs(60);

/// The shard of the namespace's locks.
#[derive(Debug)]
pub(super) struct LockShard {
    id: String,
    /// The node that leads it, if it is known.
    leader: Option<String>,
    /// Another node, which can lead it.
    successor: String,
    replicas: usize,
}

impl LockShard {
    /// Returns the shard as it is now.
    pub(super) async fn find(stage: &ScenarioRunner) -> Result<Self> {
        Self::in_view(&stage.cluster_view().await?, locks_key(stage))
    }

    fn in_view(cluster: &Value, key: u32) -> Result<Self> {
        let bound = |shard: &Value, name: &str| u32::from_str_radix(shard[name].as_str()?, 16).ok();
        let has_key = |shard: &&Value| {
            let bounds = bound(shard, "lower_bound").zip(bound(shard, "upper_bound"));
            shard["application"] == "Locks" && bounds.is_some_and(|(lower, upper)| (lower..=upper).contains(&key))
        };
        let shard = cluster["shards"].as_array().into_iter().flatten().find(has_key);
        let shard = shard.context("no shard has the locks of the namespace")?;
        let replicas = shard["replicas"].as_array().map(Vec::as_slice).unwrap_or_default();
        let other = replicas.iter().find(|replica| replica["node_id"] != shard["leader"]);
        let other = other.context("there is no other node that can lead; `make cluster` runs three of them")?;
        Ok(Self {
            id: text_field(shard, "id")?.to_owned(),
            leader: shard["leader"].as_str().map(str::to_owned),
            successor: text_field(other, "node_id")?.to_owned(),
            replicas: replicas.len(),
        })
    }
}

/// Returns the key of the namespace's locks.
fn locks_key(stage: &ScenarioRunner) -> u32 {
    shard_key(Application::Locks, stage.account().0, stage.namespace())
}

/// A node whose process was killed. It stays down for as long as this value lives.
pub(super) struct DownNode {
    id: String,
    /// `dev cluster up` starts the node again when this closes.
    connection: BufReader<UnixStream>,
}

/// Takes the leader away, and returns once another node leads. Returns the node if its process was killed.
pub(super) async fn lose_leader(
    stage: &ScenarioRunner,
    files: &ClusterFiles,
    table: &mut LockTable,
) -> Result<Option<DownNode>> {
    match connect_to_parent(stage, files).await {
        Ok((connection, shard, leader)) => {
            stage.print_step("The leader dies: its process is killed with SIGKILL. The locks were in its memory")?;
            let down = kill(stage, &shard, leader, connection).await?;
            down.await_election(stage, table).await?;
            Ok(Some(down))
        }
        Err(reason) => {
            stage.print_warning(format_args!(
                "NO PROCESS IS KILLED: {reason:#}.\n!! The leadership is moved to another node instead, and the old \
                 leader lives on"
            ))?;
            stage.print_step("The leader changes: another node leads. The locks were in the memory of the old one")?;
            transfer_leadership(stage, files, &LockShard::find(stage).await?).await?;
            Ok(None)
        }
    }
}

/// Returns a connection to the `dev cluster up` that started the nodes, the shard, and the leader, whose process may be
/// killed at once. An error says why it can't or must not be.
async fn connect_to_parent(
    stage: &ScenarioRunner,
    files: &ClusterFiles,
) -> Result<(BufReader<UnixStream>, LockShard, String)> {
    let dir = files.cluster_config.parent().unwrap_or(Path::new(""));
    let socket = dir.join(SOCKET_FILE);
    let connection = UnixStream::connect(&socket).await;
    let connection =
        connection.with_context(|| format!("no `dev cluster up` of this machine answers at {}", socket.display()))?;
    // Each first start makes another token, so the service that has accepted this one is the cluster of this directory.
    // The two are compared here, since any other service must not learn it.
    let token = read_secret_file(&dir.join(TOKEN_FILE))?.operator_token()?;
    let is_same = stage.has_operator_token(&token);
    ensure!(is_same, "the service at --url is another cluster than that of {}", socket.display());
    // Leaderships move, so nothing else is between this look at the cluster and the kill.
    let cluster = stage.cluster_view().await?;
    let shard = LockShard::in_view(&cluster, locks_key(stage))?;
    let leader = shard.leader.clone().context("nobody knows the leader right now")?;
    check_can_lose(&cluster, &shard, &leader, stage.port())?;
    Ok((BufReader::new(connection), shard, leader))
}

/// Checks that the cluster goes on without its leader, and so does this program, whose gateway has this port.
fn check_can_lose(cluster: &Value, shard: &LockShard, leader: &str, port: Option<u16>) -> Result<()> {
    ensure!(
        shard.replicas >= MIN_REPLICAS,
        "{} has {} replicas, which have no majority without one of them",
        shard.id,
        shard.replicas
    );
    let nodes = || cluster["nodes"].as_array().into_iter().flatten();
    if let Some(node) = nodes().find(|node| node["ready"] != true) {
        bail!("{} is not ready, and two missing nodes are too many", text_field(node, "id")?);
    }
    let node = nodes().find(|node| node["id"] == leader).context("the leader is no node of the cluster")?;
    let gateway = node["gateway_address"].as_str().and_then(|address| address.parse::<SocketAddr>().ok());
    if gateway.is_some_and(|gateway| Some(gateway.port()) == port) {
        bail!("{leader}, the leader, is also the gateway at --url; the address of another one lets it be killed");
    }
    Ok(())
}

/// Has the process of the leader killed.
async fn kill(
    stage: &ScenarioRunner,
    shard: &LockShard,
    leader: String,
    mut connection: BufReader<UnixStream>,
) -> Result<DownNode> {
    stage.print_message("to `dev cluster up`: kill", &json!(leader))?;
    connection.write_all(format!("{leader}\n").as_bytes()).await.context("asking `dev cluster up`")?;
    let mut line = String::new();
    let read = timeout(MAX_WAIT, connection.read_line(&mut line)).await;
    read.context("`dev cluster up` does not answer")?.context("the answer of `dev cluster up`")?;
    let answer: Value = serde_json::from_str(&line).context("the answer of `dev cluster up`")?;
    stage.print_message("  answer:", &answer)?;
    let Some(pid) = answer["pid"].as_u64() else { bail!("not as expected: {leader} was not killed: {answer}") };
    stage.check(true, format_args!("the process {pid} of {leader}, which led {}, is gone", shard.id))?;
    Ok(DownNode { id: leader, connection })
}

impl DownNode {
    /// Waits until another node leads, and prints what becomes of the table meanwhile.
    async fn await_election(&self, stage: &ScenarioRunner, table: &mut LockTable) -> Result<()> {
        let deadline = Instant::now() + ELECTION_TIMEOUT;
        loop {
            table.read(stage).await?;
            let shard = LockShard::find(stage).await?;
            if let Some(leader) = shard.leader.filter(|leader| *leader != self.id) {
                return stage.check(true, format_args!("{leader} leads {} now: the others elected it", shard.id));
            }
            if Instant::now() >= deadline {
                bail!("not as expected: no other node leads {} after {} s", shard.id, ELECTION_TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Has the node started again, and waits until it is ready.
    pub(super) async fn bring_back(self, stage: &ScenarioRunner) -> Result<()> {
        let Self { id, connection } = self;
        drop(connection);
        let (deadline, mut printed) = (Instant::now() + RETURN_TIMEOUT, Value::Null);
        loop {
            let cluster = stage.cluster_view().await?;
            let node = cluster["nodes"].as_array().into_iter().flatten().find(|node| node["id"] == id.as_str());
            let node = node.with_context(|| format!("{id} is no node of the cluster any more"))?;
            let state = json!({"ready": node["ready"], "not_ready_reason": node["not_ready_reason"]});
            if state != printed {
                stage.print_message(&format!("  {id}:"), &state)?;
                printed = state;
            }
            if node["ready"] == true {
                return stage.check(true, format_args!("{id} is back, as a follower with all that it had on disk"));
            }
            if Instant::now() >= deadline {
                bail!("not as expected: {id} is not ready again after {} s", RETURN_TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Lets another node lead the shard, with the others of its group.
async fn transfer_leadership(stage: &ScenarioRunner, files: &ClusterFiles, shard: &LockShard) -> Result<()> {
    let own = std::env::current_exe().context("this program's own file can't be found")?;
    let program = own.with_file_name(ADMIN_PROGRAM);
    ensure!(program.is_file(), "the program {} is missing: run `make build`", program.display());
    let words = ["leader", "transfer", "--shard", shard.id.as_str(), "--to", shard.successor.as_str()];
    stage.print_message(&format!("{ADMIN_PROGRAM} {}", words.join(" ")), &Value::Null)?;
    let mut command = Command::new(&program);
    command.args(words).arg("--cluster-config").arg(&files.cluster_config);
    command.arg("--cluster-secret-file").arg(&files.cluster_secret_file).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.with_context(|| format!("{} can't be started", program.display()))?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{ADMIN_PROGRAM}: {}", problem.trim());
    stage.check(true, format_args!("{} leads {}", shard.successor, shard.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Value {
        let node = |id: &str, gateway: &str| json!({"id": id, "ready": true, "gateway_address": gateway});
        let replicas = ["nd_1", "nd_2", "nd_3"].map(|id| json!({"node_id": id}));
        let shard = |application: &str, id: &str, bounds: [&str; 2]| {
            json!({"id": id, "application": application, "lower_bound": bounds[0], "upper_bound": bounds[1],
                "leader": "nd_1", "replicas": replicas})
        };
        let shards = [
            shard("Namespaces", "namespaces_00", ["00000000", "ffffffff"]),
            shard("Locks", "locks_00", ["00000000", "7fffffff"]),
            shard("Locks", "locks_01", ["80000000", "ffffffff"]),
        ];
        let nodes = [node("nd_1", "127.0.0.1:8080"), node("nd_2", "127.0.0.1:8081"), node("nd_3", "127.0.0.1:8082")];
        json!({"nodes": nodes, "shards": shards})
    }

    fn refusal(cluster: &Value, port: Option<u16>) -> Option<String> {
        let shard = LockShard::in_view(cluster, u32::MAX).unwrap();
        let leader = shard.leader.clone().unwrap();
        check_can_lose(cluster, &shard, &leader, port).err().map(|reason| reason.to_string())
    }

    #[test]
    fn the_shard_is_that_of_the_key_and_its_successor_another_node() {
        let shard = LockShard::in_view(&cluster(), u32::MAX).unwrap();
        assert_eq!((shard.id.as_str(), shard.leader.as_deref()), ("locks_01", Some("nd_1")));
        assert_eq!((shard.successor.as_str(), shard.replicas), ("nd_2", 3));
        let mut alone = cluster();
        alone["shards"][2]["replicas"] = json!([{"node_id": "nd_1"}]);
        assert!(LockShard::in_view(&alone, u32::MAX).unwrap_err().to_string().contains("no other node"));
    }

    #[test]
    fn no_leader_is_killed_that_the_cluster_or_this_program_needs() {
        assert_eq!(refusal(&cluster(), Some(8081)), None);
        let mut two = cluster();
        two["shards"][2]["replicas"] = json!([{"node_id": "nd_1"}, {"node_id": "nd_2"}]);
        assert!(refusal(&two, Some(8081)).unwrap().contains("no majority"));
        let mut missing = cluster();
        missing["nodes"][2]["ready"] = json!(false);
        assert!(refusal(&missing, Some(8081)).unwrap().contains("nd_3 is not ready"));
        assert!(refusal(&cluster(), Some(8080)).unwrap().contains("the gateway at --url"));
    }
}
