//! Locks in the memory of a leader, and what becomes of them when another node leads.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use holdfast_cluster::{Application, shard_key};
use holdfast_operator::ClusterFiles;
use holdfast_operator::api::text_field;
use serde_json::{Value, json};
use tokio::process::Command;

use super::ScenarioArgs;
use super::runner::{POLL_INTERVAL, ScenarioRunner};
use super::socket::Socket;

/// Time to live of the session of the worker who loses his connection: longer than the steps up to the leader change.
const LOST_TTL_MS: u64 = 8_000;
/// Time to live of the sessions that go on: longer than the rebuild.
const SESSION_TTL_MS: u64 = 60_000;
/// Longer than an election, and the end of all earlier sessions.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(60);
const ADMIN_PROGRAM: &str = "holdfast-admin";

/// Flags of the scenario, and of holdfast-admin, which moves the leader.
#[derive(Debug, Args)]
pub(crate) struct RebuildArgs {
    #[command(flatten)]
    pub(crate) scenario: ScenarioArgs,
    #[command(flatten)]
    cluster: ClusterFiles,
}

/// A worker with a session.
struct Worker {
    name: &'static str,
    socket: Socket,
    session_id: String,
}

impl Worker {
    async fn connect(stage: &ScenarioRunner, name: &'static str, ttl_ms: u64) -> Result<Self> {
        let mut socket = stage.socket().await?;
        let open = json!({"process_id": name, "ttl_ms": ttl_ms, "keeps_table": true});
        socket.send("open", open).await?;
        let opened = socket.expect_message("opened").await?;
        let session_id = text_field(&opened, "session_id")?.to_owned();
        Ok(Self { name, socket, session_id })
    }

    /// Requests a lock; returns the state of the request.
    async fn request(&mut self, lock: &str) -> Result<Value> {
        let resources = json!([{"path": [lock], "mode": "WRITE"}]);
        self.socket.send("lock", json!({"request_id": lock, "resources": resources})).await?;
        self.socket.expect_message("state").await
    }

    async fn acquire(&mut self, stage: &ScenarioRunner, lock: &str) -> Result<u64> {
        let state = self.request(lock).await?;
        let Some(token) = state["fencing_token"].as_u64() else { bail!("not as expected: {state}") };
        stage.check(true, format_args!("the {lock} is {}'s, with the token {token}", self.name))?;
        Ok(token)
    }

    /// Waits for the grant of a request; returns its token.
    async fn await_grant(&mut self) -> Result<u64> {
        loop {
            let state = self.socket.expect_any(&["state"]).await?;
            if let Some(token) = state["fencing_token"].as_u64() {
                return Ok(token);
            }
        }
    }

    /// Learns whether the session goes on at the new leader. If not, opens another one, and requests the lock in it;
    /// returns whether that was so.
    async fn reconnect(&mut self, stage: &ScenarioRunner, lock: &str) -> Result<bool> {
        // A connection that has ended already says why.
        let _ = self.socket.send("keepalive", json!({})).await;
        let heard = self.socket.expect_any(&["kept_alive", "session_ended"]).await?;
        if heard["type"] == "kept_alive" {
            stage.check(true, format_args!("{}'s session goes on, and with it what it holds", self.name))?;
            return Ok(false);
        }
        stage.check(
            true,
            format_args!("{}'s session has ended for her: she stops what she does under locks", self.name),
        )?;
        let later = Self::connect(stage, self.name, SESSION_TTL_MS).await?;
        let earlier = std::mem::replace(self, later);
        let state = self.request(lock).await?;
        stage.check(state["state"] != "READY", format_args!("{} has asked for the {lock} anew", self.name))?;
        stage.end_session(&earlier.session_id).await?;
        Ok(true)
    }
}

