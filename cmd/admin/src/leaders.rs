//! `holdfast-admin leader transfer`: moves leaderships to other replicas.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use holdfast_cluster::Shard;
use holdfast_operator::output;

use crate::cluster::{Cluster, ClusterArgs};
use crate::wait::{Leader, Wait};

/// Flags of `holdfast-admin leader transfer`.
#[derive(Debug, Args)]
pub(crate) struct TransferLeadersArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Only shards whose id has this prefix, like locks or locks_03.
    #[arg(long, env = "HOLDFAST_SHARD", default_value = "", value_name = "PREFIX")]
    shard: String,
    /// Only shards that this node leads. Without --from and --to, the first replica of each shard in the config becomes
    /// its leader, which spreads leaders evenly.
    #[arg(long, env = "HOLDFAST_FROM", value_name = "NODE")]
    from: Option<String>,
    /// The new leader; when absent, the leaderships of --from go to the replicas with the longest logs.
    #[arg(long, env = "HOLDFAST_TO", value_name = "NODE")]
    to: Option<String>,
    /// Transfer each leadership to the next replica of its shard, in the order of the config.
    #[arg(long, env = "HOLDFAST_ALL", conflicts_with_all = ["from", "to"])]
    all: bool,
}

/// The replica that will lead a shard.
#[derive(Clone, Copy)]
enum TransferTarget<'a> {
    Preferred,
    Next,
    Node(&'a str),
    Any,
}

/// Transfers leaderships, one after the other.
pub(crate) async fn transfer(args: &TransferLeadersArgs) -> Result<()> {
    let cluster = args.cluster.connect().await?;
    for node in args.from.iter().chain(&args.to) {
        cluster.node(node)?;
    }
    let successor = match (&args.from, &args.to) {
        _ if args.all => TransferTarget::Next,
        (_, Some(to)) => TransferTarget::Node(to),
        (Some(_), None) => TransferTarget::Any,
        (None, None) => TransferTarget::Preferred,
    };
    let (mut moved, mut problems) = (0, Vec::new());
    let leaders = cluster.leaders().await;
    let wanted: Vec<_> = leaders.iter().filter(|(shard, _)| shard.id.starts_with(&args.shard)).collect();
    ensure!(!wanted.is_empty(), "no shard's id begins with {:?}; `holdfast-admin status` lists them", args.shard);
    for (shard, leader) in &wanted {
        let Some(leader) = leader else {
            problems.push(format!("{} has no leader", shard.id));
            continue;
        };
        if args.from.as_ref().is_some_and(|from| leader.node != *from) {
            continue;
        }
        match cluster.transfer(shard, leader, successor).await {
            Ok(false) => {}
            Ok(true) => {
                moved += 1;
                output::info(format_args!("{} handed over by {}; {moved} so far", shard.id, leader.node));
            }
            Err(error) => problems.push(format!("{}: {error:#}", shard.id)),
        }
    }
    ensure!(
        problems.is_empty(),
        "{moved} leaderships moved, and these did not:\n  {}\nRun the command again when the nodes are ready",
        problems.join("\n  ")
    );
    output::print(format_args!("{moved} leaderships moved"))
}

impl Cluster {
    /// Transfers the leadership of a shard. Returns false if the target already leads.
    async fn transfer(&self, shard: &Shard, leader: &Leader, successor: TransferTarget<'_>) -> Result<bool> {
        let replicas = &shard.replicas;
        let target = match successor {
            TransferTarget::Any => None,
            TransferTarget::Preferred => replicas.first(),
            TransferTarget::Node(node) => {
                Some(shard.replica_on(node).with_context(|| format!("it has no replica on {node}"))?)
            }
            TransferTarget::Next => {
                let at = replicas.iter().position(|replica| replica.id == leader.replica).unwrap_or(0);
                replicas.get((at + 1) % replicas.len())
            }
        };
        let target = target.map(|replica| replica.id);
        if target == Some(leader.replica) {
            return Ok(false);
        }
        self.operations.transfer_leadership(self.node(&leader.node)?, leader.replica, target).await?;
        Ok(true)
    }

    /// Moves the leaderships of these shards from a node to another one, and waits until that is done. If the target
    /// cannot lead a shard, any other replica may: availability matters more than the choice of the leader.
    pub(crate) async fn transfer_away(&self, shards: &[String], node: &str, to: &str, within: Duration) -> Result<()> {
        let mut successor = TransferTarget::Node(to);
        let mut wait = Wait::start(within);
        loop {
            wait.tick().await;
            let mut open = Vec::new();
            for (shard, leader) in self.leaders().await.into_iter().filter(|(shard, _)| shards.contains(&shard.id)) {
                match leader {
                    None => open.push(format!("{}: it has no leader", shard.id)),
                    Some(leader) if leader.node == node => {
                        if let Err(error) = self.transfer(&shard, &leader, successor).await {
                            open.push(format!("{}: {error:#}", shard.id));
                        }
                    }
                    Some(_) => {}
                }
            }
            if open.is_empty() {
                return Ok(());
            }
            wait.report_pending(format!("not every leadership has left {node} yet: {}", open.join("; ")))?;
            successor = TransferTarget::Any;
        }
    }
}
