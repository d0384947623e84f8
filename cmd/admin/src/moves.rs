//! `holdfast-admin replica move` and `node replace`: move replicas of groups to other nodes without downtime.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use clap::Args;
use holdfast_cluster::{ClusterConfig, GroupConfig};
use holdfast_operator::output;

use crate::cluster::{Cluster, ClusterArgs};

/// Flags for the duration and the concurrency of moves.
#[derive(Debug, Args)]
pub(crate) struct MoveLimits {
    /// Timeout of one step in seconds: a new replica copies the whole state of its group.
    #[arg(long, alias = "within", env = "HOLDFAST_TIMEOUT", default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    /// Maximum number of groups that move concurrently.
    #[arg(long, alias = "at-a-time", env = "HOLDFAST_MAX_CONCURRENT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    max_concurrent: u16,
}

/// Flags of `holdfast-admin replica move`.
#[derive(Debug, Args)]
pub(crate) struct MoveReplicaArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The group, like g3; may be repeated. All its shards move with it.
    #[arg(long = "group", env = "HOLDFAST_GROUPS", value_delimiter = ',', required_unless_present = "shards")]
    groups: Vec<String>,
    /// Refused, with the group that holds the shard: only a whole group moves.
    #[arg(long = "shard", env = "HOLDFAST_SHARDS", value_delimiter = ',')]
    shards: Vec<String>,
    /// The node that has the replica.
    #[arg(long, env = "HOLDFAST_FROM", value_name = "NODE")]
    from: String,
    /// The node to move it to. To undo a move, swap the two.
    #[arg(long, env = "HOLDFAST_TO", value_name = "NODE")]
    to: String,
    #[command(flatten)]
    limits: MoveLimits,
}

/// Flags of `holdfast-admin node replace`.
#[derive(Debug, Args)]
pub(crate) struct ReplaceNodeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The node to remove; it may be down for good.
    #[arg(long, env = "HOLDFAST_TARGET_NODE")]
    node_id: String,
    /// The node that gets its replicas; add it with `holdfast-admin node add` first.
    #[arg(long, env = "HOLDFAST_TO", value_name = "NODE")]
    with: String,
    #[command(flatten)]
    limits: MoveLimits,
}

/// Moves the replicas of some groups from one node to another.
pub(crate) async fn move_replica(args: &MoveReplicaArgs) -> Result<()> {
    let (from, to) = (&args.from, &args.to);
    ensure!(from != to, "--from and --to are the same node");
    let mut cluster = args.cluster.connect().await?;
    if let Some(shard) = args.shards.first() {
        return Err(single_shard_error(&cluster.config, shard, args));
    }
    for wanted in &args.groups {
        check_move(&cluster.config, wanted, from, to)?;
    }
    cluster.move_all(&args.groups, from, to, &args.limits).await?;
    output::print(format_args!("{} moved from {from} to {to}", args.groups.join(", ")))
}

/// Moves all replicas from one node to another, and removes the first from the cluster.
pub(crate) async fn replace_node(args: &ReplaceNodeArgs) -> Result<()> {
    let (from, to) = (&args.node_id, &args.with);
    ensure!(from != to, "--node-id and --with are the same node; name another one that gets its replicas");
    let mut cluster = args.cluster.connect().await?;
    cluster.node(to)?;
    if cluster.config.node(from).is_none() {
        // An earlier run removed the node before it was interrupted, or the id is wrong.
        return output::print(format_args!(
            "{from} is not in the cluster config (any more): nothing was moved; if it was there, stop it and \
             remove its data"
        ));
    }
    for (target, groups) in cluster.targets(from, to)? {
        cluster.move_all(&groups, from, &target, &args.limits).await?;
    }
    let next = cluster.config.remove_node(from)?;
    cluster.push_config(next).await?;
    output::print(format_args!("{to} has taken the place of {from}: stop {from}, and remove its data"))
}

/// Says which group holds a shard: the group is the unit that moves.
fn single_shard_error(config: &ClusterConfig, wanted: &str, args: &MoveReplicaArgs) -> Error {
    let Some(shard) = config.shards().find(|shard| shard.id == wanted) else {
        return anyhow!("there is no shard {wanted:?}; `holdfast-admin status` lists them with their groups");
    };
    let (group, from, to) = (&shard.group, &args.from, &args.to);
    let together = config.shards().filter(|other| other.group == *group).count();
    anyhow!(
        "shard {wanted} is in group {group}, and a whole group moves, with its {together} shards: --group {group} \
         --from {from} --to {to}. Moving one shard to another group is not offered yet"
    )
}

/// Rejects a move to a node that has a replica of the group, unless a move is in progress.
fn check_move(config: &ClusterConfig, wanted: &str, from: &str, to: &str) -> Result<()> {
    let group = config.group(wanted);
    let group = group.with_context(|| format!("there is no group {wanted:?}; `holdfast-admin status` lists them"))?;
    match (group.replica_on(from).is_some(), group.replica_on(to).is_some()) {
        (false, false) => bail!("group {wanted} has a replica neither on {from} nor on {to}"),
        (true, true) if !is_moving(config, group) => {
            let keeps = group.replicas.iter().map(|replica| replica.node_id.as_str()).collect::<Vec<_>>().join(", ");
            bail!("{to} has a replica of group {wanted} already; choose a node that has none (it is on {keeps})")
        }
        _ => Ok(()),
    }
}

