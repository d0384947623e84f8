//! Waits until Raft groups match the config, and reports their progress.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_cluster::{ClusterConfig, Shard};
use holdfast_operator::output;
use holdfast_proto::internal::ReplicaStatus;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::cluster::Cluster;

/// How often the program polls the nodes.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// The leader of a shard, as its node reports it.
#[derive(Clone, Debug)]
pub(crate) struct Leader {
    pub(crate) replica: u64,
    pub(crate) node: String,
    voters: Vec<u64>,
    learners: Vec<u64>,
    followers: Vec<(u64, u64)>,
    rules: u32,
}

impl Leader {
    /// Returns true if its group has exactly the configured replicas of the shard.
    fn is_as_configured(&self, shard: &Shard) -> bool {
        let mut configured: Vec<u64> = shard.replicas.iter().map(|replica| replica.id).collect();
        let mut voters = self.voters.clone();
        configured.sort_unstable();
        voters.sort_unstable();
        voters == configured && self.learners.is_empty()
    }
}

impl Cluster {
    /// Returns the shards in the order of the config, each with its leader if it has one.
    pub(crate) async fn leaders(&self) -> Vec<(Shard, Option<Leader>)> {
        self.inspect().await.0
    }

    /// Returns the leaders, and the ids of the nodes that do not respond.
    async fn inspect(&self) -> (Vec<(Shard, Option<Leader>)>, Vec<String>) {
        let statuses = self.operations.statuses(&self.config).await;
        let silent = statuses.iter().filter(|(_, said)| said.is_err()).map(|(node, _)| node.id.clone()).collect();
        let said: Vec<(String, ReplicaStatus)> = statuses
            .into_iter()
            .filter_map(|(node, said)| Some((node.id, said.ok()?)))
            .flat_map(|(node, said)| said.replicas.into_iter().map(move |replica| (node.clone(), replica)))
            .collect();
        let leader_of = |shard: &Shard| {
            let leading = said.iter().filter(|(_, one)| one.shard == shard.id && one.leader == one.replica);
            leading.max_by_key(|(_, one)| one.term).map(|(node, one)| Leader {
                replica: one.replica,
                node: node.clone(),
                voters: one.voters.clone(),
                learners: one.learners.clone(),
                rules: one.rules,
                followers: one.followers.iter().map(|other| (other.replica, other.entries_behind)).collect(),
            })
        };
        (self.config.shards().map(|shard| (shard.clone(), leader_of(shard))).collect(), silent)
    }

    /// Waits until the groups of these shards have exactly the configured replicas.
    pub(crate) async fn wait_until_configured(&self, shards: &[String], within: Duration) -> Result<()> {
        self.wait_for(shards, within, Leader::is_as_configured).await
    }

    /// Waits until these shards no longer need their replicas on that node: all others are up-to-date voters.
    pub(crate) async fn wait_until_removable(&self, shards: &[String], node: &str, within: Duration) -> Result<()> {
        self.wait_for(shards, within, |leader, shard| {
            let mut others = shard.replicas.iter().filter(|replica| replica.node_id != node);
            others.all(|replica| leader.voters.contains(&replica.id))
        })
        .await
    }

    /// Waits until all shards use these rules, or later ones.
    pub(crate) async fn wait_until_rules(&self, rules: u16, within: Duration) -> Result<()> {
        let mut wait = Wait::start(within);
        loop {
            wait.tick().await;
            let open = self.leaders().await.into_iter().filter_map(|(shard, leader)| match leader {
                None => Some(format!("{} has no leader", shard.id)),
                Some(leader) if leader.rules >= rules.into() => None,
                Some(leader) => Some(format!("{} uses rules {}", shard.id, leader.rules)),
            });
            let open: Vec<String> = open.collect();
            if open.is_empty() {
                return Ok(());
            }
            wait.report_pending(format!("{} shards to go: {}", open.len(), open.join("; ")))?;
        }
    }

