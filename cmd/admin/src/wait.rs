//! Waits until Raft groups match the config, and reports their progress.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_cluster::{ClusterConfig, GroupConfig};
use holdfast_operator::output;
use holdfast_proto::internal::ReplicaStatus;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::cluster::Cluster;

/// How often the program polls the nodes.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// The leader of a group, as its node reports it.
#[derive(Clone, Debug)]
pub(crate) struct Leader {
    pub(crate) replica: u64,
    pub(crate) node: String,
    voters: Vec<u64>,
    learners: Vec<u64>,
    followers: Vec<(u64, u64)>,
    /// The lowest rules of any shard of the group.
    rules: u32,
    /// The replicas of the group with failed shards, as far as their nodes respond.
    pub(crate) failed: Vec<u64>,
}

impl Leader {
    /// Returns the leader of a group according to the rows of all nodes, of which each shard has its own.
    fn of_group(group: &GroupConfig, said: &[(String, ReplicaStatus)]) -> Option<Self> {
        let leading = said.iter().filter(|(_, one)| one.group == group.id && one.leader == one.replica);
        let (node, latest) = leading.clone().max_by_key(|(_, one)| one.term)?;
        let of_leader = leading.filter(|(_, one)| one.replica == latest.replica);
        Some(Self {
            replica: latest.replica,
            node: node.clone(),
            voters: latest.voters.clone(),
            learners: latest.learners.clone(),
            rules: of_leader.map(|(_, one)| one.rules).min().unwrap_or(latest.rules),
            followers: latest.followers.iter().map(|other| (other.replica, other.entries_behind)).collect(),
            failed: said
                .iter()
                .filter(|(_, one)| one.group == group.id && one.poison.is_some())
                .map(|(_, one)| one.replica)
                .collect(),
        })
    }

    /// Returns true if the group has exactly the configured replicas.
    fn is_as_configured(&self, group: &GroupConfig) -> bool {
        let mut configured: Vec<u64> = group.replicas.iter().map(|replica| replica.id).collect();
        let mut voters = self.voters.clone();
        configured.sort_unstable();
        voters.sort_unstable();
        voters == configured && self.learners.is_empty()
    }
}

impl Cluster {
    /// Returns the groups in the order of the config, each with its leader if it has one.
    pub(crate) async fn leaders(&self) -> Vec<(GroupConfig, Option<Leader>)> {
        self.inspect().await.0
    }

    /// Returns the leaders, and the ids of the nodes that do not respond.
    async fn inspect(&self) -> (Vec<(GroupConfig, Option<Leader>)>, Vec<String>) {
        let statuses = self.operations.statuses(&self.config).await;
        let silent = statuses.iter().filter(|(_, said)| said.is_err()).map(|(node, _)| node.id.clone()).collect();
        let said: Vec<(String, ReplicaStatus)> = statuses
            .into_iter()
            .filter_map(|(node, said)| Some((node.id, said.ok()?)))
            .flat_map(|(node, said)| said.replicas.into_iter().map(move |replica| (node.clone(), replica)))
            .collect();
        let with_leader = |group: &GroupConfig| (group.clone(), Leader::of_group(group, &said));
        (self.config.groups.iter().map(with_leader).collect(), silent)
    }

    /// Waits until these groups have exactly the configured replicas.
    pub(crate) async fn wait_until_configured(&self, groups: &[String], within: Duration) -> Result<()> {
        self.wait_for(groups, within, Leader::is_as_configured).await
    }

    /// Waits until these groups no longer need their replicas on that node: all others are up-to-date voters.
    pub(crate) async fn wait_until_removable(&self, groups: &[String], node: &str, within: Duration) -> Result<()> {
        self.wait_for(groups, within, |leader, group| {
            let mut others = group.replicas.iter().filter(|replica| replica.node_id != node);
            others.all(|replica| leader.voters.contains(&replica.id))
        })
        .await
    }

    /// Waits until all groups use these rules, or later ones.
    pub(crate) async fn wait_until_rules(&self, rules: u16, within: Duration) -> Result<()> {
        let mut wait = Wait::start(within);
        loop {
            wait.tick().await;
            let open = self.leaders().await.into_iter().filter_map(|(group, leader)| match leader {
                None => Some(format!("{} has no leader", group.id)),
                Some(leader) if leader.rules >= rules.into() => None,
                Some(leader) => Some(format!("{} uses rules {}", group.id, leader.rules)),
            });
            let open: Vec<String> = open.collect();
            if open.is_empty() {
                return Ok(());
            }
            wait.report_pending(format!("{} groups to go: {}", open.len(), open.join("; ")))?;
        }
    }

