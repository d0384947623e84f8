//! Checks a new config against its predecessor.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Application, ClusterConfig, ConfigError, Shard};

impl ClusterConfig {
    /// Checks that `next` may follow this config: it is valid, its version is higher, no replica id is reused for
    /// another shard or node, and the rules do not decrease. Every shard must keep its application and its keys:
    /// nothing moves keys between shards, so a changed bound would lose the data stored under them.
    ///
    /// Locations in errors are those of `next`, or of this config for items missing there.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for the first problem.
    pub fn check_transition(&self, next: &Self) -> Result<(), ConfigError> {
        next.validate()?;
        if next.version <= self.version {
            return Err(ConfigError::invalid(
                "version",
                format!("is {} and does not rise above {}", next.version, self.version),
                format!("set it to {} or more", self.version + 1),
            ));
        }
        self.check_rules(next)?;
        self.check_shards_unchanged(next)?;
        self.check_replicas_unchanged(next)?;
        self.check_new_replicas(next)
    }

    /// Returns the lowest replica id that was never used, according to this config.
    pub fn first_unused_replica(&self) -> u64 {
        let highest = located_shards(self).flat_map(|placed| &placed.shard.replicas).map(|replica| replica.id).max();
        self.next_replica_id.unwrap_or(0).max(highest.unwrap_or(0) + 1)
    }