    async fn wait_for(
        &self,
        shards: &[String],
        within: Duration,
        is_so: impl Fn(&Leader, &Shard) -> bool,
    ) -> Result<()> {
        let mut wait = Wait::start(within);
        loop {
            wait.tick().await;
            let (leaders, silent) = self.inspect().await;
            let open: Vec<String> = leaders
                .iter()
                .filter(|(shard, _)| shards.contains(&shard.id))
                .filter(|(shard, leader)| !leader.as_ref().is_some_and(|leader| is_so(leader, shard)))
                .map(|(shard, leader)| describe(&self.config, shard, leader.as_ref(), &silent))
                .collect();
            if open.is_empty() {
                return Ok(());
            }
            wait.report_pending(format!("{} of {} shards to go: {}", open.len(), shards.len(), open.join("; ")))?;
        }
    }
}

/// A bounded wait that reports what it waits for.
pub(crate) struct Wait {
    within: Duration,
    deadline: Instant,
    ticks: Interval,
    last_report: String,
}

impl Wait {
    pub(crate) fn start(within: Duration) -> Self {
        let deadline = Instant::now() + within;
        let mut ticks = interval(POLL_INTERVAL);
        // A poll may take longer than the interval.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { within, deadline, ticks, last_report: String::new() }
    }

    /// Waits until the next poll.
    pub(crate) async fn tick(&mut self) {
        self.ticks.tick().await;
    }

    /// Reports the reason why the wait continues, unless it reported the same one last.
    ///
    /// # Errors
    /// When the time is up.
    pub(crate) fn report_pending(&mut self, reason: String) -> Result<()> {
        ensure!(
            Instant::now() < self.deadline,
            "not finished within {} s: {reason}. What is done stays; run the same command again to go on",
            self.within.as_secs()
        );
        if reason != self.last_report {
            output::info(&reason);
            self.last_report = reason;
        }
        Ok(())
    }
}

fn describe(config: &ClusterConfig, shard: &Shard, leader: Option<&Leader>, silent: &[String]) -> String {
    let Some(leader) = leader else { return format!("{} has no leader", shard.id) };
    let node_of = |id: u64| {
        let place = shard.replicas.iter().find(|replica| replica.id == id);
        place.map_or("a node that it leaves", |replica| replica.node_id.as_str())
    };
    let joining = shard.replicas.iter().filter(|replica| !leader.voters.contains(&replica.id));
    let joining: Vec<String> = joining
        .map(|replica| match leader.followers.iter().find(|(id, _)| *id == replica.id) {
            _ if silent.contains(&replica.node_id) => format!("{} does not answer; is it started?", replica.node_id),
            Some((_, behind)) => format!("{} is {behind} entries behind", replica.node_id),
            None => format!("{} is not taken in yet", replica.node_id),
        })
        .collect();
    let leaving = leader.voters.iter().filter(|id| shard.replicas.iter().all(|replica| replica.id != **id)).count();
    let led = if config.node(&leader.node).is_some() { node_of(leader.replica) } else { "a node that is gone" };
    match (joining.is_empty(), leaving) {
        (false, _) => format!("{}: {}", shard.id, joining.join(", ")),
        (true, 0) => format!("{}: its members are changing", shard.id),
        (true, _) => format!("{}: a replica is leaving, led by {led}", shard.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::config_of;

    #[test]
    fn a_replica_that_is_not_there_is_told_from_one_on_a_node_that_does_not_answer() {
        let config = config_of(4);
        let config = config.add_replica("accounts_00", "nd_4").unwrap();
        let shard = config.shards().find(|shard| shard.id == "accounts_00").unwrap();
        let voters: Vec<u64> = shard.replicas[..3].iter().map(|replica| replica.id).collect();
        let (learners, followers) = (Vec::new(), Vec::new());
        let leader = Leader { replica: voters[0], node: "nd_1".to_owned(), voters, learners, followers, rules: 1 };
        let said = |silent: &[String]| describe(&config, shard, Some(&leader), silent);
        assert_eq!(said(&[]), "accounts_00: nd_4 is not taken in yet");
        assert_eq!(said(&["nd_4".to_owned()]), "accounts_00: nd_4 does not answer; is it started?");
    }
}
