//! Finds shards by key and by id, and replicas by node and by id.

use std::collections::{BTreeMap, HashMap};

use crate::{Application, ClusterConfig, ConfigError, Node, Replica, Shard, shard_key};

/// A valid, indexed config. A look-up by key costs a binary search, any other a hash.
#[derive(Clone, Debug)]
pub struct ShardMap {
    config: ClusterConfig,
    /// The shards of each application, in order of their bounds.
    ranges: BTreeMap<Application, Vec<ShardIndex>>,
    shards: HashMap<String, ShardIndex>,
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
    shard: ShardIndex,
    replica: usize,
}

/// A replica with its shard and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaLocation<'a> {
    /// The application of its shard.
    pub application: Application,
    /// Its shard.
    pub shard: &'a Shard,
    /// The replica itself.
    pub replica: &'a Replica,
    /// The node that hosts it.
    pub node: &'a Node,
}

impl ShardMap {
    /// Indexes a config.
    ///
    /// # Errors
    /// When the config fails [`ClusterConfig::validate`].
    pub fn new(config: ClusterConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let mut ranges = BTreeMap::new();
        let mut shards = HashMap::new();
        let mut replicas = HashMap::new();
        for (application, listed) in config.applications.iter().enumerate() {
            let mut sorted: Vec<ShardIndex> =
                (0..listed.shards.len()).map(|shard| ShardIndex { application, shard }).collect();
            sorted.sort_by_key(|at| listed.shards[at.shard].lower_bound);
            for &at in &sorted {
                let shard = &listed.shards[at.shard];
                shards.insert(shard.id.clone(), at);
                for (index, replica) in shard.replicas.iter().enumerate() {
                    replicas.insert(replica.id, ReplicaIndex { shard: at, replica: index });
                }
            }
            ranges.insert(listed.name, sorted);
        }
        let nodes = config.nodes.iter().enumerate().map(|(index, node)| (node.id.clone(), index)).collect();
        Ok(Self { config, ranges, shards, replicas, nodes })
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

    /// Returns the replica with this id.
    pub fn replica(&self, replica_id: u64) -> Option<ReplicaLocation<'_>> {
        self.replicas.get(&replica_id).map(|at| self.replica_location(*at))
    }

    /// Returns all replicas on a node, in order of applications and bounds; none for an unknown node.
    pub fn replicas_of_node(&self, node_id: &str) -> Vec<ReplicaLocation<'_>> {
        let shards = self.ranges.values().flatten();
        shards
            .flat_map(|shard| {
                (0..self.shard_at(*shard).replicas.len())
                    .map(|replica| self.replica_location(ReplicaIndex { shard: *shard, replica }))
            })
            .filter(|location| location.replica.node_id == node_id)
            .collect()
    }

    /// Returns the node with this id.
    pub fn node(&self, node_id: &str) -> Option<&Node> {
        self.nodes.get(node_id).map(|index| &self.config.nodes[*index])
    }

    fn shard_at(&self, at: ShardIndex) -> &Shard {
        &self.config.applications[at.application].shards[at.shard]
    }

    fn replica_location(&self, at: ReplicaIndex) -> ReplicaLocation<'_> {
        let shard = self.shard_at(at.shard);
        let replica = &shard.replicas[at.replica];
        // The config is valid: every replica names a known node.
        let node = &self.config.nodes[self.nodes[&replica.node_id]];
        ReplicaLocation { application: self.config.applications[at.shard.application].name, shard, replica, node }
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
            assert_eq!(locations.len(), 33);
            for location in locations {
                assert_eq!(location.node, node);
                assert_eq!(map.replica(location.replica.id), Some(location));
            }
        }
    }

    #[test]
    fn unknown_ids_are_not_found() {
        let map = map();
        assert_eq!(map.shard("locks_99"), None);
        assert_eq!(map.replica(100), None);
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