    async fn wait_for(
        &self,
        groups: &[String],
        within: Duration,
        is_so: impl Fn(&Leader, &GroupConfig) -> bool,
    ) -> Result<()> {
        let mut wait = Wait::start(within);
        loop {
            wait.tick().await;
            let (leaders, silent) = self.inspect().await;
            let open: Vec<String> = leaders
                .iter()
                .filter(|(group, _)| groups.contains(&group.id))
                .filter(|(group, leader)| !leader.as_ref().is_some_and(|leader| is_so(leader, group)))
                .map(|(group, leader)| describe(&self.config, group, leader.as_ref(), &silent))
                .collect();
            if open.is_empty() {
                return Ok(());
            }
            wait.report_pending(format!("{} of {} groups to go: {}", open.len(), groups.len(), open.join("; ")))?;
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
            "not finished within {} s: {reason}. What is done stays; run the same command again to continue",
            self.within.as_secs()
        );
        if reason != self.last_report {
            output::info(&reason);
            self.last_report = reason;
        }
        Ok(())
    }
}

fn describe(config: &ClusterConfig, group: &GroupConfig, leader: Option<&Leader>, silent: &[String]) -> String {
    let Some(leader) = leader else { return format!("{} has no leader", group.id) };
    let node_of = |id: u64| {
        let place = group.replicas.iter().find(|replica| replica.id == id);
        place.map_or("a node that it leaves", |replica| replica.node_id.as_str())
    };
    let joining = group.replicas.iter().filter(|replica| !leader.voters.contains(&replica.id));
    let joining: Vec<String> = joining
        .map(|replica| match leader.followers.iter().find(|(id, _)| *id == replica.id) {
            _ if silent.contains(&replica.node_id) => format!("{} does not answer; is it started?", replica.node_id),
            Some((_, behind)) => format!("{} is {behind} entries behind", replica.node_id),
            None => format!("{} is not taken in yet", replica.node_id),
        })
        .collect();
    let leaving = leader.voters.iter().filter(|id| group.replicas.iter().all(|replica| replica.id != **id)).count();
    let led = if config.node(&leader.node).is_some() { node_of(leader.replica) } else { "a node that is gone" };
    match (joining.is_empty(), leaving) {
        (false, _) => format!("{}: {}", group.id, joining.join(", ")),
        (true, 0) => format!("{}: its members are changing", group.id),
        (true, _) => format!("{}: a replica is leaving, led by {led}", group.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::config_of;

    #[test]
    fn a_replica_that_is_not_there_is_told_from_one_on_a_node_that_does_not_answer() {
        let config = config_of(4).add_replica("g1", "nd_4").unwrap();
        let group = config.group("g1").unwrap();
        let voters: Vec<u64> = group.replicas[..3].iter().map(|replica| replica.id).collect();
        let (learners, followers, failed, rules) = (Vec::new(), Vec::new(), Vec::new(), 1);
        let (replica, node) = (voters[0], "nd_1".to_owned());
        let leader = Leader { replica, node, voters, learners, followers, rules, failed };
        let said = |silent: &[String]| describe(&config, group, Some(&leader), silent);
        assert_eq!(said(&[]), "g1: nd_4 is not taken in yet");
        assert_eq!(said(&["nd_4".to_owned()]), "g1: nd_4 does not answer; is it started?");
    }

    #[test]
    fn the_leader_of_a_group_is_that_of_the_latest_term_with_the_lowest_rules_of_its_shards() {
        let config = config_of(3);
        let row = |node: &str, replica, term, rules| {
            let group = "g1".to_owned();
            (
                node.to_owned(),
                ReplicaStatus { group, replica, leader: replica, term, rules, ..ReplicaStatus::default() },
            )
        };
        let said = [row("nd_1", 1, 2, 1), row("nd_2", 2, 3, 3), row("nd_2", 2, 3, 2)];
        let leader = Leader::of_group(config.group("g1").unwrap(), &said).unwrap();
        assert_eq!((leader.node.as_str(), leader.replica, leader.rules), ("nd_2", 2, 2));
        assert!(Leader::of_group(config.group("g2").unwrap(), &said).is_none());
    }
}
