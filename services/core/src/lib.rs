//! The pure state machines of Holdfast: accounts, namespaces and locks.
//!
//! Purpose: decide, for one shard, what every command does. `apply(context, command)` is a pure function of the state,
//! the context and the command. So replicas that apply the same log have the same bytes.
//!
//! Invariant: nothing here reads a clock, draws a random number, does I/O or waits. Time arrives in [`EntryContext`],
//! random ids arrive in commands. `INVARIANTS.md` lists what would panic if it were otherwise, and why it is not.
//!
//! Deliberately unknown here: Raft, storage, HTTP, tenants' secrets (only their hashes), the meaning of the wall clock.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::panic, clippy::unreachable, clippy::todo))]

pub mod accounts;
mod after_restore;
mod audit;
mod idempotency_cache;
pub mod locks;
pub mod namespaces;
pub mod outbox;
pub mod recent_by_account;
pub mod shard;
mod shard_common;

pub use after_restore::{RESTORE_MARGIN, delay_locks_snapshot};
pub use holdfast_types::*;
