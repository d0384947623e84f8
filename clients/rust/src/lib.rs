//! Locks of a Holdfast service, for programs written in Rust.
//!
//! Purpose: what an application programmer touches: a connection to any gateway, a session that outlives connections,
//! locks on it that are released when their guards are dropped, contention for one owner, and leader election.
//!
//! Invariant: whoever is told that it holds a lock holds it until the deadline it was told, counted on this machine's
//! monotonic clock from before the service counts; nothing here says *held* after that.
//!
//! Deliberately unknown here: how the service keeps its promises, and what its users do with what they lock.

pub mod contention;
pub mod election;
