//! Raft groups: openraft, wired to Holdfast's storage and network.
//!
//! Purpose: a [`Group`] takes commands as bytes, replicates and applies them in order through a [`Machine`], and
//! says whether its replica leads, in which term, and whether the leader lease allows an answer without a log entry.
//!
//! Invariants:
//! - An answer is given only after its entry is on the disks of a quorum and applied here.
//! - Leadership is never restored without an election, and a restarted replica neither votes nor stands for one full
//!   lease, since the lease that it granted before is not remembered.
//! - Nothing is answered before an entry of the own term has been applied.
//!
//! Deliberately unknown here: what commands mean, tenants, HTTP, where nodes come from. openraft's types do not leave
//! this crate.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod applied;
mod backup;
mod clock;
mod config;
mod driver;
mod entry;
mod error;
mod failure;
mod gather;
mod group;
mod hand_over;
mod host;
mod introductions;
mod leadership;
mod lease;
mod log_bytes;
mod log_store;
mod log_tail;
mod longest_lease;
mod machine;
mod membership;
mod network;
mod poison;
mod proposer;
mod raising;
mod reading;
mod rules;
mod seed;
mod status;
mod succession;
mod ticks;
mod timing;
mod types;
mod witness;

pub use backup::{Backup, BackupError};
pub use clock::{ShardClock, WallClock};
pub use driver::Broken;
pub use error::{NotLeader, ProposeError, ReplicationError};
pub use failure::Failure;
pub use gather::gather;
pub use group::{Group, GroupOptions};
pub use host::{Host, HostOptions, Peer};
pub use leadership::Leadership;
pub use lease::{ReadPermit, Reads};
pub use log_bytes::LogLimits;
pub use machine::{Applied, Frozen, Machine, MachineError, MachineFailure, Replies, Rest, Stamp, Step};
pub use network::{Credentials, DialError, Dialer};
pub use poison::Poison;
pub use rules::KnownRules;
pub use seed::{Seed, seed};
pub use status::GroupStatus;
pub use timing::Timing;

#[doc(hidden)]
pub mod testing;
