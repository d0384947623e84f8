//! The topology of a cluster: which shards there are, which keys they own and which nodes keep their replicas.
//!
//! Purpose: read, check and write `cluster_config.json`, hash an account and a namespace to a shard key, and find the
//! shard of a key.
//!
//! Invariant: a [`ShardMap`] exists only for a config that passed [`ClusterConfig::validate`], so every key of every
//! application has exactly one shard, and every replica exactly one node.
//!
//! Deliberately unknown here: who leads a shard, whether a node is up, what a shard stores, and how accounts and
//! namespaces look beyond the bytes that are hashed.

mod bound;
mod config;
mod error;
mod generate;
mod rebuild;
mod shard_map;
mod transition;
mod transitions;
mod validate;

pub use config::{ApplicationConfig, ClusterConfig, Node, Replica, Shard};
pub use error::ConfigError;
pub use holdfast_core::shard::{Application, UnknownApplication};
pub use holdfast_core::shard_key;
pub use shard_map::{ReplicaLocation, ShardMap};
pub use validate::{MAX_ID_BYTES, MAX_REPLICA_ID, MAX_SHARDS_PER_APPLICATION};
