//! Synchronisation primitives beside locks: latches, semaphores and pools (both hand out *permits*), and barriers.
//!
//! Purpose: one table of each kind for every namespace, and what tables share with the lock tree: the means of a command
//! ([`kit`]), charges, metadata, attempts, requests to release, pages and snapshot chunks.
//!
//! Invariant: a table is pure. What it does follows from its state, the command and the [`kit::Kit`] alone, so that
//! replicas have the same bytes.
//!
//! Deliberately unknown here: the lock tree, sessions, shards and other tables. A namespace publishes what a table notes
//! in its kit.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::panic, clippy::unreachable, clippy::todo))]

pub mod ask;
pub mod attempts;
pub mod barriers;
pub mod budget;
pub mod chunked_set;
pub mod chunks;
pub mod item_bytes;
pub mod kit;
pub mod latches;
pub mod metadata;
pub mod page;
pub mod permits;
pub mod reply_size;

use holdfast_types::*;
