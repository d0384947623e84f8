//! Generates a config: equal ranges, and groups whose replicas spread evenly over the nodes.

use crate::config_file::{ApplicationInFile, ConfigFile, ShardInFile};
use crate::{
    Application, ApplicationConfig, ClusterConfig, ConfigError, GroupConfig, MAX_GROUPS, Node, Replica, Shard, config,
    validate,
};

impl ClusterConfig {
    /// Generates a config of version 1 from nodes given as (id, address). `Accounts` gets one shard, the other
    /// applications `shards_per_application` each, of equal ranges. The replicas of neighbouring shards start at
    /// neighbouring nodes; the groups are derived from them. Each node therefore leads as many groups by preference as
    /// any other, and the groups have about as many shards each.
    ///
    /// # Errors
    /// When the parameters yield no valid config, e.g. fewer nodes than the replication factor or no shards.
    pub fn generate(
        nodes: Vec<(String, String)>,
        shards_per_application: u32,
        replication_factor: u32,
    ) -> Result<Self, ConfigError> {
        seed(listed(nodes), shards_per_application, replication_factor)?.into_config()
    }

    /// The same with a given number of groups. The preferred leaders of the groups are the nodes in turn, and the other
    /// replicas are on the nodes after the leader. The shards get the groups in turn, application by application.
    ///
    /// # Errors
    /// As [`Self::generate`], and when there are no groups or more than [`MAX_GROUPS`].
    pub fn generate_with_groups(
        nodes: Vec<(String, String)>,
        shards_per_application: u32,
        replication_factor: u32,
        groups: u32,
    ) -> Result<Self, ConfigError> {
        let nodes = listed(nodes);
        validate::check_size(&nodes, shards_per_application, replication_factor)?;
        if groups == 0 || groups as usize > MAX_GROUPS {
            let problem = format!("there are {groups}");
            return Err(ConfigError::invalid("groups", problem, format!("use 1 to {MAX_GROUPS}")));
        }
        let mut replica_ids = 1..;
        let groups: Vec<GroupConfig> = (0..groups as usize)
            .map(|index| GroupConfig {
                id: format!("g{}", index + 1),
                replicas: ring(&nodes, index, replication_factor, &mut replica_ids),
            })
            .collect();
        let mut turns = groups.iter().cycle();
        let mut next_group = || turns.next().map_or(String::new(), |group| group.id.clone());
        let applications = Application::ALL.map(|name| ApplicationConfig {
            name,
            replication_factor,
            shards: ranges(name, shards_per_application)
                .map(|(id, lower_bound, upper_bound)| Shard { id, lower_bound, upper_bound, group: next_group() })
                .collect(),
        });
        let config = Self {
            version: 1,
            nodes,
            groups,
            applications: applications.into(),
            next_replica_id: replica_ids.next(),
            rules: None,
        };
        config.validate()?;
        Ok(config)
    }

    /// Encodes the config without groups and with the replicas of each shard, if it is one that [`Self::generate`]
    /// makes. Reading the text yields this config again. Any other config has no such form: `None`.
    pub fn to_seed_json(&self) -> Option<String> {
        let locks = self.application(Application::Locks)?;
        let shards = u32::try_from(locks.shards.len()).ok()?;
        let seed = seed(self.nodes.clone(), shards, locks.replication_factor).ok()?;
        let is_equal = seed.clone().into_config().is_ok_and(|generated| generated == *self);
        is_equal.then(|| config::encode(&seed))
    }
}

/// Generates the seed form of a config.
fn seed(nodes: Vec<Node>, shards_per_application: u32, replication_factor: u32) -> Result<ConfigFile, ConfigError> {
    validate::check_size(&nodes, shards_per_application, replication_factor)?;
    let mut replica_ids = 1..;
    let mut first_nodes = 0..;
    let applications = Application::ALL.map(|name| ApplicationInFile {
        name,
        replication_factor,
        shards: ranges(name, shards_per_application)
            .zip(&mut first_nodes)
            .map(|((id, lower_bound, upper_bound), first)| ShardInFile {
                id,
                lower_bound,
                upper_bound,
                group: None,
                replicas: Some(ring(&nodes, first, replication_factor, &mut replica_ids)),
            })
            .collect(),
    });
    let applications = applications.into();
    Ok(ConfigFile { version: 1, nodes, groups: None, applications, next_replica_id: None, rules: None })
}

