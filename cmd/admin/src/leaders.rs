//! `holdfast-admin leader transfer`: moves leaderships of groups to other replicas.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use holdfast_cluster::{ClusterConfig, GroupConfig};
use holdfast_operator::output;

use crate::cluster::{Cluster, ClusterArgs};
use crate::wait::{Leader, Wait};

/// Flags of `holdfast-admin leader transfer`.
#[derive(Debug, Args)]
pub(crate) struct TransferLeadersArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Only groups whose id has this prefix, like g3.
    #[arg(long, env = "HOLDFAST_GROUP", default_value = "", value_name = "PREFIX")]
    group: String,
    /// Only groups with a shard whose id has this prefix, like locks or locks_03. The other shards of such a group move
    /// with it.
    #[arg(long, env = "HOLDFAST_SHARD", default_value = "", value_name = "PREFIX")]
    shard: String,
    /// Only groups that this node leads. Without --from and --to, the first replica of each group in the config becomes
    /// its leader, which spreads leaders evenly.
    #[arg(long, env = "HOLDFAST_FROM", value_name = "NODE")]
    from: Option<String>,
    /// The new leader; when absent, the leaderships of --from go to the replicas with the longest logs, and to those
    /// with failed shards last.
    #[arg(long, env = "HOLDFAST_TO", value_name = "NODE")]
    to: Option<String>,
    /// Transfer each leadership to the next replica of its group, in the order of the config, past those with failed
    /// shards.
    #[arg(long, env = "HOLDFAST_ALL", conflicts_with_all = ["from", "to"])]
    all: bool,
}

/// The replica that will lead a group.
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
    let wanted = leaders.iter().filter(|(group, _)| args.selects(&cluster.config, group));
    let wanted: Vec<_> = wanted.collect();
    ensure!(
        !wanted.is_empty(),
        "no group's id begins with {:?} that holds a shard whose id begins with {:?}; `holdfast-admin status` lists \
         both",
        args.group,
        args.shard
    );
    for (group, leader) in &wanted {
        let Some(leader) = leader else {
            problems.push(format!("{} has no leader", group.id));
            continue;
        };
        if args.from.as_ref().is_some_and(|from| leader.node != *from) {
            continue;
        }
        match cluster.transfer(group, leader, successor, true).await {
            Ok(false) => {}
            Ok(true) => {
                moved += 1;
                output::info(format_args!("{} handed over by {}; {moved} so far", group.id, leader.node));
            }
            Err(error) => problems.push(format!("{}: {error:#}", group.id)),
        }
    }
    ensure!(
        problems.is_empty(),
        "{moved} leaderships moved, and these did not:\n  {}\nRun the command again when the nodes are ready",
        problems.join("\n  ")
    );
    output::print(format_args!("{moved} leaderships moved"))
}

impl TransferLeadersArgs {
    /// Whether the flags about ids select a group.
    fn selects(&self, config: &ClusterConfig, group: &GroupConfig) -> bool {
        let mut shards = config.shards().filter(|shard| shard.group == group.id);
        group.id.starts_with(&self.group)
            && (self.shard.is_empty() || shards.any(|shard| shard.id.starts_with(&self.shard)))
    }
}

impl Cluster {
    /// Transfers the leadership of a group. Returns false if the target already leads. If it `stays`, it does not return
    /// to the preferred leader before that one is restarted.
    async fn transfer(
        &self,
        group: &GroupConfig,
        leader: &Leader,
        successor: TransferTarget<'_>,
        stays: bool,
    ) -> Result<bool> {
        let replicas = &group.replicas;
        let target = match successor {
            TransferTarget::Any => None,
            TransferTarget::Preferred => {
                let preferred = replicas.first().filter(|replica| replica.id != leader.replica);
                if let Some(preferred) = preferred.filter(|replica| leader.failed.contains(&replica.id)) {
                    let node = &preferred.node_id;
                    bail!("its preferred replica on {node} has failed shards; --to {node} moves it there all the same");
                }
                replicas.first()
            }
            TransferTarget::Node(node) => {
                Some(group.replica_on(node).with_context(|| format!("it has no replica on {node}"))?)
            }
            TransferTarget::Next => {
                let at = replicas.iter().position(|replica| replica.id == leader.replica).unwrap_or(0);
                // The leader itself is the last.
                let mut next = replicas.iter().cycle().skip(at + 1).take(replicas.len());
                next.clone().find(|replica| !leader.failed.contains(&replica.id)).or_else(|| next.next())
            }
        };
        let target = target.map(|replica| replica.id);
        if target == Some(leader.replica) {
            return Ok(false);
        }
        self.operations.transfer_leadership(self.node(&leader.node)?, leader.replica, target, stays).await?;
        Ok(true)
    }

    /// Moves the leaderships of these groups from a node to another one, and waits until that is done. If the target
    /// cannot lead a group, any other replica may: availability matters more than the choice of the leader.
    pub(crate) async fn transfer_away(&self, groups: &[String], node: &str, to: &str, within: Duration) -> Result<()> {
        let mut successor = TransferTarget::Node(to);
        let mut wait = Wait::start(within);
        loop {
            wait.tick().await;
            let mut open = Vec::new();
            for (group, leader) in self.leaders().await.into_iter().filter(|(group, _)| groups.contains(&group.id)) {
                match leader {
                    None => open.push(format!("{}: it has no leader", group.id)),
                    Some(leader) if leader.node == node => {
                        // The config changes next, and with it who is preferred.
                        if let Err(error) = self.transfer(&group, &leader, successor, false).await {
                            open.push(format!("{}: {error:#}", group.id));
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cluster::config_of;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: TransferLeadersArgs,
    }

    /// Returns the groups that flags select: of three, of which g1 has the accounts.
    fn selected(flags: &[&str]) -> Vec<String> {
        let args = Flags::parse_from([&["transfer"][..], flags].concat()).args;
        let config = config_of(3);
        let groups = config.groups.iter().filter(|group| args.selects(&config, group));
        groups.map(|group| group.id.clone()).collect()
    }

    #[test]
    fn a_group_is_selected_by_its_id_or_by_a_shard_that_it_holds() {
        assert_eq!(selected(&[]), ["g1", "g2", "g3"]);
        assert_eq!(selected(&["--group", "g2"]), ["g2"]);
        assert_eq!(selected(&["--shard", "accounts"]), ["g1"]);
        assert_eq!(selected(&["--shard", "accounts", "--group", "g2"]), [""; 0]);
    }
}
