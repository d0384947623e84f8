//! Benchmarks of the whole service in real processes, beside its peers in the same run.
//!
//! Purpose: start three nodes and a gateway, or three nodes that serve gateways, and the peers to compare with, put the
//! same load on each in turns, and say what it costs: rate, latency, server CPU, bytes and syncs for each operation,
//! memory.
//!
//! Invariants: a latency is counted from the time at which its operation was meant to begin, so that a server that
//! stalls is charged for everybody who had to wait. All systems of a comparison are measured in the same run, in
//! interleaved rounds, because the machine may be busy with other things. Every process that is started ends with this
//! one, and its data with it.
//!
//! Deliberately unknown here: how the service works inside. Load goes through its public API; only the search for a
//! leader to kill uses the internal protocol.

pub mod clients;
pub mod cluster;
pub mod load;
pub mod measure;
mod options;
pub mod report;
mod run;
pub mod scenarios;
pub mod systems;
pub mod workloads;

pub use options::{Options, Peer, WorkloadName};
pub use run::run;
