//! The cluster config.
//!
//! In memory a config always lists its groups. A file may list the replicas of each shard instead; `config_file`
//! derives the groups of such a file when it is read.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config_file::ConfigFile;
use crate::{Application, ConfigError};

/// Maximum groups of a cluster.
pub const MAX_GROUPS: usize = 1_024;
/// Replicas of groups on a node beyond which each costs more CPU than it brings: a round of the log is per group.
pub const MAX_ADVISED_GROUPS: usize = 4;

/// The topology of a cluster. Values from [`ClusterConfig::load`], [`ClusterConfig::from_json`] and
/// [`ClusterConfig::generate`] are valid; check others with [`ClusterConfig::validate`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterConfig {
    /// Increases with each change.
    pub version: u64,
    /// The nodes that host replicas.
    pub nodes: Vec<Node>,
    /// The units of replication. At most [`MAX_GROUPS`].
    pub groups: Vec<GroupConfig>,
    /// Each of [`Application::ALL`] once.
    pub applications: Vec<ApplicationConfig>,
    /// Replica ids below this were used, including by removed replicas, and are never reused. When absent, the config
    /// contains all ids ever used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_replica_id: Option<u64>,
    /// The highest rules that groups may be raised to, once all their replicas know them. When absent, groups keep the
    /// rules of their logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<u16>,
}

/// A process that hosts replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// An id like `nd_1`; unique.
    pub id: String,
    /// The address for its peers and the gateways: `host:port`.
    pub address: String,
    /// The address at which clients reach the gateway in the node's process: `host:port`. `None` if it has no gateway,
    /// or clients are not told of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_address: Option<String>,
    /// Where the machine is: nodes of one zone may fail together. `None` if that is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// A Raft group: one log, which holds many shards. It may have no shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// An id like `g1`; unique in the config.
    pub id: String,
    /// On distinct nodes, as many as the replication factor of the applications that it serves; while a replica moves,
    /// one more. The node of the first one is the group's preferred leader.
    pub replicas: Vec<Replica>,
}

/// The shards of one application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApplicationConfig {
    /// The application.
    pub name: Application,
    /// The number of replicas of each group that serves the application.
    pub replication_factor: u32,
    /// Together they own every key exactly once.
    pub shards: Vec<Shard>,
}

/// A range of keys and its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shard {
    /// An id like `locks_03`; unique in the config.
    pub id: String,
    /// The first key it owns.
    #[serde(with = "crate::bound")]
    pub lower_bound: u32,
    /// The last key it owns.
    #[serde(with = "crate::bound")]
    pub upper_bound: u32,
    /// The id of the group whose log holds it.
    pub group: String,
}

/// A copy of a group on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    /// Unique in the config, and never reused for another group or node.
    pub id: u64,
    /// The node that hosts it.
    pub node_id: String,
}

impl ClusterConfig {
    /// Reads and validates a config file, of either form.
    ///
    /// # Errors
    /// When the file can't be read, is not JSON of the right shape, or fails [`Self::validate`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text =
            fs::read_to_string(path).map_err(|reason| ConfigError::Unreadable { path: path.to_owned(), reason })?;
        Self::from_json(&text).map_err(|reason| ConfigError::File { path: path.to_owned(), reason: Box::new(reason) })
    }

    /// Reads and validates a config. A text without `groups` has the replicas of each shard instead, and its groups are
    /// derived: shards on the same nodes, with the first replica on the same node, form a group.
    ///
    /// # Errors
    /// When the text is not JSON of the right shape, mixes the two forms, or fails [`Self::validate`].
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let file: ConfigFile = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            ConfigError::Malformed { place: describe_path(error.path()), problem: error.inner().to_string() }
        })?;
        deserializer.end().map_err(|error| ConfigError::Malformed {
            place: "after the end of the config".to_owned(),
            problem: error.to_string(),
        })?;
        file.into_config()
    }

    /// Encodes the config with its groups; the text is deterministic and ends with a newline.
    pub fn to_json(&self) -> String {
        encode(self)
    }

    /// Returns whether replicas of a group share a zone, though the cluster has enough of them. False if the zone of one
    /// is not said.
    pub fn shares_zone(&self, group: &GroupConfig) -> bool {
        let zone_of = |replica: &Replica| self.node(&replica.node_id)?.zone.as_deref();
        let Some(zones) = group.replicas.iter().map(zone_of).collect::<Option<BTreeSet<_>>>() else { return false };
        let all: BTreeSet<&str> = self.nodes.iter().filter_map(|node| node.zone.as_deref()).collect();
        zones.len() < group.replicas.len().min(all.len())
    }

    /// Returns the number of groups with a replica on this node.
    pub fn groups_on(&self, node: &str) -> usize {
        self.groups.iter().filter(|group| group.replica_on(node).is_some()).count()
    }

    /// Returns the shards of an application. A valid config has them for all three.
    pub fn application(&self, name: Application) -> Option<&ApplicationConfig> {
        self.applications.iter().find(|application| application.name == name)
    }

    /// Returns the group with this id.
    pub fn group(&self, id: &str) -> Option<&GroupConfig> {
        self.groups.iter().find(|group| group.id == id)
    }

    /// Returns every shard, application by application.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.applications.iter().flat_map(|application| &application.shards)
    }

    /// Returns the node with this id.
    pub fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }
}

