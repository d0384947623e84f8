//! Checks a new config against its predecessor.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Application, ClusterConfig, ConfigError, Replica, Shard};

impl ClusterConfig {
    /// Checks that `next` may follow this config: it is valid, its version is higher, no replica id is reused for
    /// another group or node, and the rules do not decrease. Every shard must keep its group, its application and its
    /// keys: nothing moves shards between groups or keys between shards, so a change would lose the data stored there.
    /// A file that derives its groups may therefore follow only if it derives the same ones.
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
        self.check_groups_kept(next)?;
        self.check_shards_unchanged(next)?;
        self.check_replicas_unchanged(next)?;
        self.check_new_replicas(next)
    }

    /// Returns the lowest replica id that was never used, according to this config.
    pub fn first_unused_replica(&self) -> u64 {
        let highest = replica_ids(self).max();
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
        let before: BTreeSet<u64> = replica_ids(self).collect();
        for (place, _, replica) in located_replicas(next) {
            if replica.id < unused && !before.contains(&replica.id) {
                return Err(ConfigError::invalid(
                    format!("{place}.id"),
                    format!("{} may have been the id of a replica that is gone", replica.id),
                    format!("give the new replica an id that was never used: {unused} or more"),
                ));
            }
        }
        Ok(())
    }

    /// Groups may already use the allowed rules, and rules never decrease.
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

    /// A group may go once it has no shards.
    fn check_groups_kept(&self, next: &Self) -> Result<(), ConfigError> {
        let after: BTreeSet<&str> = next.groups.iter().map(|group| group.id.as_str()).collect();
        for (index, group) in self.groups.iter().enumerate() {
            if after.contains(group.id.as_str()) {
                continue;
            }
            if let Some(shard) = self.shards().find(|shard| shard.group == group.id) {
                return Err(ConfigError::invalid(
                    format!("groups[{index}]"),
                    format!("group {:?} is missing in the next config, and shard {:?} is in it", group.id, shard.id),
                    "keep it: nothing moves its shards to another group",
                ));
            }
        }
        Ok(())
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
            if now.shard.group != before.shard.group {
                return Err(ConfigError::invalid(
                    format!("{}.group", now.place),
                    format!("shard {id:?} was in group {:?} and would be in {:?}", before.shard.group, now.shard.group),
                    "keep its group; a file without `groups` must list the shards and their nodes in the order of the \
                     first file, so that it derives the same groups",
                ));
            }
        }
        Ok(())
    }

    fn check_replicas_unchanged(&self, next: &Self) -> Result<(), ConfigError> {
        let known: BTreeMap<u64, (&str, &str)> =
            located_replicas(self).map(|(_, group, replica)| (replica.id, (group, replica.node_id.as_str()))).collect();
        for (place, group, replica) in located_replicas(next) {
            match known.get(&replica.id) {
                Some(before) if *before != (group, replica.node_id.as_str()) => {
                    return Err(ConfigError::invalid(
                        format!("{place}.id"),
                        format!("{} was the replica of group {:?} on node {:?}", replica.id, before.0, before.1),
                        "give the new replica an id that was never used",
                    ));
                }
                _ => {}
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

/// Returns each replica with its location and the id of its group.
fn located_replicas(config: &ClusterConfig) -> impl Iterator<Item = (String, &str, &Replica)> {
    config.groups.iter().enumerate().flat_map(|(outer, group)| {
        let replicas = group.replicas.iter().enumerate();
        replicas.map(move |(inner, replica)| (format!("groups[{outer}].replicas[{inner}]"), group.id.as_str(), replica))
    })
}

fn replica_ids(config: &ClusterConfig) -> impl Iterator<Item = u64> {
    config.groups.iter().flat_map(|group| &group.replicas).map(|replica| replica.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupConfig;

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
    fn the_address_of_a_gateway_comes_changes_and_goes() {
        let with_gateway = |version: u64, address: Option<&str>| {
            let mut next = ClusterConfig { version, ..first() };
            next.nodes[0].gateway_address = address.map(str::to_owned);
            next
        };
        let (second, third) = (with_gateway(2, Some("127.0.0.1:8080")), with_gateway(3, Some("127.0.0.1:8081")));
        first().check_transition(&second).unwrap();
        second.check_transition(&third).unwrap();
        third.check_transition(&with_gateway(4, None)).unwrap();
    }

    #[test]
    fn a_replica_may_move_only_under_a_new_id() {
        // Replicas 1 to 3 of g1 are on nd_1 to nd_3.
        assert_eq!(
            invalid_field(|next| next.groups[0].replicas[0].node_id = "nd_4".to_owned()),
            "groups[0].replicas[0].id"
        );
        next(|next| {
            next.next_replica_id = Some(101);
            next.groups[0].replicas[0].id = 100;
            next.groups[0].replicas[0].node_id = "nd_4".to_owned();
        })
        .unwrap();
    }

    #[test]
    fn a_replica_id_may_not_come_back_for_another_group() {
        let swap = |next: &mut ClusterConfig| {
            let (left, right) = next.groups.split_at_mut(1);
            std::mem::swap(&mut left[0].replicas, &mut right[0].replicas);
        };
        let message = next(swap).unwrap_err().to_string();
        assert!(message.starts_with("groups[0].replicas[0].id: "), "{message}");
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
    fn a_shard_keeps_its_group_and_a_group_with_shards_stays() {
        let message = next(|next| next.applications[2].shards[0].group = "g1".to_owned()).unwrap_err().to_string();
        assert!(message.starts_with("applications[2].shards[0].group: "), "{message}");
        assert!(message.contains("was in group \"g4\" and would be in \"g1\""), "{message}");
        let merge = |next: &mut ClusterConfig| {
            next.groups.remove(1);
            for shard in next.applications.iter_mut().flat_map(|application| &mut application.shards) {
                if shard.group == "g2" {
                    shard.group = "g1".to_owned();
                }
            }
        };
        let message = next(merge).unwrap_err().to_string();
        assert!(message.starts_with("groups[1]: group \"g2\" is missing"), "{message}");
        assert!(message.contains("shard \"namespaces_00\" is in it"), "{message}");
    }

    #[test]
    fn a_group_without_shards_comes_with_new_replica_ids_and_goes() {
        let with_group = |id: u64| {
            let mut next = first();
            next.version = 2;
            next.next_replica_id = Some(101);
            let replicas = vec![Replica { id, node_id: "nd_4".to_owned() }];
            next.groups.push(GroupConfig { id: "g9".to_owned(), replicas });
            next
        };
        let reused = first().check_transition(&with_group(14)).unwrap_err();
        assert_eq!(reused.field_path(), Some("groups[4].replicas[0].id"));
        let more = with_group(100);
        first().check_transition(&more).unwrap();
        let mut fewer = more.clone();
        fewer.version = 3;
        fewer.groups.pop();
        more.check_transition(&fewer).unwrap();
        // The id of its replica counts as used.
        fewer.next_replica_id = None;
        assert_eq!(more.check_transition(&fewer).unwrap_err().field_path(), Some("next_replica_id"));
    }

    #[test]
    fn the_id_of_a_replica_that_is_gone_does_not_come_back() {
        let moved = first().add_replica("g1", "nd_4").unwrap();
        let id = moved.groups[0].replicas[3].id;
        let undone = moved.remove_replica("g1", "nd_4").unwrap();
        assert_eq!(undone.first_unused_replica(), id + 1);
        let mut again = undone.add_replica("g1", "nd_4").unwrap();
        assert_eq!(again.groups[0].replicas[3].id, id + 1);
        again.groups[0].replicas[3].id = id;
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
