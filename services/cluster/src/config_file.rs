//! The two forms of a config file.
//!
//! The *explicit* form lists `groups`, and every shard names its `group`. The *seed* form has no `groups`, and every
//! shard lists its `replicas`. A file uses one form.

use serde::{Deserialize, Deserializer, Serialize};

use crate::derive::derive;
use crate::{Application, ApplicationConfig, ClusterConfig, ConfigError, GroupConfig, Node, Replica, Shard};

/// A config as its file has it, in either form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFile {
    pub(crate) version: u64,
    pub(crate) nodes: Vec<Node>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(crate) groups: Option<Vec<GroupConfig>>,
    pub(crate) applications: Vec<ApplicationInFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next_replica_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rules: Option<u16>,
}

/// The shards of one application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplicationInFile {
    pub(crate) name: Application,
    pub(crate) replication_factor: u32,
    pub(crate) shards: Vec<ShardInFile>,
}

/// A shard with its group or with its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardInFile {
    pub(crate) id: String,
    #[serde(with = "crate::bound")]
    pub(crate) lower_bound: u32,
    #[serde(with = "crate::bound")]
    pub(crate) upper_bound: u32,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(crate) replicas: Option<Vec<Replica>>,
}

/// Reads the value of a field that may be absent but not `null`.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl ConfigFile {
    /// Returns the valid config that the file describes.
    pub(crate) fn into_config(self) -> Result<ClusterConfig, ConfigError> {
        let is_explicit = self.groups.is_some();
        self.check_form(is_explicit)?;
        let mut replicas = Vec::new();
        let applications = self.applications.into_iter().map(|application| ApplicationConfig {
            name: application.name,
            replication_factor: application.replication_factor,
            shards: application.shards.into_iter().map(|shard| shard.split(&mut replicas)).collect(),
        });
        let config = ClusterConfig {
            version: self.version,
            nodes: self.nodes,
            applications: applications.collect(),
            groups: self.groups.unwrap_or_default(),
            next_replica_id: self.next_replica_id,
            rules: self.rules,
        };
        if !is_explicit {
            return derive(config, &replicas);
        }
        config.validate()?;
        Ok(config)
    }

    /// Checks that the shards have what the form asks for, and nothing of the other form.
    fn check_form(&self, is_explicit: bool) -> Result<(), ConfigError> {
        for (outer, application) in self.applications.iter().enumerate() {
            for (inner, shard) in application.shards.iter().enumerate() {
                let place = format!("applications[{outer}].shards[{inner}]");
                if is_explicit { shard.check_explicit(&place)? } else { shard.check_seed(&place)? }
            }
        }
        Ok(())
    }
}

impl ShardInFile {
    fn check_explicit(&self, place: &str) -> Result<(), ConfigError> {
        if self.replicas.is_some() {
            return Err(ConfigError::invalid(
                format!("{place}.replicas"),
                "the shard has replicas, and the file has `groups`",
                "name the shard's `group` instead, or list no groups and the replicas of every shard",
            ));
        }
        if self.group.is_none() {
            return Err(ConfigError::invalid(place, "missing field `group`", "name one of groups"));
        }
        Ok(())
    }

    fn check_seed(&self, place: &str) -> Result<(), ConfigError> {
        if self.group.is_some() {
            return Err(ConfigError::invalid(
                format!("{place}.group"),
                "the shard has a group, and the file has no `groups`",
                "list the groups, or the replicas of every shard instead",
            ));
        }
        if self.replicas.is_none() {
            let remedy = "list the shard's replicas, or list `groups` and name one in every shard";
            return Err(ConfigError::invalid(place, "missing field `replicas`", remedy));
        }
        Ok(())
    }

