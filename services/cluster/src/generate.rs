//! Generates a config: equal ranges, replicas spread evenly over the nodes.

use crate::{Application, ApplicationConfig, ClusterConfig, ConfigError, Node, Replica, Shard};

impl ClusterConfig {
    /// Generates a config of version 1 from nodes given as (id, address). `Accounts` gets one shard, the other
    /// applications `shards_per_application` each, of equal ranges. The replicas of neighbouring shards start at
    /// neighbouring nodes, so that each node is first in about as many shards as any other.
    ///
    /// # Errors
    /// When the parameters yield no valid config, e.g. fewer nodes than the replication factor or no shards.
    pub fn generate(
        nodes: Vec<(String, String)>,
        shards_per_application: u32,
        replication_factor: u32,
    ) -> Result<Self, ConfigError> {
        let mut config = Self {
            version: 1,
            nodes: nodes.into_iter().map(|(id, address)| Node { id, address }).collect(),
            applications: Vec::new(),
            next_replica_id: None,
            rules: None,
        };
        crate::validate::check_size(&config.nodes, shards_per_application, replication_factor)?;

        let mut shards_made = 0;
        let mut next_replica_id = 1;
        for name in Application::ALL {
            let count = if name == Application::Accounts { 1 } else { shards_per_application };
            let mut shards = Vec::new();
            for index in 0..count {
                let (lower_bound, upper_bound) = range(index, count);
                let mut replicas = Vec::new();
                for offset in 0..replication_factor as usize {
                    let node = &config.nodes[(shards_made + offset) % config.nodes.len()];
                    replicas.push(Replica { id: next_replica_id, node_id: node.id.clone() });
                    next_replica_id += 1;
                }
                shards.push(Shard { id: shard_id(name, index), lower_bound, upper_bound, replicas });
                shards_made += 1;
            }
            config.applications.push(ApplicationConfig { name, replication_factor, shards });
        }
        config.validate()?;
        Ok(config)
    }
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

    #[test]
    fn the_config_that_ships_is_what_generate_makes() {
        let config = ClusterConfig::generate(nodes(3), 16, 3).unwrap();
        assert_eq!(include_str!("../../../cluster_config.json"), config.to_json());
    }

    #[test]
    fn ids_and_bounds_follow_the_documented_pattern() {
        let config = ClusterConfig::generate(nodes(3), 16, 3).unwrap();
        let locks = config.application(Application::Locks).unwrap();
        assert_eq!(locks.shards[3].id, "locks_03");
        assert_eq!((locks.shards[3].lower_bound, locks.shards[3].upper_bound), (0x3000_0000, 0x3fff_ffff));
        assert_eq!(locks.shards[15].replicas[2].id, 99);
        assert_eq!(config.application(Application::Accounts).unwrap().shards[0].id, "accounts_00");
    }

    #[test]
    fn every_node_is_first_in_about_as_many_shards_as_any_other() {
        let config = ClusterConfig::generate(nodes(5), 16, 3).unwrap();
        let mut firsts = BTreeMap::new();
        for shard in config.applications.iter().flat_map(|application| &application.shards) {
            *firsts.entry(shard.replicas[0].node_id.clone()).or_insert(0) += 1;
        }
        assert!(firsts.values().all(|count| (6..=7).contains(count)), "{firsts:?}");
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
    }
}