fn listed(nodes: Vec<(String, String)>) -> Vec<Node> {
    nodes.into_iter().map(|(id, address)| Node { id, address, gateway_address: None, zone: None }).collect()
}

/// Returns replicas on `count` neighbouring nodes, from the node with index `first` modulo the number of nodes.
fn ring(nodes: &[Node], first: usize, count: u32, ids: &mut impl Iterator<Item = u64>) -> Vec<Replica> {
    let neighbours = nodes.iter().cycle().skip(first % nodes.len());
    neighbours.zip(ids).take(count as usize).map(|(node, id)| Replica { id, node_id: node.id.clone() }).collect()
}

/// Returns id, lower and upper bound of each shard of an application.
fn ranges(name: Application, shards_per_application: u32) -> impl Iterator<Item = (String, u32, u32)> {
    let count = if name == Application::Accounts { 1 } else { shards_per_application };
    (0..count).map(move |index| {
        let (lower_bound, upper_bound) = range(index, count);
        (shard_id(name, index), lower_bound, upper_bound)
    })
}

/// Returns the bounds of range `index` of `count` equal ones, both inclusive.
fn range(index: u32, count: u32) -> (u32, u32) {
    let start = |index: u32| (u64::from(index) << 32) / u64::from(count);
    // `index < count` keeps the first below 2^32 and the second at most 2^32, from which one is subtracted.
    (start(index) as u32, (start(index + 1) - 1) as u32)
}

