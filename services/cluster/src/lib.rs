//! The topology of a cluster: its shards, the keys that they own, the groups that hold them and the nodes that host
//! the groups' replicas.
//!
//! Purpose: read, validate and write `cluster_config.json`, hash an account and a namespace to a shard key, and find
//! the shard of a key and its group.
//!
//! Invariant: a [`ShardMap`] exists only for a config that passed [`ClusterConfig::validate`]. Every key of every
//! application therefore has exactly one shard, every shard exactly one group, and every replica exactly one node.
//!
//! Deliberately unknown here: leaders, node liveness, the content of shards, and the form of accounts and namespaces
//! beyond the bytes that are hashed.

mod bound;
mod config;
mod config_file;
mod derive;
mod error;
mod generate;
mod rebuild;
mod shard_map;
mod transition;
mod transitions;
mod validate;

pub use config::{ApplicationConfig, ClusterConfig, GroupConfig, MAX_ADVISED_GROUPS, MAX_GROUPS, Node, Replica, Shard};
pub use error::ConfigError;
pub use holdfast_types::shard_key;
pub use holdfast_types::{Application, UnknownApplication};
pub use shard_map::{GroupShard, ReplicaLocation, ShardMap};
pub use validate::{MAX_ID_BYTES, MAX_REPLICA_ID, MAX_SHARDS_PER_APPLICATION};
