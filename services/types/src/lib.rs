//! What shards are told and what they reply: commands, queries, effects and limits, and how they are encoded.
//!
//! Purpose: the common language of those who call a shard and of the state machines in `holdfast-core`.
//!
//! Invariant: plain data. Types of the log and the wire change only by appending (see [`codec`]).
//!
//! Deliberately unknown here: what a command does, and how it gets to its shard.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod account;
mod application;
mod ask;
mod audit;
mod barrier;
mod bounds;
pub mod codec;
mod command;
mod condition;
mod effect;
mod error;
mod event;
pub mod first_limits;
mod flat;
mod holder_wire;
mod ids;
mod kind;
mod latch;
pub mod limit;
mod limits;
mod lock;
mod lock_command;
mod namespace;
mod permits;
mod pool;
mod quarantine;
mod query;
mod rate;
mod receipt;
mod response;
mod rules;
mod scheduling;
mod semaphore;
mod session;
mod session_command;
mod shard_key;
mod soft_table;
mod subscription;
mod usage;

pub use account::*;
pub use application::{Application, UnknownApplication};
pub use ask::*;
pub use audit::*;
pub use barrier::*;
pub use bounds::*;
pub use command::*;
pub use condition::*;
pub use effect::*;
pub use error::*;
pub use event::*;
pub use ids::*;
pub use kind::*;
pub use latch::*;
pub use limits::*;
pub use lock::*;
pub use lock_command::*;
pub use namespace::*;
pub use permits::*;
pub use pool::*;
pub use quarantine::*;
pub use query::*;
pub use rate::*;
pub use receipt::*;
pub use response::*;
pub use rules::*;
pub use scheduling::CostKind;
pub use semaphore::*;
pub use session::*;
pub use session_command::*;
pub use shard_key::shard_key;
pub use soft_table::*;
pub use subscription::*;
pub use usage::*;
