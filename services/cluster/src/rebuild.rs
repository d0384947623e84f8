//! The next config of a cluster in which one node has lost its data.

use crate::{ClusterConfig, ConfigError};

impl ClusterConfig {
    /// Returns the next version, in which every replica of a node has an id that was never used: with an empty data
    /// directory, the node receives them all from its peers.
    ///
    /// # Errors
    /// When there is no such node, it has no replicas, or a group has no other replica to copy from.
    pub fn rebuild_node(&self, node: &str) -> Result<Self, ConfigError> {
        if self.node(node).is_none() {
            return Err(self.unknown_node(node));
        }
        let mut next = self.next_version()?;
        let mut unused = self.first_unused_replica();
        for (index, group) in next.groups.iter_mut().enumerate() {
            let is_alone = group.replicas.iter().all(|replica| replica.node_id == node);
            for replica in group.replicas.iter_mut().filter(|replica| replica.node_id == node) {
                if is_alone {
                    let problem = format!("group {:?} has its only replica on {node:?}", group.id);
                    let remedy = "its data is nowhere else: restore a backup";
                    return Err(ConfigError::invalid(format!("groups[{index}]"), problem, remedy));
                }
                (replica.id, unused) = (unused, unused + 1);
            }
        }
        next.next_replica_id = Some(unused);
        self.check_transition(&next)?;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(nodes: usize, replicas: u32) -> ClusterConfig {
        let nodes = (1..=nodes).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number)));
        ClusterConfig::generate(nodes.collect(), 4, replicas).unwrap()
    }

    fn replicas(config: &ClusterConfig, node: &str) -> Vec<u64> {
        config.groups.iter().filter_map(|group| group.replica_on(node)).map(|replica| replica.id).collect()
    }

    #[test]
    fn every_replica_of_the_node_gets_an_id_above_all_others_and_nothing_else_changes() {
        let first = config(3, 3);
        let next = first.rebuild_node("nd_2").unwrap();
        assert_eq!(next.version, 2);
        assert_eq!(replicas(&next, "nd_2"), (28..=30).collect::<Vec<u64>>());
        for other in ["nd_1", "nd_3"] {
            assert_eq!(replicas(&next, other), replicas(&first, other));
        }
        // After a second rebuild, earlier ids are not reused.
        assert_eq!(replicas(&next.rebuild_node("nd_2").unwrap(), "nd_2"), (31..=33).collect::<Vec<u64>>());
    }

    #[test]
    fn a_node_that_is_unknown_or_has_no_peers_is_refused_with_what_to_do() {
        let unknown = config(3, 3).rebuild_node("nd_9").unwrap_err().to_string();
        assert!(unknown.contains("\"nd_9\"") && unknown.contains("nd_1, nd_2, nd_3"), "{unknown}");
        let alone = config(1, 1).rebuild_node("nd_1").unwrap_err().to_string();
        assert!(alone.contains("only replica") && alone.contains("backup"), "{alone}");
    }
}
