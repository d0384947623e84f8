//! `holdfast-admin rebuild-shard` and `quarantine`: the operator's word on a shard that failed.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use holdfast_cluster::GroupConfig;
use holdfast_operator::output;
use holdfast_routing::Quarantined;

use crate::cluster::{Cluster, ClusterArgs};
use crate::wait::{Leader, Wait};

/// How long the nodes may take to bring a shard back.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(120);

/// Flags of `holdfast-admin rebuild-shard`.
#[derive(Debug, Args)]
pub(crate) struct RebuildShardArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The shard, like locks_03.
    #[arg(long, env = "HOLDFAST_SHARD", value_name = "ID")]
    shard: String,
    /// The node whose state of the shard counts. The shard must serve there.
    #[arg(long, env = "HOLDFAST_FROM", value_name = "NODE")]
    from: String,
}

/// Flags of `holdfast-admin quarantine`.
#[derive(Debug, Args)]
pub(crate) struct QuarantineArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The shard, like locks_03.
    #[arg(long, env = "HOLDFAST_SHARD", value_name = "ID")]
    shard: String,
    /// The index of the entry that it failed at, as `holdfast-admin inspect poison` shows it.
    #[arg(long, env = "HOLDFAST_INDEX", value_name = "NUMBER")]
    index: u64,
    /// The namespace that it failed in, as `holdfast-admin inspect poison` shows it. From that entry on the namespace
    /// stands still, and every call for it is refused but its deletion.
    #[arg(long, env = "HOLDFAST_QUARANTINED_NAMESPACE", value_name = "ACCOUNT/NAME/INCARNATION")]
    namespace: Option<String>,
    /// The command of the entry that it failed at, by its number: it has no effect. For shards without namespaces, and
    /// when the same command will not come again.
    #[arg(long, env = "HOLDFAST_QUARANTINED_COMMAND", value_name = "NUMBER", conflicts_with = "namespace")]
    command: Option<u32>,
    /// Do so although the shard serves on other nodes. They can bring it back otherwise.
    #[arg(long, env = "HOLDFAST_FORCE_QUARANTINE")]
    force: bool,
}

/// Has every node leave out what a shard failed at, and waits until the shard serves on all that respond.
pub(crate) async fn quarantine(args: &QuarantineArgs) -> Result<()> {
    let what = match (&args.namespace, args.command) {
        (Some(namespace), _) => Quarantined::Namespace(namespace.clone()),
        (None, Some(position)) => Quarantined::Command(position),
        (None, None) => bail!("give --namespace or --command; `holdfast-admin inspect poison` shows both"),
    };
    let cluster = args.cluster.connect().await?;
    let (_, leader) = cluster.leader_of_shard(&args.shard).await?;
    let leading = cluster.node(&leader.node)?;
    cluster.operations.quarantine(leading, leader.replica, &args.shard, args.index, what, args.force).await?;
    cluster.wait_until_serving(&args.shard).await?;
    output::print(format_args!("{} serves on every node that answers", args.shard))
}

/// Has the nodes where a shard has failed take its state from one node, and waits until it serves on all that respond.
pub(crate) async fn rebuild(args: &RebuildShardArgs) -> Result<()> {
    let cluster = args.cluster.connect().await?;
    let (group, leader) = cluster.leader_of_shard(&args.shard).await?;
    let from = group.replica_on(&args.from).with_context(|| format!("{} has no replica on {}", group.id, args.from))?;
    let failed = cluster.failed_on(&args.shard).await;
    ensure!(!failed.is_empty(), "{} has failed on no node that answers", args.shard);
    ensure!(!failed.contains(&args.from), "{} has failed on {} too: name another node", args.shard, args.from);
    let leading = cluster.node(&leader.node)?;
    let compared = cluster.operations.rebuild_shard(leading, leader.replica, &args.shard, from.id).await?;
    let replicas_of = |ids: &[u64]| replicas(&group, ids);
    if !compared.differing.is_empty() {
        output::info(format_args!(
            "{} serve {} with another state than {}: replace them, or tenants may see either",
            replicas_of(&compared.differing),
            args.shard,
            args.from
        ));
    }
    if !compared.unknown.is_empty() {
        output::info(format_args!(
            "{} did not say what state of {} they have: it is not known whether it is that of {}",
            replicas_of(&compared.unknown),
            args.shard,
            args.from
        ));
    }
    cluster.wait_until_serving(&args.shard).await?;
    output::print(format_args!("{} serves on every node that answers", args.shard))
}

/// Names replicas of a group, with their nodes.
fn replicas(group: &GroupConfig, ids: &[u64]) -> String {
    let node = |id: u64| group.replicas.iter().find(|replica| replica.id == id).map(|replica| replica.node_id.as_str());
    let name = |id: &u64| format!("replica {id} on {}", node(*id).unwrap_or("an unknown node"));
    ids.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl Cluster {
    /// Returns the group of a shard and the leader of it.
    pub(crate) async fn leader_of_shard(&self, shard: &str) -> Result<(GroupConfig, Leader)> {
        let known = self.config.shards().find(|known| known.id == shard);
        let group = known.map(|known| known.group.clone());
        let group = group.with_context(|| format!("there is no shard {shard:?}; `holdfast-admin status` lists all"))?;
        let mut leaders = self.leaders().await.into_iter().filter(|(known, _)| known.id == group);
        let leader = leaders.next().and_then(|(group, leader)| Some((group, leader?)));
        leader.with_context(|| format!("group {group} has no leader; run the command again when it has one"))
    }

    /// Returns the nodes on which a shard has failed, of those that respond.
    pub(crate) async fn failed_on(&self, shard: &str) -> Vec<String> {
        let (records, _) = self.poison_records(shard).await;
        let of_shard = records.into_iter().filter(|((_, known), _)| known == shard).flat_map(|(_, records)| records);
        of_shard.map(|record| record.node).collect()
    }

    /// Waits until a shard serves on every node that responds.
    pub(crate) async fn wait_until_serving(&self, shard: &str) -> Result<()> {
        let mut wait = Wait::start(REBUILD_TIMEOUT);
        loop {
            wait.tick().await;
            let failed = self.failed_on(shard).await;
            if failed.is_empty() {
                return Ok(());
            }
            wait.report_pending(format!("{shard} does not serve on {} yet", failed.join(", ")))?;
        }
    }
}
