//! Tests of the whole service in real processes: three nodes and gateways, killed, paused, cut off and started again.
//!
//! Purpose: start clusters, load them, break them, record what every caller saw, and check the record against the
//! specification.
//!
//! Invariant: whatever ends a test, its processes end with it. They listen on loopback addresses only and keep their
//! data in a directory of their own, which is kept when the test fails.
//!
//! Deliberately unknown here: how the service works inside. What is asked of it goes through its public API, and
//! through the internal protocol where a test is about that.

mod api;
pub mod checker;
mod cluster;
mod eventually;
pub mod history;
mod load;
mod node_api;
mod outage;
mod ports;
mod process;
mod programs;
mod verdict;

pub use api::{Api, CallError, Fate};
pub use cluster::{Cluster, Setup, Tenant, shards_of};
pub use eventually::{eventually, eventually_within, wait_before_repeat};
pub use load::{Load, LoadPlan};
pub use node_api::{NodeApi, replica_of};
pub use outage::{Figures, Outages};
pub use process::Process;
pub use verdict::{assert_right, look_at_all, print_summary};
