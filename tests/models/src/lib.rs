//! Models of rules that are not built yet, and an exhaustive search that visits every state which they allow.
//!
//! A model is a pure step function: a state in, all states that can follow out. [`search::run`] visits each state once,
//! breadth first, so that what it finds is a shortest way to it. Models of what is built are in `docs/models`, in TLA+.

pub mod fingerprint;
pub mod search;
pub mod session_durable;
