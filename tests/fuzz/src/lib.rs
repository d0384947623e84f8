//! Everything that reads bytes from outside or from disk, fed with damaged ones.
//!
//! Purpose: one function for each kind of bytes, for plain tests over a kept corpus, for mutations of it, and for any
//! fuzzer that can call a function.
//!
//! Invariant: whatever the bytes are, a target neither panics nor takes more memory than a bound; damaged bytes are an
//! error.
//!
//! Deliberately unknown here: what the bytes mean to the service.

mod commands;
pub mod corpus;
pub mod mutate;
mod targets;

pub use targets::{TARGETS, Target};