/// Whether a group is in the middle of a move: it then has one replica more than its applications say.
fn is_moving(config: &ClusterConfig, group: &GroupConfig) -> bool {
    let serving = config.applications.iter().filter(|one| one.shards.iter().any(|shard| shard.group == group.id));
    let factor = serving.map(|application| application.replication_factor as usize).max();
    factor.is_some_and(|factor| group.replicas.len() > factor)
}

impl Cluster {
    /// Returns the target of each replica of a node: the node `to` or, if it has a replica of the group already, the
    /// node with the fewest.
    fn targets(&self, from: &str, to: &str) -> Result<BTreeMap<String, Vec<String>>> {
        let mut targets: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let groups = &self.config.groups;
        let keeps = |node: &str| groups.iter().filter(|group| group.replica_on(node).is_some()).count();
        for group in groups.iter().filter(|group| group.replica_on(from).is_some()) {
            let target = if is_moving(&self.config, group) || group.replica_on(to).is_none() {
                to
            } else {
                let free = self.config.nodes.iter().filter(|node| group.replica_on(&node.id).is_none());
                let free = free.min_by_key(|node| keeps(&node.id));
                let problem = || format!("{to} has a replica of {} already, and no other node is free", group.id);
                free.with_context(|| format!("{}: add a node (`holdfast-admin node add`)", problem()))?.id.as_str()
            };
            targets.entry(target.to_owned()).or_default().push(group.id.clone());
        }
        Ok(targets)
    }

    /// Moves a few groups concurrently. Each step starts from the current config, so a repeated run continues an
    /// interrupted one, and swapped nodes undo it.
    async fn move_all(&mut self, groups: &[String], from: &str, to: &str, pace: &MoveLimits) -> Result<()> {
        self.node(from)?;
        self.node(to)?;
        let within = Duration::from_secs(pace.timeout);
        let mut moved = 0;
        for some in groups.chunks(usize::from(pace.max_concurrent)) {
            let new = self.locations(some, to, |group| group.replica_on(to).is_none());
            if !new.is_empty() {
                let next = self.config.add_replicas(&new)?;
                self.push_config(next).await?;
            }
            let old = self.locations(some, from, |group| group.replica_on(from).is_some());
            if !old.is_empty() {
                self.wait_until_removable(some, from, within).await?;
                self.transfer_away(some, from, to, within).await?;
                let next = self.config.remove_replicas(&old)?;
                self.push_config(next).await?;
            }
            self.wait_until_configured(some, within).await?;
            moved += some.len();
            output::info(format_args!("{moved} of {} groups are on {to}", groups.len()));
        }
        Ok(())
    }

    /// Returns the selected groups, each with the node.
    fn locations(&self, groups: &[String], node: &str, wanted: impl Fn(&GroupConfig) -> bool) -> Vec<(String, String)> {
        let those = self.config.groups.iter().filter(|group| groups.contains(&group.id) && wanted(group));
        those.map(|group| (group.id.clone(), node.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cluster::config_of;

    #[test]
    fn a_move_to_a_node_that_has_a_replica_is_refused_unless_it_was_begun() {
        let config = config_of(5);
        let refusal = |from, to| check_move(&config, "g1", from, to).unwrap_err().to_string();
        assert!(refusal("nd_1", "nd_2").contains("nd_2 has a replica of group g1 already"));
        assert!(refusal("nd_4", "nd_5").contains("neither on nd_4 nor on nd_5"));
        check_move(&config, "g1", "nd_1", "nd_4").unwrap();
        let begun = config.add_replica("g1", "nd_4").unwrap();
        check_move(&begun, "g1", "nd_1", "nd_4").unwrap();
        check_move(&begun, "g1", "nd_4", "nd_1").unwrap();
        let ended = begun.remove_replica("g1", "nd_1").unwrap();
        check_move(&ended, "g1", "nd_1", "nd_4").unwrap();
        assert!(check_move(&config, "g99", "nd_1", "nd_4").unwrap_err().to_string().contains("g99"));
    }

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: MoveReplicaArgs,
    }

    fn parse(flags: &[&str]) -> Result<MoveReplicaArgs, clap::Error> {
        let nodes = ["move", "--from", "nd_1", "--to", "nd_4"];
        Flags::try_parse_from([&nodes[..], flags].concat()).map(|flags| flags.args)
    }

    #[test]
    fn one_shard_does_not_move_and_its_group_is_named() {
        let args = parse(&["--shard", "locks_00"]).unwrap();
        let config = config_of(4);
        let group = &config.shards().find(|shard| shard.id == "locks_00").unwrap().group;
        let refusal = single_shard_error(&config, "locks_00", &args).to_string();
        assert!(refusal.contains(&format!("--group {group} --from nd_1 --to nd_4")), "{refusal}");
        assert!(refusal.contains("not offered yet"), "{refusal}");
        assert!(single_shard_error(&config, "locks_99", &args).to_string().contains("locks_99"));
        assert_eq!(parse(&["--group", "g1,g2", "--group", "g3"]).unwrap().groups, ["g1", "g2", "g3"]);
        assert!(parse(&[]).unwrap_err().to_string().contains("--group"));
    }
}
