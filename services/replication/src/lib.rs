//! Raft groups: openraft, wired to Holdfast's storage and network.
//!
//! Purpose: a [`Group`] accepts commands as bytes, replicates them and applies them in order through a
//! [`StateMachine`]. It reports whether its replica leads, in which term, and whether the leader lease permits a reply
//! without a log entry.
//!
//! Invariants:
//! - A reply is sent only after its entry is durable on a quorum and applied here.
//! - Leadership is never restored without an election. A restarted replica neither votes nor stands for one full lease,
//!   since the lease that it granted before is not stored.
//! - A leader answers nothing before an entry of its own term is applied.
//!
//! Deliberately unknown here: what commands mean, tenants, HTTP, where nodes come from. openraft's types do not leave
//! this crate.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod applied;
mod apply_queue;
mod backup;
mod checkpoints;
mod clock;
mod config;
mod encoded;
mod entry;
mod entry_batch;
mod error;
mod exceptions;
mod failure;
mod fast_failover;
mod fuzz_support;
mod group;
mod group_manager;
mod handshake;
mod leader_death;
mod leadership;
mod leadership_transfer;
mod lease;
mod log_cache;
mod log_compaction;
mod log_store;
mod longest_lease;
mod membership;
mod mutations;
mod network;
mod operator_move;
mod options;
mod peer_query;
mod poison;
mod proposal;
mod proposal_lanes;
mod proposal_queue;
mod proposer;
mod raise_rules;
mod read;
mod replay;
mod reply_sinks;
mod restore;
mod rules;
mod section_applier;
mod sent_snapshot;
mod shard_failures;
mod snapshot_store;
mod state_machine;
mod state_machine_adapter;
mod status;
mod ticks;
mod timing;
mod types;

pub use backup::{Backup, BackupError};
pub use checkpoints::{CheckpointError, CheckpointPart};
pub use clock::ShardClock;
pub use error::{NotLeader, ProposeError, QueueLimit, ReplicationError};
pub use exceptions::Exception;
pub use failure::Failure;
pub use group::Group;
pub use group_manager::GroupManager;
pub use holdfast_clock::Clocks;
pub use leadership::Leadership;
pub use log_compaction::LogLimits;
pub use operator_move::OperatorMove;
pub use options::{GroupManagerOptions, GroupOptions, PeerConfig};
pub use poison::Poison;
pub use proposal_lanes::QUEUE_LIMITS;
pub use read::{ReadMode, ReadPermit};
pub use replay::{HistoryStep, ReplayError};
pub use restore::{InitialSnapshot, bootstrap_from_snapshot};
pub use rules::KnownRules;
pub use state_machine::{
    Applied, ApplyFailure, ApplyStep, CommandCost, Continuation, EntryHeader, FailedEntry, FailedShards, FrozenState,
    ReplyMode, StateMachine, StateMachineError,
};
pub use status::GroupStatus;
pub use timing::Timing;

#[doc(hidden)]
pub mod testing;
