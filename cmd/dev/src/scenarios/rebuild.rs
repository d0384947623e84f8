//! Locks in the memory of a leader, and what becomes of them when another node leads.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use holdfast_operator::ClusterFiles;
use holdfast_operator::api::text_field;
use serde_json::{Value, json};

use super::ScenarioArgs;
use super::leader_loss::{LockShard, lose_leader};
use super::lock_table::LockTable;
use super::runner::ScenarioRunner;
use super::socket::Socket;

/// Time to live of the session of the worker who loses his connection: longer than the steps up to the leader change.
const LOST_TTL_MS: u64 = 8_000;
/// Time to live of the sessions that go on: longer than the rebuild.
const SESSION_TTL_MS: u64 = 60_000;

/// Flags of the scenario, and the files of the cluster whose leader is taken away.
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

/// What was so before the leader was lost.
struct Before {
    ann: Worker,
    cay: Worker,
    /// The epoch of the table.
    epoch: u64,
    /// The token of ann's oven.
    oven: u64,
    /// The token of ben's mixer.
    mixer: u64,
    /// When ben was heard for the last time.
    last_sign: Instant,
}

pub(super) async fn run(stage: &ScenarioRunner, args: &RebuildArgs) -> Result<()> {
    // Without another node that can lead, the scenario ends before it begins.
    LockShard::find(stage).await?;
    let mut table = LockTable::default();
    let before = take_locks(stage, &mut table).await?;
    let down = lose_leader(stage, &args.cluster, &mut table).await?;
    recover(stage, &mut table, before).await?;
    if let Some(down) = down {
        stage.print_step("`dev cluster up` starts the killed node again. Its locks are at the new leader by now")?;
        down.bring_back(stage).await?;
    }
    Ok(())
}

/// Up to the loss of the leader.
async fn take_locks(stage: &ScenarioRunner, table: &mut LockTable) -> Result<Before> {
    stage.print_step(
        "The durability of this namespace is SESSION: the log has its sessions, the memory of one leader its locks. \
               That leader has its table",
    )?;
    let epoch = table.await_ready(stage, 0).await?;
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
    Ok(Before { ann, cay, epoch, oven, mixer, last_sign: Instant::now() })
}

/// From the loss of the leader on.
async fn recover(stage: &ScenarioRunner, table: &mut LockTable, before: Before) -> Result<()> {
    let Before { mut ann, mut cay, epoch, oven, mixer, last_sign } = before;
    stage.print_step("ann and cay resume their sessions at the new leader")?;
    let is_anew = ann.reconnect(stage, "oven").await?;
    cay.reconnect(stage, "mixer").await?;

    stage.print_step(
        "The new leader grants nothing before every earlier session is settled: somebody may count on a lock in it. \
               Its progress",
    )?;
    let later = table.await_ready(stage, epoch).await?;
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
