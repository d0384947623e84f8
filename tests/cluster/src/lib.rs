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

pub mod checker;
mod cluster;
mod disk;
mod eventually;
mod faults;
pub mod history;
mod history_file;
mod latency_proxy;
mod load;
mod net_ns;
mod network;
mod node_client;
mod outage;
mod ports;
mod process;
mod programs;
mod report;
mod rest_client;
mod setup;
mod wall_clock;

pub use cluster::{Cluster, Tenant, shards_of};
pub use disk::{Disk, DiskKind};
pub use eventually::{eventually, eventually_within, wait_before_retry, wait_out};
pub use faults::Fault;
pub use history_file::{load as load_history, minimal_counterexample};
pub use latency_proxy::LatencyProxy;
pub use load::{Load, LoadPlan};
pub use net_ns::{check_net_ns_support, skip_without_net_ns};
pub use network::Network;
pub use node_client::{NodeClient, replica_of};
pub use outage::{DurationStats, Outages};
pub use process::Process;
pub use programs::{run_admin, run_dev};
pub use report::{assert_no_violations, print_summary, read_all_locks};
pub use rest_client::{CallError, CallOutcome, RestClient};
pub use setup::Setup;
pub use wall_clock::{WallClocks, offset_to};
