//! `holdfast-admin replica move` and `node replace`: move replicas to other nodes without downtime.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use holdfast_cluster::{ApplicationConfig, ClusterConfig, Shard};
use holdfast_operator::output;

use crate::cluster::{Cluster, ClusterArgs};

/// Flags for the duration and the concurrency of moves.
#[derive(Debug, Args)]
pub(crate) struct MoveLimits {
    /// Timeout of one step in seconds: a new replica copies the whole state of its shard.
    #[arg(long, alias = "within", env = "HOLDFAST_TIMEOUT", default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    /// Maximum number of shards that move concurrently.
    #[arg(long, alias = "at-a-time", env = "HOLDFAST_MAX_CONCURRENT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    max_concurrent: u16,
}

/// Flags of `holdfast-admin replica move`.
#[derive(Debug, Args)]
pub(crate) struct MoveReplicaArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The shard, like locks_03; may be repeated.
    #[arg(long = "shard", env = "HOLDFAST_SHARDS", value_delimiter = ',', required = true)]
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

/// Moves the replicas of some shards from one node to another.
pub(crate) async fn move_replica(args: &MoveReplicaArgs) -> Result<()> {
    let (from, to) = (&args.from, &args.to);
    ensure!(from != to, "--from and --to are the same node");
    let mut cluster = args.cluster.connect().await?;
    for wanted in &args.shards {
        check_move(&cluster.config, wanted, from, to)?;
    }
    cluster.move_all(&args.shards, from, to, &args.limits).await?;
    output::print(format_args!("{} moved from {from} to {to}", args.shards.join(", ")))
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
    for (target, shards) in cluster.targets(from, to)? {
        cluster.move_all(&shards, from, &target, &args.limits).await?;
    }
    let next = cluster.config.remove_node(from)?;
    cluster.push_config(next).await?;
    output::print(format_args!("{to} has taken the place of {from}: stop {from}, and remove its data"))
}

/// Rejects a move to a node that has a replica of the shard, unless a move is in progress: the shard then has one
/// replica more than configured.
fn check_move(config: &ClusterConfig, wanted: &str, from: &str, to: &str) -> Result<()> {
    let find = |application: &ApplicationConfig| {
        let shard = application.shards.iter().find(|shard| shard.id == wanted)?.clone();
        let is_moving = shard.replicas.len() > application.replication_factor as usize;
        Some((shard, is_moving))
    };
    let found = config.applications.iter().find_map(find);
    let (shard, is_moving) =
        found.with_context(|| format!("there is no shard {wanted:?}; `holdfast-admin status` lists them"))?;
    match (shard.replica_on(from).is_some(), shard.replica_on(to).is_some()) {
        (false, false) => bail!("shard {wanted} has a replica neither on {from} nor on {to}"),
        (true, true) if !is_moving => {
            let keeps = shard.replicas.iter().map(|replica| replica.node_id.as_str()).collect::<Vec<_>>().join(", ");
            bail!("{to} has a replica of shard {wanted} already; choose a node that has none (it is on {keeps})")
        }
        _ => Ok(()),
    }
}

impl Cluster {
    /// Returns the target of each replica of a node: the node `to` or, if it has a replica of the shard already, the
    /// node with the fewest. A shard with one replica more than configured is in the middle of a move.
    fn targets(&self, from: &str, to: &str) -> Result<BTreeMap<String, Vec<String>>> {
        let mut targets: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let keeps = |node: &str| self.config.shards().filter(|shard| shard.replica_on(node).is_some()).count();
        for application in &self.config.applications {
            for shard in application.shards.iter().filter(|shard| shard.replica_on(from).is_some()) {
                let is_moving = shard.replicas.len() > application.replication_factor as usize;
                let target = if is_moving || shard.replica_on(to).is_none() {
                    to
                } else {
                    let free = self.config.nodes.iter().filter(|node| shard.replica_on(&node.id).is_none());
                    let free = free.min_by_key(|node| keeps(&node.id));
                    let problem = || format!("{to} has a replica of {} already, and no other node is free", shard.id);
                    free.with_context(|| format!("{}: add a node (`holdfast-admin node add`)", problem()))?.id.as_str()
                };
                targets.entry(target.to_owned()).or_default().push(shard.id.clone());
            }
        }
        Ok(targets)
    }

    /// Moves a few shards concurrently. Each step starts from the current config, so a repeated run continues an
    /// interrupted one, and swapped nodes undo it.
    async fn move_all(&mut self, shards: &[String], from: &str, to: &str, pace: &MoveLimits) -> Result<()> {
        self.node(from)?;
        self.node(to)?;
        let within = Duration::from_secs(pace.timeout);
        let mut moved = 0;
        for some in shards.chunks(usize::from(pace.max_concurrent)) {
            let new = self.locations(some, to, |shard| shard.replica_on(to).is_none());
            if !new.is_empty() {
                let next = self.config.add_replicas(&new)?;
                self.push_config(next).await?;
            }
            let old = self.locations(some, from, |shard| shard.replica_on(from).is_some());
            if !old.is_empty() {
                self.wait_until_removable(some, from, within).await?;
                self.transfer_away(some, from, to, within).await?;
                let next = self.config.remove_replicas(&old)?;
                self.push_config(next).await?;
            }
            self.wait_until_configured(some, within).await?;
            moved += some.len();
            output::info(format_args!("{moved} of {} shards are on {to}", shards.len()));
        }
        Ok(())
    }

    /// Returns the selected shards, each with the node.
    fn locations(&self, shards: &[String], node: &str, wanted: impl Fn(&Shard) -> bool) -> Vec<(String, String)> {
        let those = self.config.shards().filter(|shard| shards.contains(&shard.id) && wanted(shard));
        those.map(|shard| (shard.id.clone(), node.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::config_of;

    #[test]
    fn a_move_to_a_node_that_has_a_replica_is_refused_unless_it_was_begun() {
        let config = config_of(5);
        let refusal = |from, to| check_move(&config, "accounts_00", from, to).unwrap_err().to_string();
        assert!(refusal("nd_1", "nd_2").contains("nd_2 has a replica of shard accounts_00 already"));
        assert!(refusal("nd_4", "nd_5").contains("neither on nd_4 nor on nd_5"));
        check_move(&config, "accounts_00", "nd_1", "nd_4").unwrap();
        let begun = config.add_replica("accounts_00", "nd_4").unwrap();
        check_move(&begun, "accounts_00", "nd_1", "nd_4").unwrap();
        check_move(&begun, "accounts_00", "nd_4", "nd_1").unwrap();
        let ended = begun.remove_replica("accounts_00", "nd_1").unwrap();
        check_move(&ended, "accounts_00", "nd_1", "nd_4").unwrap();
        assert!(check_move(&config, "locks_99", "nd_1", "nd_4").unwrap_err().to_string().contains("locks_99"));
    }
}
