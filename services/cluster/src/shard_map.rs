//! Finds shards by key and by id, groups by id, and replicas by node and by id.

use std::collections::{BTreeMap, HashMap};

use crate::{Application, ClusterConfig, ConfigError, GroupConfig, Node, Replica, Shard, shard_key};

/// A valid, indexed config. A look-up by key costs a binary search, any other a hash.
#[derive(Clone, Debug)]
pub struct ShardMap {
    config: ClusterConfig,
    /// The shards of each application, in order of their bounds.
    ranges: BTreeMap<Application, Vec<ShardIndex>>,
    shards: HashMap<String, ShardIndex>,
    groups: HashMap<String, usize>,
    /// The shards of each group of the config, in order of their ids.
    group_shards: Vec<Vec<ShardIndex>>,
    replicas: HashMap<u64, ReplicaIndex>,
    nodes: HashMap<String, usize>,
}

/// The index of a shard in the config.
#[derive(Clone, Copy, Debug)]
struct ShardIndex {
    application: usize,
    shard: usize,
}

/// The index of a replica in the config.
#[derive(Clone, Copy, Debug)]
struct ReplicaIndex {
    group: usize,
    replica: usize,
}

/// A replica with its group and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaLocation<'a> {
    /// Its group.
    pub group: &'a GroupConfig,
    /// The replica itself.
    pub replica: &'a Replica,
    /// The node that hosts it.
    pub node: &'a Node,
}

/// A shard with its number in the log of its group.
///
/// The number is the index of the shard among the shards of the group, in order of their ids. It depends on nothing
/// else, so the order of listing in a file does not matter. It never changes, because a group keeps its set of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShard<'a> {
    /// The shard's number.
    pub number: u32,
    /// The application of the shard.
    pub application: Application,
    /// The shard itself.
    pub shard: &'a Shard,
}

impl ShardMap {
    /// Indexes a config.
    ///
    /// # Errors
    /// When the config fails [`ClusterConfig::validate`].
    pub fn new(config: ClusterConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let groups: HashMap<String, usize> =
            config.groups.iter().enumerate().map(|(index, group)| (group.id.clone(), index)).collect();
        let mut replicas = HashMap::new();
        for (group, listed) in config.groups.iter().enumerate() {
            for (index, replica) in listed.replicas.iter().enumerate() {
                replicas.insert(replica.id, ReplicaIndex { group, replica: index });
            }
        }
        let mut ranges = BTreeMap::new();
        let mut shards = HashMap::new();
        let mut group_shards = vec![Vec::new(); config.groups.len()];
        for (application, listed) in config.applications.iter().enumerate() {
            let mut sorted: Vec<ShardIndex> =
                (0..listed.shards.len()).map(|shard| ShardIndex { application, shard }).collect();
            sorted.sort_by_key(|at| listed.shards[at.shard].lower_bound);
            for &at in &sorted {
                let shard = &listed.shards[at.shard];
                shards.insert(shard.id.clone(), at);
                // The config is valid: every shard names a known group.
                group_shards[groups[&shard.group]].push(at);
            }
            ranges.insert(listed.name, sorted);
        }
        for listed in &mut group_shards {
            listed.sort_by_key(|at| &config.applications[at.application].shards[at.shard].id);
        }
        let nodes = config.nodes.iter().enumerate().map(|(index, node)| (node.id.clone(), index)).collect();
        Ok(Self { config, ranges, shards, groups, group_shards, replicas, nodes })
    }

    /// Returns the config as given.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// Returns the shard that owns a key.
    pub fn shard_for(&self, application: Application, key: u32) -> &Shard {
        let ranges = &self.ranges[&application];
        let after = ranges.partition_point(|at| self.shard_at(*at).lower_bound <= key);
        // The config is valid: some shard begins at key 0, so `after` is at least 1, and the preceding shard owns the
        // key.
        self.shard_at(ranges[after - 1])
    }

    /// Returns the shard of an account, or of one of its namespaces: [`shard_key`], then [`Self::shard_for`].
    pub fn shard_of(&self, application: Application, account: u64, namespace: &str) -> &Shard {
        self.shard_for(application, shard_key(application, account, namespace))
    }

    /// Returns the shard with this id.
    pub fn shard(&self, shard_id: &str) -> Option<&Shard> {
        self.shards.get(shard_id).map(|at| self.shard_at(*at))
    }

    /// Returns the shards of an application in order of their bounds.
    pub fn shards(&self, application: Application) -> impl ExactSizeIterator<Item = &Shard> {
        self.ranges[&application].iter().map(|at| self.shard_at(*at))
    }

    /// Returns the group with this id.
    pub fn group(&self, id: &str) -> Option<&GroupConfig> {
        self.groups.get(id).map(|index| &self.config.groups[*index])
    }

    /// Returns the group of a shard.
    ///
    /// # Panics
    /// When the shard is of another config and its group is not in this one.
    pub fn group_of(&self, shard: &Shard) -> &GroupConfig {
        &self.config.groups[self.groups[&shard.group]]
    }