pub(super) async fn run(stage: &ScenarioRunner, args: &RebuildArgs) -> Result<()> {
    let (shard, node) = successor(stage).await?;
    stage.print_step(
        "The durability of this namespace is SESSION: the log has its sessions, the memory of one leader its locks. \
               That leader has its table",
    )?;
    let epoch = await_table(stage, 0).await?;
    stage.check(true, format_args!("the table is READY, in the epoch {epoch}"))?;

    stage.print_step(
        "Workers open sessions; ben's ends eight seconds after its last keep-alive. ann takes the oven and ben the \
               mixer; nothing is written to disk",
    )?;
    let mut ann = Worker::connect(stage, "ann", SESSION_TTL_MS).await?;
    let mut cay = Worker::connect(stage, "cay", SESSION_TTL_MS).await?;
    let mut ben = Worker::connect(stage, "ben", LOST_TTL_MS).await?;
    let (oven, mixer) = (ann.acquire(stage, "oven").await?, ben.acquire(stage, "mixer").await?);
    stage.check(oven.min(mixer) > epoch, "all tokens of this leader lie above its epoch")?;
    let state = cay.request("mixer").await?;
    stage.check(state["state"] == "ENQUEUED", "cay waits for the mixer")?;

    stage.print_step(
        "ben sends a last keep-alive and loses his connection. The service cannot reach him now. He counts the eight \
               seconds himself, and uses the mixer until they are over",
    )?;
    ben.socket.send("keepalive", json!({})).await?;
    ben.socket.expect_message("kept_alive").await?;
    let last_sign = Instant::now();
    drop(ben);

    stage.print_step("The leader changes: another node leads. The locks were in the memory of the old one")?;
    transfer_leadership(stage, args, &shard, &node).await?;

    stage.print_step("ann and cay resume their sessions at the new leader")?;
    let is_anew = ann.reconnect(stage, "oven").await?;
    cay.reconnect(stage, "mixer").await?;

    stage.print_step(
        "The new leader grants nothing before every earlier session is settled: somebody may count on a lock in it. \
               Its progress",
    )?;
    let later = await_table(stage, epoch).await?;
    stage.check(later > epoch, format_args!("the table is READY, in the later epoch {later}"))?;

    stage.print_step("cay gets the mixer once ben's time is over. No two ever had it at once")?;
    let token = cay.await_grant().await?;
    stage.check(
        token > mixer,
        format_args!("cay's token {token} is above ben's {mixer}: stores reject what ben still sends"),
    )?;
    let silent_for = last_sign.elapsed() + Duration::from_millis(100);
    let told = format!("that was {} ms after ben's last keep-alive", last_sign.elapsed().as_millis());
    stage.check(silent_for >= Duration::from_millis(LOST_TTL_MS), told)?;
    if !is_anew {
        return stage.check(true, format_args!("ann had the oven all the time, with the token {oven}"));
    }
    let token = ann.await_grant().await?;
    stage.check(token > oven, format_args!("ann has the oven again, by another grant: its token is {token}"))
}

/// Waits until the namespace has a lock table of a later epoch that grants locks, and prints each change on the way.
/// Returns its epoch.
async fn await_table(stage: &ScenarioRunner, after: u64) -> Result<u64> {
    let (deadline, mut shown) = (Instant::now() + REBUILD_TIMEOUT, Value::Null);
    loop {
        let namespace = stage.namespace_view().await?;
        let table = &namespace["table"];
        let progress = match table["state"].as_str() {
            Some(state) => json!({"state": state, "epoch": table["epoch"], "missing": table["missing"],
                "waiting_for": table["waiting_for"]}),
            None => json!("its leader can't be asked"),
        };
        if progress != shown {
            stage.print_message("  table:", &progress)?;
            shown = progress;
        }
        let epoch = table["epoch"].as_u64().unwrap_or_default();
        if table["state"] == "READY" && epoch > after {
            return Ok(epoch);
        }
        if Instant::now() >= deadline {
            bail!("not as expected: the lock table is not READY after {} s", REBUILD_TIMEOUT.as_secs());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the shard of the namespace's locks, and a node that can lead it.
async fn successor(stage: &ScenarioRunner) -> Result<(String, String)> {
    let key = shard_key(Application::Locks, stage.account().0, stage.namespace());
    let cluster = stage.cluster_view().await?;
    let bound = |shard: &Value, name: &str| u32::from_str_radix(shard[name].as_str()?, 16).ok();
    let has_key = |shard: &&Value| {
        let bounds = bound(shard, "lower_bound").zip(bound(shard, "upper_bound"));
        shard["application"] == "Locks" && bounds.is_some_and(|(lower, upper)| (lower..=upper).contains(&key))
    };
    let shard = cluster["shards"].as_array().into_iter().flatten().find(has_key);
    let shard = shard.context("no shard has the locks of the namespace")?;
    let mut replicas = shard["replicas"].as_array().into_iter().flatten();
    let other = replicas.find(|replica| replica["node_id"] != shard["leader_node_id"]);
    let other = other.context("there is no other node that can lead; `make cluster` runs three of them")?;
    Ok((text_field(shard, "id")?.to_owned(), text_field(other, "node_id")?.to_owned()))
}

/// Lets another node lead a shard, with the others of its group.
async fn transfer_leadership(stage: &ScenarioRunner, args: &RebuildArgs, shard: &str, node: &str) -> Result<()> {
    let own = std::env::current_exe().context("this program's own file can't be found")?;
    let program = own.with_file_name(ADMIN_PROGRAM);
    ensure!(program.is_file(), "the program {} is missing: run `make build`", program.display());
    let words = ["leader", "transfer", "--shard", shard, "--to", node];
    stage.print_message(&format!("{ADMIN_PROGRAM} {}", words.join(" ")), &Value::Null)?;
    let mut command = Command::new(&program);
    command.args(words).arg("--cluster-config").arg(&args.cluster.cluster_config);
    command.arg("--cluster-secret-file").arg(&args.cluster.cluster_secret_file).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.with_context(|| format!("{} can't be started", program.display()))?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{ADMIN_PROGRAM}: {}", problem.trim());
    stage.check(true, format_args!("{node} leads {shard}"))
}