    /// Moves the replicas of a seed to the end of `replicas`.
    fn split(self, replicas: &mut Vec<Vec<Replica>>) -> Shard {
        replicas.extend(self.replicas);
        let group = self.group.unwrap_or_default();
        Shard { id: self.id, lower_bound: self.lower_bound, upper_bound: self.upper_bound, group }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SHIPPED: &str = include_str!("../../../cluster_config.json");

    fn shipped() -> ClusterConfig {
        ClusterConfig::from_json(SHIPPED).unwrap()
    }

    /// Returns the location and the message of the error for a file after `break_it`.
    fn refusal(text: &str, break_it: impl FnOnce(&mut Value)) -> (String, String) {
        let mut file: Value = serde_json::from_str(text).unwrap();
        break_it(&mut file);
        let error = ClusterConfig::from_json(&file.to_string()).unwrap_err();
        (error.field_path().unwrap().to_owned(), error.to_string())
    }

    #[test]
    fn both_forms_of_a_config_read_to_the_same() {
        let explicit = shipped().to_json();
        assert!(explicit.contains("\"groups\"") && !SHIPPED.contains("\"groups\""));
        assert_eq!(ClusterConfig::from_json(&explicit).unwrap(), shipped());
        assert_eq!(ClusterConfig::from_json(&shipped().to_seed_json().unwrap()).unwrap(), shipped());
    }

    #[test]
    fn both_forms_have_the_addresses_of_gateways() {
        let mut config = shipped();
        config.nodes[1].gateway_address = Some("gateway-2.example.com:8080".to_owned());
        for text in [config.to_json(), config.to_seed_json().unwrap()] {
            assert_eq!(text.matches("\"gateway_address\": \"gateway-2.example.com:8080\"").count(), 1, "{text}");
            assert_eq!(ClusterConfig::from_json(&text).unwrap(), config);
            let (at, message) = refusal(&text, |file| file["nodes"][1]["gateway_address"] = json!("gateway-2"));
            assert_eq!(at, "nodes[1].gateway_address");
            assert!(message.contains("\"gateway-2\" is not an address"), "{message}");
        }
        assert!(!shipped().to_json().contains("gateway_address"));
    }

    #[test]
    fn a_file_that_mixes_the_forms_is_refused_with_the_place() {
        let explicit = shipped().to_json();
        let replicas = json!([{"id": 1, "node_id": "nd_1"}]);
        let (at, message) = refusal(&explicit, |file| file["applications"][1]["shards"][2]["replicas"] = replicas);
        assert_eq!(at, "applications[1].shards[2].replicas");
        assert!(message.contains("the file has `groups`"), "{message}");
        let (at, message) = refusal(SHIPPED, |file| file["applications"][1]["shards"][2]["group"] = json!("g1"));
        assert_eq!(at, "applications[1].shards[2].group");
        assert!(message.contains("the file has no `groups`"), "{message}");
        let (at, _) = refusal(SHIPPED, |file| file["groups"] = json!([]));
        assert_eq!(at, "applications[0].shards[0].replicas");
        let (at, _) = refusal(&explicit, |file| drop(file.as_object_mut().unwrap().remove("groups")));
        assert_eq!(at, "applications[0].shards[0].group");
    }

    #[test]
    fn a_shard_without_group_or_replicas_is_refused_with_what_is_missing() {
        let remove = |file: &mut Value, field: &str| {
            drop(file["applications"][2]["shards"][1].as_object_mut().unwrap().remove(field));
        };
        let (at, message) = refusal(SHIPPED, |file| remove(file, "replicas"));
        assert_eq!(at, "applications[2].shards[1]");
        assert!(message.contains("missing field `replicas`"), "{message}");
        let (at, message) = refusal(&shipped().to_json(), |file| remove(file, "group"));
        assert_eq!(at, "applications[2].shards[1]");
        assert!(message.contains("missing field `group`"), "{message}");
        let (at, message) = refusal(SHIPPED, |file| file["groups"] = Value::Null);
        assert_eq!(at, "groups");
        assert!(message.contains("invalid type: null"), "{message}");
    }
}