    fn check_new_replicas(&self, next: &Self) -> Result<(), ConfigError> {
        let unused = self.first_unused_replica();
        if next.first_unused_replica() < unused {
            return Err(ConfigError::invalid(
                "next_replica_id",
                "replicas with higher ids are gone, and it does not say that their ids were used",
                format!("set it to {unused}"),
            ));
        }
        let before: BTreeSet<u64> =
            located_shards(self).flat_map(|placed| &placed.shard.replicas).map(|one| one.id).collect();
        for placed in located_shards(next) {
            for (index, replica) in placed.shard.replicas.iter().enumerate() {
                if replica.id < unused && !before.contains(&replica.id) {
                    return Err(ConfigError::invalid(
                        format!("{}.replicas[{index}].id", placed.place),
                        format!("{} may have been the id of a replica that is gone", replica.id),
                        format!("give the new replica an id that was never used: {unused} or more"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Shards may already use the allowed rules, and rules never decrease.
    fn check_rules(&self, next: &Self) -> Result<(), ConfigError> {
        if next.rules >= self.rules {
            return Ok(());
        }
        let shown = |rules: Option<u16>| rules.map_or("missing".to_owned(), |rules| rules.to_string());
        Err(ConfigError::invalid(
            "rules",
            format!("is {}, and was {}", shown(next.rules), shown(self.rules)),
            format!("set it to {} or more: rules never go back", shown(self.rules)),
        ))
    }

    fn check_shards_unchanged(&self, next: &Self) -> Result<(), ConfigError> {
        let after: BTreeMap<_, _> = located_shards(next).map(|placed| (placed.shard.id.as_str(), placed)).collect();
        for before in located_shards(self) {
            let id = &before.shard.id;
            let Some(now) = after.get(id.as_str()) else {
                return Err(ConfigError::invalid(
                    &before.place,
                    format!("shard {id:?} is missing in the next config"),
                    "keep it: nothing moves its keys to another shard",
                ));
            };
            if now.application != before.application || now.bounds() != before.bounds() {
                return Err(ConfigError::invalid(
                    &now.place,
                    format!("shard {id:?} owned {} and would own {}", before.describe(), now.describe()),
                    "keep its application and bounds: nothing moves keys between shards",
                ));
            }
        }
        Ok(())
    }

    fn check_replicas_unchanged(&self, next: &Self) -> Result<(), ConfigError> {
        let mut known = BTreeMap::new();
        for placed in located_shards(self) {
            for replica in &placed.shard.replicas {
                known.insert(replica.id, (placed.shard.id.as_str(), replica.node_id.as_str()));
            }
        }
        for placed in located_shards(next) {
            for (index, replica) in placed.shard.replicas.iter().enumerate() {
                let now = (placed.shard.id.as_str(), replica.node_id.as_str());
                match known.get(&replica.id) {
                    Some(before) if *before != now => {
                        return Err(ConfigError::invalid(
                            format!("{}.replicas[{index}].id", placed.place),
                            format!("{} was the replica of shard {:?} on node {:?}", replica.id, before.0, before.1),
                            "give the new replica an id that was never used",
                        ));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// A shard with its location in the config.
struct LocatedShard<'a> {
    place: String,
    application: Application,
    shard: &'a Shard,
}

impl LocatedShard<'_> {
    fn bounds(&self) -> (u32, u32) {
        (self.shard.lower_bound, self.shard.upper_bound)
    }

    fn describe(&self) -> String {
        format!("the {} keys {:08x} to {:08x}", self.application, self.shard.lower_bound, self.shard.upper_bound)
    }
}

fn located_shards(config: &ClusterConfig) -> impl Iterator<Item = LocatedShard<'_>> {
    config.applications.iter().enumerate().flat_map(|(outer, application)| {
        application.shards.iter().enumerate().map(move |(inner, shard)| LocatedShard {
            place: format!("applications[{outer}].shards[{inner}]"),
            application: application.name,
            shard,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first() -> ClusterConfig {
        let nodes = (1..=4).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number))).collect();
        ClusterConfig::generate(nodes, 2, 3).unwrap()
    }

    fn next(change: impl FnOnce(&mut ClusterConfig)) -> Result<(), ConfigError> {
        let mut next = first();
        next.version = 2;
        change(&mut next);
        first().check_transition(&next)
    }

    fn invalid_field(change: impl FnOnce(&mut ClusterConfig)) -> String {
        next(change).unwrap_err().field_path().unwrap().to_owned()
    }

    #[test]
    fn the_version_must_rise() {
        assert_eq!(invalid_field(|next| next.version = 1), "version");
        next(|_| {}).unwrap();
    }

    #[test]
    fn a_replica_may_move_only_under_a_new_id() {
        // Replicas 1 to 3 of the Accounts shard are on nd_1 to nd_3.
        assert_eq!(
            invalid_field(|next| next.applications[0].shards[0].replicas[0].node_id = "nd_4".to_owned()),
            "applications[0].shards[0].replicas[0].id"
        );
        next(|next| {
            next.applications[0].shards[0].replicas[0].id = 100;
            next.applications[0].shards[0].replicas[0].node_id = "nd_4".to_owned();
        })
        .unwrap();
    }

    #[test]
    fn a_replica_id_may_not_come_back_for_another_shard() {
        let swap = |next: &mut ClusterConfig| {
            let shards = &mut next.applications[2].shards;
            let (left, right) = shards.split_at_mut(1);
            std::mem::swap(&mut left[0].replicas, &mut right[0].replicas);
        };
        let message = next(swap).unwrap_err().to_string();
        assert!(message.starts_with("applications[2].shards[0].replicas[0].id: "), "{message}");
        assert!(message.contains("never used"), "{message}");
    }

    #[test]
    fn a_shard_keeps_its_keys() {
        let shift = |next: &mut ClusterConfig| {
            next.applications[2].shards[0].upper_bound = 0x8fff_ffff;
            next.applications[2].shards[1].lower_bound = 0x9000_0000;
        };
        assert_eq!(invalid_field(shift), "applications[2].shards[0]");
        let rename = |next: &mut ClusterConfig| next.applications[2].shards[0].id = "locks_09".to_owned();
        assert_eq!(invalid_field(rename), "applications[2].shards[0]");
    }

    #[test]
    fn the_id_of_a_replica_that_is_gone_does_not_come_back() {
        let moved = first().add_replica("accounts_00", "nd_4").unwrap();
        let id = moved.applications[0].shards[0].replicas[3].id;
        let undone = moved.remove_replica("accounts_00", "nd_4").unwrap();
        assert_eq!(undone.first_unused_replica(), id + 1);
        let mut again = undone.add_replica("accounts_00", "nd_4").unwrap();
        assert_eq!(again.applications[0].shards[0].replicas[3].id, id + 1);
        again.applications[0].shards[0].replicas[3].id = id;
        let message = undone.check_transition(&again).unwrap_err().to_string();
        assert!(message.contains("never used"), "{message}");
        let mut forgetful = undone.clone();
        (forgetful.version, forgetful.next_replica_id) = (undone.version + 1, None);
        assert_eq!(undone.check_transition(&forgetful).unwrap_err().field_path(), Some("next_replica_id"));
    }

    #[test]
    fn allowed_rules_rise_and_are_never_taken_back() {
        let second = first().allow_rules(2).unwrap();
        assert_eq!(second.rules, Some(2));
        assert_eq!(second.allow_rules(1).unwrap_err().field_path(), Some("rules"));
        let forgetful = ClusterConfig { version: second.version + 1, rules: None, ..second.clone() };
        let message = second.check_transition(&forgetful).unwrap_err().to_string();
        assert!(message.contains("never go back"), "{message}");
        assert_eq!(second.allow_rules(3).unwrap().rules, Some(3));
        assert_eq!(invalid_field(|next| next.rules = Some(0)), "rules");
    }

    #[test]
    fn an_invalid_successor_is_refused_for_what_is_wrong_with_it() {
        assert_eq!(invalid_field(|next| next.nodes[0].address = "nowhere".to_owned()), "nodes[0].address");
    }
}