impl GroupConfig {
    /// Returns its replica on this node.
    pub fn replica_on(&self, node: &str) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.node_id == node)
    }
}

/// Encodes a config of either form; the text ends with a newline.
pub(crate) fn encode(config: &impl Serialize) -> String {
    // Strings, integers and lists always have a JSON form, so that only a failing writer could be an error here.
    let mut text = serde_json::to_string_pretty(config).expect("a config has no value that JSON cannot express");
    text.push('\n');
    text
}

/// Returns the path of a shape error, or "the config" if the error concerns the whole text.
fn describe_path(path: &serde_path_to_error::Path) -> String {
    if path.iter().next().is_none() { "the config".to_owned() } else { path.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = include_str!("../../../cluster_config.json");

    fn shipped() -> ClusterConfig {
        ClusterConfig::from_json(SHIPPED).unwrap()
    }

    /// The shipped config in each form.
    fn both_forms() -> [String; 2] {
        [SHIPPED.to_owned(), shipped().to_json()]
    }

    fn parse_error(text: &str) -> String {
        ClusterConfig::from_json(text).unwrap_err().to_string()
    }

    #[test]
    fn a_config_reads_back_what_it_writes() {
        let config = shipped();
        assert_eq!(ClusterConfig::from_json(&config.to_json()).unwrap(), config);
    }

    #[test]
    fn an_unknown_field_is_refused_with_its_place() {
        let weigh = |text: &str| parse_error(&text.replacen("\"node_id\"", "\"weight\": 1, \"node_id\"", 1));
        let message = weigh(SHIPPED);
        assert!(message.starts_with("applications[0].shards[0].replicas[0].weight: unknown field"), "{message}");
        let message = weigh(&shipped().to_json());
        assert!(message.starts_with("groups[0].replicas[0].weight: unknown field"), "{message}");
        let message = parse_error(&shipped().to_json().replacen("\"group\"", "\"zone\": 1, \"group\"", 1));
        assert!(message.starts_with("applications[0].shards[0].zone: unknown field"), "{message}");
    }

    #[test]
    fn a_malformed_bound_is_refused_with_its_place_and_the_form_expected() {
        for bad in ["\"fffffff\"", "\"+fffffff\"", "\"0xffffff\"", "\"fffffffff\"", "4294967295"] {
            for text in both_forms() {
                let message = parse_error(&text.replacen("\"ffffffff\"", bad, 1));
                assert!(message.starts_with("applications[0].shards[0].upper_bound: "), "{message}");
            }
        }
        let text = shipped().to_json().replacen("\"ffffffff\"", "\"fffffff\"", 1);
        assert!(parse_error(&text).contains("8 hex digits"), "{}", parse_error(&text));
    }

    #[test]
    fn an_unknown_application_is_refused_with_the_known_ones() {
        let message = parse_error(&shipped().to_json().replacen("\"Namespaces\"", "\"Queues\"", 1));
        assert!(message.starts_with("applications[1].name: unknown variant `Queues`"), "{message}");
        assert!(message.contains("`Locks`"), "{message}");
    }

    #[test]
    fn text_that_is_no_config_is_refused() {
        assert!(parse_error("").starts_with("the config: EOF"), "{}", parse_error(""));
        assert!(parse_error("{}").contains("missing field `version`"), "{}", parse_error("{}"));
        let twice = format!("{}{{}}", shipped().to_json());
        assert!(
            parse_error(&twice).starts_with("after the end of the config: trailing characters"),
            "{}",
            parse_error(&twice)
        );
    }

    #[test]
    fn a_file_is_named_in_every_error_about_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster_config.json");
        let shown = path.display().to_string();
        assert!(ClusterConfig::load(&path).unwrap_err().to_string().contains(&shown));
        fs::write(&path, "[").unwrap();
        let error = ClusterConfig::load(&path).unwrap_err();
        assert!(error.to_string().contains(&shown));
        fs::write(&path, shipped().to_json()).unwrap();
        assert_eq!(ClusterConfig::load(&path).unwrap(), shipped());
    }
}
