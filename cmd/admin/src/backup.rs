//! `holdfast-admin backup`: writes a snapshot of each shard, from the leader of its group, to a new directory.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use holdfast_backup::{Backup, BackupWriter, ShardFile, ShardWriter};
use holdfast_cluster::{Application, Shard};
use holdfast_operator::output::{self, Format};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, ClusterArgs};

/// How long the backup retries a shard while its leader changes.
const SHARD_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_millis(300);

/// Flags of `holdfast-admin backup`.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The directory to create. It will contain the tenants' data and the hashes of their keys: protect it accordingly.
    #[arg(long, env = "HOLDFAST_BACKUP_DIR", value_name = "DIR")]
    out: PathBuf,
}

/// The written state of a shard, and the last entry of its group's log that it contains.
struct ShardSnapshot {
    term: u64,
    index: u64,
    rules: u16,
    state: ShardWriter,
}

/// Writes the backup, then reads and verifies it.
pub(crate) async fn back_up(format: Format, args: &BackupArgs) -> Result<()> {
    let began = Instant::now();
    let cluster = args.cluster.connect().await?;
    let cluster_id = args.cluster.secret()?.cluster_id();
    let made_at = OffsetDateTime::now_utc().format(&Rfc3339)?;
    let mut writer = BackupWriter::create(&args.out, &cluster_id, cluster.config.version, made_at)?;
    let shards = backup_order(&cluster);
    let mut bytes = 0;
    for (number, shard) in shards.iter().enumerate() {
        let snapshot = cluster.snapshot_of(&writer, shard).await.with_context(|| format!("shard {}", shard.id))?;
        let about = ShardFile {
            shard: shard.id.clone(),
            file: String::new(),
            bytes: 0,
            sha256: String::new(),
            term: snapshot.term,
            index: snapshot.index,
            rules: snapshot.rules,
            lower_bound: shard.lower_bound,
            upper_bound: shard.upper_bound,
        };
        bytes += writer.add_shard(about, snapshot.state)?;
        output::info(format_args!("{} of {} shards, {bytes} bytes", number + 1, shards.len()));
    }
    let manifest = writer.finish()?;
    Backup::open(&args.out)?.verify()?;
    let (dir, seconds) = (args.out.display(), began.elapsed().as_secs_f64());
    match format {
        Format::Json => output::print(json!({
            "backup": dir.to_string(), "id": manifest.id, "shards": shards.len(), "bytes": bytes, "seconds": seconds,
        })),
        Format::Text => output::print(format_args!(
            "backup {} of {} shards, {bytes} bytes, is in {dir} after {seconds:.1} s",
            manifest.id,
            shards.len()
        )),
    }
}

/// Orders shards so that receivers of messages come before their senders: a sender's later snapshot then contains every
/// message that a receiver may lack, and sends it again after a restore.
fn backup_order(cluster: &Cluster) -> Vec<Shard> {
    let order = [Application::Locks, Application::Namespaces, Application::Accounts];
    let applications = order.into_iter().filter_map(|name| cluster.config.application(name));
    applications.flat_map(|application| application.shards.clone()).collect()
}

impl Cluster {
    /// Writes the snapshot of the current leader of the shard's group, and begins anew if the leader changes.
    async fn snapshot_of(&self, writer: &BackupWriter, shard: &Shard) -> Result<ShardSnapshot> {
        let deadline = Instant::now() + SHARD_TIMEOUT;
        loop {
            let leaders = self.leaders().await;
            let leader = leaders.into_iter().find(|(group, _)| group.id == shard.group).and_then(|(_, leader)| leader);
            let problem = match leader {
                None => format!("its group {} has no leader", shard.group),
                Some(leader) => match self.fetch_snapshot(writer, &leader.node, leader.replica, shard).await {
                    Ok(snapshot) => return Ok(snapshot),
                    Err(error) => format!("{error:#}"),
                },
            };
            if Instant::now() >= deadline {
                bail!("{problem}; no backup was written");
            }
            sleep(RETRY_DELAY).await;
        }
    }

    async fn fetch_snapshot(
        &self,
        writer: &BackupWriter,
        node: &str,
        replica: u64,
        shard: &Shard,
    ) -> Result<ShardSnapshot> {
        let mut parts = self.operations.back_up(self.node(node)?, replica, &shard.id).await?;
        let first = parts.message().await?.and_then(|part| part.head);
        let head =
            first.filter(|head| head.shard == shard.id).context("the node sent the snapshot of another shard")?;
        let mut state = writer.begin_shard(&shard.id)?;
        while let Some(part) = parts.message().await? {
            state.write(&part.chunk)?;
        }
        // Releases before the introduction of rules send 0.
        let rules = u16::try_from(head.rules).context("the node sent an invalid number of rules")?.max(1);
        Ok(ShardSnapshot { term: head.term, index: head.index, rules, state })
    }
}
