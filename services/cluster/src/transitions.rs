//! The steps of changing a running cluster: each creates the next version of its config.
//!
//! A replica moves in two steps. First its group gets an additional replica on the new node; once that is a voter with
//! all data, the replica on the old node is removed. No step therefore leaves a group with fewer copies than before,
//! and each can be repeated, or undone by removing the other replica.

use crate::{ClusterConfig, ConfigError, GroupConfig, Node, Replica};

impl ClusterConfig {
    /// Returns the next version, with an additional, empty node.
    ///
    /// # Errors
    /// When the id or an address is already used or malformed.
    pub fn add_node(&self, node: Node) -> Result<Self, ConfigError> {
        let mut next = self.next_version()?;
        next.nodes.push(node);
        self.check_transition(&next)?;
        Ok(next)
    }

    /// Returns the next version, without an empty node.
    ///
    /// # Errors
    /// When there is no such node, or it still hosts replicas.
    pub fn remove_node(&self, id: &str) -> Result<Self, ConfigError> {
        let kept = self.groups.iter().filter(|group| group.replica_on(id).is_some()).count();
        if kept > 0 {
            let problem = format!("{id:?} still keeps replicas of {kept} groups");
            return Err(ConfigError::invalid("nodes", problem, "move them to other nodes first"));
        }
        if self.node(id).is_none() {
            return Err(self.unknown_node(id));
        }
        let mut next = self.next_version()?;
        next.nodes.retain(|node| node.id != id);
        self.check_transition(&next)?;
        Ok(next)
    }

    /// Returns the next version, in which a group has an additional replica on this node.
    ///
    /// # Errors
    /// When there is no such group or node, the node has a replica of it, or the group already has an additional one.
    pub fn add_replica(&self, group: &str, node: &str) -> Result<Self, ConfigError> {
        self.add_replicas(&[(group.to_owned(), node.to_owned())])
    }

    /// The same for several groups in one version, given as (group, node).
    ///
    /// # Errors
    /// As [`Self::add_replica`].
    pub fn add_replicas(&self, locations: &[(String, String)]) -> Result<Self, ConfigError> {
        let mut next = self.next_version()?;
        let mut unused = self.first_unused_replica();
        for (group, node) in locations {
            if self.node(node).is_none() {
                return Err(self.unknown_node(node));
            }
            let found = next.group_mut(group)?;
            found.replicas.push(Replica { id: unused, node_id: node.clone() });
            unused += 1;
        }
        next.next_replica_id = Some(unused);
        self.check_transition(&next)?;
        Ok(next)
    }

    /// Returns the next version, in which a group has no replica on this node.
    ///
    /// # Errors
    /// When there is none, or the group would have too few.
    pub fn remove_replica(&self, group: &str, node: &str) -> Result<Self, ConfigError> {
        self.remove_replicas(&[(group.to_owned(), node.to_owned())])
    }

    /// The same for several groups in one version, given as (group, node).
    ///
    /// # Errors
    /// As [`Self::remove_replica`].
    pub fn remove_replicas(&self, locations: &[(String, String)]) -> Result<Self, ConfigError> {
        let mut next = self.next_version()?;
        next.next_replica_id = Some(self.first_unused_replica());
        for (group, node) in locations {
            let found = next.group_mut(group)?;
            if found.replica_on(node).is_none() {
                let problem = format!("group {group:?} has no replica on {node:?}");
                return Err(ConfigError::invalid("groups", problem, "name a node that keeps one"));
            }
            let added = found.replicas.len().saturating_sub(1);
            if let Some(at) = found.replicas.iter().position(|replica| replica.node_id == *node) {
                // The one that was added takes its rank: who replaces a preferred leader is preferred.
                found.replicas.swap(at, added);
                found.replicas.truncate(added);
            }
        }
        self.check_transition(&next)?;
        Ok(next)
    }

    /// Returns the next version, in which groups may be raised to these rules.
    ///
    /// # Errors
    /// When higher ones were already allowed.
    pub fn allow_rules(&self, rules: u16) -> Result<Self, ConfigError> {
        let next = Self { rules: Some(rules), ..self.next_version()? };
        self.check_transition(&next)?;
        Ok(next)
    }

    pub(crate) fn next_version(&self) -> Result<Self, ConfigError> {
        let problem = || ConfigError::invalid("version", "it cannot rise any more", "use a lower one");
        Ok(Self { version: self.version.checked_add(1).ok_or_else(problem)?, ..self.clone() })
    }

    pub(crate) fn unknown_node(&self, node: &str) -> ConfigError {
        let known: Vec<&str> = self.nodes.iter().map(|node| node.id.as_str()).collect();
        let known = format!("name one of {}", known.join(", "));
        ConfigError::invalid("nodes", format!("there is no node {node:?}"), known)
    }

    fn group_mut(&mut self, id: &str) -> Result<&mut GroupConfig, ConfigError> {
        let unknown = || {
            let problem = format!("there is no group {id:?}");
            ConfigError::invalid("groups", problem, "`holdfast-admin config show` lists the groups")
        };
        self.groups.iter_mut().find(|group| group.id == id).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ClusterConfig {
        let nodes = (1..=4).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number)));
        ClusterConfig::generate(nodes.collect(), 4, 3).unwrap()
    }

    fn node(id: &str, address: &str) -> Node {
        Node { id: id.to_owned(), address: address.to_owned(), gateway_address: None, zone: None }
    }

    fn nodes_of(config: &ClusterConfig, group: &str) -> Vec<String> {
        config.group(group).unwrap().replicas.iter().map(|replica| replica.node_id.clone()).collect()
    }

    #[test]
    fn a_replica_moves_in_two_versions_and_either_way_back_is_one() {
        let first = config();
        let wider = first.add_replica("g1", "nd_4").unwrap();
        assert_eq!(nodes_of(&wider, "g1"), ["nd_1", "nd_2", "nd_3", "nd_4"]);
        let moved = wider.remove_replica("g1", "nd_1").unwrap();
        assert_eq!(nodes_of(&moved, "g1"), ["nd_4", "nd_2", "nd_3"], "who replaces the preferred leader is preferred");
        let undone = wider.remove_replica("g1", "nd_4").unwrap();
        assert_eq!(nodes_of(&undone, "g1"), nodes_of(&first, "g1"));
        assert_eq!([wider.version, moved.version, undone.version], [2, 3, 3]);
    }

    #[test]
    fn what_would_leave_too_few_or_too_many_is_refused_with_what_to_do() {
        let first = config();
        let refusal = |result: Result<ClusterConfig, ConfigError>| result.unwrap_err().to_string();
        let few = refusal(first.remove_replica("g1", "nd_1"));
        assert!(few.contains("there are 2, but replication_factor is 3"), "{few}");
        let taken = refusal(first.add_replica("g1", "nd_1"));
        assert!(taken.contains("already keeps"), "{taken}");
        let kept = refusal(first.remove_node("nd_1"));
        assert!(kept.contains("still keeps replicas of") && kept.contains("move them"), "{kept}");
        let twice = refusal(first.add_node(node("nd_1", "127.0.0.1:9999")));
        assert!(twice.contains("nd_1"), "{twice}");
        assert!(refusal(first.add_replica("g99", "nd_4")).contains("g99"));
    }

    #[test]
    fn a_node_comes_and_goes() {
        let more = config().add_node(node("nd_5", "127.0.0.1:7100")).unwrap();
        assert!(more.node("nd_5").is_some());
        assert!(more.remove_node("nd_5").unwrap().node("nd_5").is_none());
    }
}