    /// Returns the shards of a group in order of their ids, i.e. of their numbers; none for an unknown group.
    pub fn shards_of_group(&self, id: &str) -> Vec<GroupShard<'_>> {
        let Some(group) = self.groups.get(id) else { return Vec::new() };
        let numbered = (0..).zip(&self.group_shards[*group]);
        numbered
            .map(|(number, at)| GroupShard {
                number,
                application: self.config.applications[at.application].name,
                shard: self.shard_at(*at),
            })
            .collect()
    }

    /// Returns the replica with this id.
    pub fn replica(&self, replica_id: u64) -> Option<ReplicaLocation<'_>> {
        self.replicas.get(&replica_id).map(|at| {
            let group = &self.config.groups[at.group];
            self.replica_location(group, &group.replicas[at.replica])
        })
    }

    /// Returns all replicas on a node, in the order of the groups in the config; none for an unknown node.
    pub fn replicas_of_node(&self, node_id: &str) -> Vec<ReplicaLocation<'_>> {
        let groups = self.config.groups.iter();
        groups
            .filter_map(|group| group.replica_on(node_id).map(|replica| self.replica_location(group, replica)))
            .collect()
    }

    /// Returns the node with this id.
    pub fn node(&self, node_id: &str) -> Option<&Node> {
        self.nodes.get(node_id).map(|index| &self.config.nodes[*index])
    }

    fn shard_at(&self, at: ShardIndex) -> &Shard {
        &self.config.applications[at.application].shards[at.shard]
    }

    fn replica_location<'a>(&'a self, group: &'a GroupConfig, replica: &'a Replica) -> ReplicaLocation<'a> {
        // The config is valid: every replica names a known node.
        let node = &self.config.nodes[self.nodes[&replica.node_id]];
        ReplicaLocation { group, replica, node }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> ShardMap {
        ShardMap::new(ClusterConfig::from_json(include_str!("../../../cluster_config.json")).unwrap()).unwrap()
    }

    #[test]
    fn the_documented_account_has_its_namespaces_in_the_shard_of_its_key() {
        let map = map();
        let shard = map.shard_of(Application::Namespaces, 17_376_851_231_650_125_672, "");
        assert_eq!(shard.id, "namespaces_11");
        assert!(shard.lower_bound <= 0xb207_da9a && 0xb207_da9a <= shard.upper_bound);
        assert_eq!(map.shard_of(Application::Accounts, 17_376_851_231_650_125_672, "").id, "accounts_00");
    }

    #[test]
    fn both_ends_of_every_range_belong_to_its_shard_in_any_order_of_listing() {
        let mut config = map().config().clone();
        config.applications[2].shards.swap(0, 9);
        config.applications.swap(0, 2);
        let map = ShardMap::new(config).unwrap();
        for application in Application::ALL {
            for shard in map.shards(application) {
                assert_eq!(map.shard_for(application, shard.lower_bound), shard);
                assert_eq!(map.shard_for(application, shard.upper_bound), shard);
                assert_eq!(map.shard(&shard.id), Some(shard));
            }
        }
    }

    #[test]
    fn replicas_are_found_by_node_and_by_id() {
        let map = map();
        for node in &map.config().nodes {
            let locations = map.replicas_of_node(&node.id);
            let groups: Vec<&str> = locations.iter().map(|location| location.group.id.as_str()).collect();
            assert_eq!(groups, ["g1", "g2", "g3"]);
            for location in locations {
                assert_eq!(location.node, node);
                assert_eq!(map.replica(location.replica.id), Some(location));
            }
        }
    }

    #[test]
    fn shards_of_a_group_are_numbered_by_their_ids_in_any_order_of_listing() {
        let numbers = |map: &ShardMap, group: &str| {
            let shards = map.shards_of_group(group);
            for shard in &shards {
                assert_eq!(map.group_of(shard.shard), map.group(group).unwrap());
                assert_eq!(map.shard_for(shard.application, shard.shard.lower_bound), shard.shard);
            }
            shards.iter().map(|shard| (shard.number, shard.shard.id.clone())).collect::<Vec<_>>()
        };
        let map = map();
        let first = numbers(&map, "g1");
        assert_eq!(first.len(), 11);
        assert_eq!((&first[0], &first[1]), (&(0, "accounts_00".to_owned()), &(1, "locks_01".to_owned())));
        assert_eq!(first[10], (10, "namespaces_14".to_owned()));

        let mut config = map.config().clone();
        config.applications[2].shards.reverse();
        config.applications.swap(0, 2);
        config.groups.rotate_left(1);
        let reordered = ShardMap::new(config).unwrap();
        for group in ["g1", "g2", "g3"] {
            assert_eq!(numbers(&reordered, group), numbers(&map, group));
        }
    }

    #[test]
    fn unknown_ids_are_not_found() {
        let map = map();
        assert_eq!(map.shard("locks_99"), None);
        assert_eq!(map.replica(10), None);
        assert_eq!(map.group("g4"), None);
        assert!(map.shards_of_group("g4").is_empty());
        assert_eq!(map.node("nd_9"), None);
        assert!(map.replicas_of_node("nd_9").is_empty());
    }

    #[test]
    fn no_map_is_made_of_an_invalid_config() {
        let mut config = map().config().clone();
        config.applications[1].shards.pop();
        assert!(ShardMap::new(config).is_err());
    }
}
