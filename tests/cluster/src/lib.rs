//! Tests of the whole service in real processes: three nodes and gateways, killed, paused, cut off and started again.
//!
//! Purpose: start clusters, load them, break them, record what every caller saw, and check the record against the
//! specification.
//!
//! Invariant: whatever ends a test, its processes end with it. They listen on loopback addresses, or in
//! network namespaces of their own, and keep their
//! data in a directory of their own, which is kept when the test fails.
//!
//! Deliberately unknown here: how the service works inside. What is asked of it goes through its public API, and
//! through the internal protocol where a test is about that.

mod api;
pub mod checker;
mod cluster;
mod disk;
mod eventually;
mod faults;
pub mod history;
mod load;
mod network;
mod node_api;
mod outage;
mod ports;
mod process;
mod programs;
mod room;
mod saved;
mod setup;
mod slow;
mod verdict;

pub use api::{Api, CallError, Fate};
pub use cluster::{Cluster, Tenant, shards_of};
pub use disk::{Disk, DiskKind};
pub use eventually::{eventually, eventually_within, wait_before_repeat, wait_out};
pub use faults::Fault;
pub use load::{Load, LoadPlan};
pub use network::Network;
pub use node_api::{NodeApi, replica_of};
pub use outage::{Figures, Outages};
pub use process::Process;
pub use programs::run_dev;
pub use room::{rooms_are_possible, skipped_without_rooms};
pub use saved::{load as load_history, shortest_wrong};
pub use setup::Setup;
pub use slow::SlowWay;
pub use verdict::{assert_right, look_at_all, print_summary};
