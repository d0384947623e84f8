//! Groups: the shards that share one Raft log.
//!
//! Shards whose replicas are on the same nodes, with the first on the same node, form a group. Its first shard in the
//! config is its *anchor*: the ids of the anchor's replicas identify the replicas of the group.

use std::collections::{BTreeMap, HashMap};

use crate::{ClusterConfig, ConfigError, Replica, Shard};

/// Maximum groups of a cluster.
pub const MAX_GROUPS: usize = 1_024;

/// A group of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardGroup {
    /// An id like `g1`, numbered in the order of the anchors.
    pub id: String,
    /// The replicas of the group: those of its anchor. The first one's node leads it by preference.
    pub replicas: Vec<Replica>,
    /// The ids of its shards, in the order of the config.
    pub shards: Vec<String>,
}

/// Which group has which shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    groups: Vec<ShardGroup>,
    by_shard: HashMap<String, usize>,
}

impl Placement {
    /// Derives the groups of a valid config.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when there are more than [`MAX_GROUPS`].
    pub fn derive(config: &ClusterConfig) -> Result<Self, ConfigError> {
        let mut groups: Vec<ShardGroup> = Vec::new();
        let mut by_nodes: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
        let mut by_shard = HashMap::new();
        for shard in config.shards() {
            let index = *by_nodes.entry(nodes_of(shard)).or_insert_with(|| {
                let id = format!("g{}", groups.len() + 1);
                groups.push(ShardGroup { id, replicas: shard.replicas.clone(), shards: Vec::new() });
                groups.len() - 1
            });
            groups[index].shards.push(shard.id.clone());
            by_shard.insert(shard.id.clone(), index);
        }
        if groups.len() > MAX_GROUPS {
            return Err(ConfigError::invalid(
                "applications",
                format!("the replicas of its shards make {} groups", groups.len()),
                format!("give more shards the same nodes, in the same order: at most {MAX_GROUPS} groups"),
            ));
        }
        Ok(Self { groups, by_shard })
    }

    /// Returns all groups, in the order of their anchors.
    pub fn groups(&self) -> &[ShardGroup] {
        &self.groups
    }

    /// Returns the group of a shard.
    pub fn group_of(&self, shard: &str) -> Option<&ShardGroup> {
        self.by_shard.get(shard).map(|index| &self.groups[*index])
    }
}

/// Returns the node of the first replica, then those of the others in order of id.
fn nodes_of(shard: &Shard) -> Vec<&str> {
    let mut nodes: Vec<&str> = shard.replicas.iter().map(|replica| replica.node_id.as_str()).collect();
    if let Some((_, others)) = nodes.split_first_mut() {
        others.sort_unstable();
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(nodes: usize, shards: u32, replicas: u32) -> ClusterConfig {
        let nodes = (1..=nodes).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number)));
        ClusterConfig::generate(nodes.collect(), shards, replicas).unwrap()
    }

    /// Id, replica ids, preferred node, and shards by application.
    fn shape(group: &ShardGroup) -> (&str, Vec<u64>, &str, [usize; 3]) {
        let count = |name: &str| group.shards.iter().filter(|shard| shard.starts_with(name)).count();
        let ids = group.replicas.iter().map(|replica| replica.id).collect();
        (&group.id, ids, &group.replicas[0].node_id, ["accounts", "namespaces", "locks"].map(count))
    }

    #[test]
    fn the_config_that_ships_makes_a_group_for_each_node() {
        let config = ClusterConfig::from_json(include_str!("../../../cluster_config.json")).unwrap();
        let placement = Placement::derive(&config).unwrap();
        let groups: Vec<_> = placement.groups().iter().map(shape).collect();
        let expected = [
            ("g1", vec![1, 2, 3], "nd_1", [1, 5, 5]),
            ("g2", vec![4, 5, 6], "nd_2", [0, 6, 5]),
            ("g3", vec![7, 8, 9], "nd_3", [0, 5, 6]),
        ];
        assert_eq!(groups, expected);
        for shard in config.shards() {
            let group = placement.group_of(&shard.id).unwrap();
            assert!(group.shards.contains(&shard.id));
            assert_eq!(group.replicas[0].node_id, shard.replicas[0].node_id);
        }
        assert_eq!(placement.group_of("locks_99"), None);
    }

    #[test]
    fn larger_clusters_make_a_ring_of_groups_and_one_node_makes_one() {
        let placement = Placement::derive(&generated(9, 16, 3)).unwrap();
        let firsts: Vec<_> = placement.groups().iter().map(|group| group.replicas[0].node_id.as_str()).collect();
        assert_eq!(firsts, ["nd_1", "nd_2", "nd_3", "nd_4", "nd_5", "nd_6", "nd_7", "nd_8", "nd_9"]);
        assert_eq!(Placement::derive(&generated(1, 16, 1)).unwrap().groups().len(), 1);
    }

    #[test]
    fn the_order_of_the_replicas_behind_the_first_does_not_matter() {
        let mut config = generated(3, 4, 3);
        let shards = |config: &ClusterConfig| {
            let placement = Placement::derive(config).unwrap();
            placement.groups().iter().map(|group| group.shards.clone()).collect::<Vec<_>>()
        };
        let before = shards(&config);
        for application in &mut config.applications {
            for shard in application.shards.iter_mut().skip(1) {
                shard.replicas.swap(1, 2);
            }
        }
        assert_eq!(shards(&config), before);
        config.applications[2].shards[3].replicas.swap(0, 1);
        assert_ne!(shards(&config), before);
    }

    #[test]
    fn too_many_groups_are_refused_with_what_to_do() {
        let mut config = generated(20, 900, 3);
        // Another set of nodes for each shard, as far as there are any.
        let mut sets = (0..20_usize).flat_map(|a| (0..20).flat_map(move |b| (b + 1..20).map(move |c| [a, b, c])));
        for shard in config.applications.iter_mut().flat_map(|application| &mut application.shards) {
            let [first, second, third] = sets.by_ref().find(|[a, b, c]| a != b && a != c).unwrap_or([0, 1, 2]);
            for (replica, node) in shard.replicas.iter_mut().zip([first, second, third]) {
                replica.node_id = format!("nd_{}", node + 1);
            }
        }
        config.validate().unwrap();
        let refusal = Placement::derive(&config).unwrap_err().to_string();
        assert!(refusal.contains("groups") && refusal.contains("at most 1024"), "{refusal}");
    }
}