fn shard_id(application: Application, index: u32) -> String {
    format!("{}_{index:02}", application.name().to_lowercase())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn nodes(count: usize) -> Vec<(String, String)> {
        (1..=count).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number))).collect()
    }

    fn node(id: &str, address: &str) -> Node {
        Node { id: id.to_owned(), address: address.to_owned(), gateway_address: None, zone: None }
    }

    #[test]
    fn the_config_that_ships_is_what_generate_makes() {
        let config = ClusterConfig::generate(nodes(3), 16, 3).unwrap();
        assert_eq!(include_str!("../../../cluster_config.json"), config.to_seed_json().unwrap());
    }

    #[test]
    fn ids_and_bounds_follow_the_documented_pattern() {
        let config = ClusterConfig::generate(nodes(3), 16, 3).unwrap();
        let locks = config.application(Application::Locks).unwrap();
        assert_eq!(locks.shards[3].id, "locks_03");
        assert_eq!((locks.shards[3].lower_bound, locks.shards[3].upper_bound), (0x3000_0000, 0x3fff_ffff));
        assert_eq!(locks.shards[15].group, "g3");
        assert_eq!((config.groups[2].replicas[2].id, config.next_replica_id), (9, Some(100)));
        assert_eq!(config.application(Application::Accounts).unwrap().shards[0].id, "accounts_00");
    }

    #[test]
    fn every_node_is_preferred_by_about_as_many_shards_as_any_other() {
        let config = ClusterConfig::generate(nodes(5), 16, 3).unwrap();
        let mut firsts = BTreeMap::new();
        for shard in config.shards() {
            let group = config.group(&shard.group).unwrap();
            *firsts.entry(group.replicas[0].node_id.clone()).or_insert(0) += 1;
        }
        assert_eq!(firsts.len(), 5);
        assert!(firsts.values().all(|count| (6..=7).contains(count)), "{firsts:?}");
    }

    #[test]
    fn as_many_groups_as_nodes_are_those_of_the_seed() {
        let derived = ClusterConfig::generate(nodes(5), 16, 3).unwrap();
        let explicit = ClusterConfig::generate_with_groups(nodes(5), 16, 3, 5).unwrap();
        assert_eq!(explicit.next_replica_id, Some(16));
        assert_eq!(ClusterConfig { next_replica_id: derived.next_replica_id, ..explicit }, derived);
    }

    #[test]
    fn groups_take_turns_in_the_ring_of_nodes() {
        let config = ClusterConfig::generate_with_groups(nodes(3), 16, 2, 4).unwrap();
        let places = |group: &GroupConfig| group.replicas.iter().map(|one| one.node_id.clone()).collect::<Vec<_>>();
        let expected = [["nd_1", "nd_2"], ["nd_2", "nd_3"], ["nd_3", "nd_1"], ["nd_1", "nd_2"]];
        assert_eq!(config.groups.iter().map(places).collect::<Vec<_>>(), expected);
        let dealt = config.shards().take(6).map(|shard| shard.group.as_str()).collect::<Vec<_>>();
        assert_eq!(dealt, ["g1", "g2", "g3", "g4", "g1", "g2"]);
        let one = ClusterConfig::generate_with_groups(nodes(3), 16, 3, 1).unwrap();
        assert!(one.shards().all(|shard| shard.group == "g1"));
        let refused = |groups| ClusterConfig::generate_with_groups(nodes(3), 16, 3, groups).unwrap_err().to_string();
        for groups in [0, 1_025] {
            assert!(refused(groups).starts_with("groups: "), "{}", refused(groups));
        }
    }

    #[test]
    fn only_a_config_that_still_equals_its_seed_has_a_seed_form() {
        let config = ClusterConfig::generate(nodes(4), 4, 3).unwrap();
        assert_eq!(ClusterConfig::from_json(&config.to_seed_json().unwrap()).unwrap(), config);
        for changed in [
            config.add_node(node("nd_5", "127.0.0.1:7100")).unwrap(),
            config.add_replica("g1", "nd_4").unwrap(),
            config.allow_rules(2).unwrap(),
            ClusterConfig::generate_with_groups(nodes(4), 4, 3, 2).unwrap(),
        ] {
            assert_eq!(changed.to_seed_json(), None);
            assert_eq!(ClusterConfig::from_json(&changed.to_json()).unwrap(), changed);
        }
    }

    #[test]
    fn impossible_wishes_are_refused_with_what_to_do() {
        let refused = |nodes, shards, factor| ClusterConfig::generate(nodes, shards, factor).unwrap_err().to_string();
        assert!(refused(nodes(2), 16, 3).contains("only 2"), "{}", refused(nodes(2), 16, 3));
        assert!(refused(nodes(3), 0, 3).contains("shards"), "{}", refused(nodes(3), 0, 3));
        assert!(refused(nodes(3), 16, 0).contains("replication_factor"), "{}", refused(nodes(3), 16, 0));
        assert!(refused(nodes(0), 16, 3).starts_with("nodes: "), "{}", refused(nodes(0), 16, 3));
        assert!(refused(nodes(3), u32::MAX, 3).contains("at most"), "{}", refused(nodes(3), u32::MAX, 3));
        let twice = vec![nodes(1)[0].clone(), nodes(1)[0].clone()];
        assert!(refused(twice, 1, 2).starts_with("nodes[1].id: "));
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_generated_is_valid(count in 1_usize..8, shards in 1_u32..200, factor in 1_u32..8) {
            if let Ok(config) = ClusterConfig::generate(nodes(count), shards, factor) {
                config.validate().unwrap();
                proptest::prop_assert!(factor as usize <= count);
            } else {
                proptest::prop_assert!(factor as usize > count);
            }
        }

        #[test]
        fn whatever_is_generated_reads_back_in_each_form(
            count in 1_usize..8, shards in 1_u32..50, factor in 1_u32..8, groups in 1_u32..20
        ) {
            if let Ok(config) = ClusterConfig::generate(nodes(count), shards, factor) {
                proptest::prop_assert_eq!(&ClusterConfig::from_json(&config.to_json()).unwrap(), &config);
                proptest::prop_assert_eq!(&ClusterConfig::from_json(&config.to_seed_json().unwrap()).unwrap(), &config);
                let config = ClusterConfig::generate_with_groups(nodes(count), shards, factor, groups).unwrap();
                proptest::prop_assert_eq!(&ClusterConfig::from_json(&config.to_json()).unwrap(), &config);
            }
        }
    }
}
