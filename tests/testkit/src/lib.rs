//! What the tests of several crates and the benchmark share: the programs as processes, a cluster of them, clients for
//! their interfaces, and a fake node.
//!
//! Invariant: no process outlives the test that started it, even if that is killed. Processes listen on loopback
//! addresses or in network namespaces of their own. Their data lies in a folder of their own, which remains only if the
//! test fails.
//!
//! Deliberately unknown here: what is tested. Of the services it uses the configuration, the protocol and its
//! credentials, so that the tests of all others can use it.

mod cluster;
mod disk;
mod event_stream;
mod eventually;
mod executables;
pub mod fake_node;
mod latency_proxy;
mod metrics;
mod net_ns;
mod network;
mod node_client;
mod ports;
mod program;
mod rest_client;
mod rest_error;
mod scratch;
mod session_socket;
mod standalone;
pub mod subscriptions;

pub use cluster::{Cluster, Secrets, Setup, Tenant};
pub use disk::{Disk, DiskKind};
pub use event_stream::{Event, EventStream};
pub use eventually::{eventually, eventually_within, wait_before_retry, wait_out};
pub use executables::{ProgramExit, executable, find_installed, run_admin, run_dev, run_to_exit};
pub use latency_proxy::LatencyProxy;
pub use metrics::{Metrics, Sample};
pub use net_ns::{check_net_ns_support, run_command, skip_without_net_ns};
pub use network::Network;
pub use node_client::{NodeClient, replica_of};
pub use ports::free_address;
pub use program::Program;
pub use rest_client::{Response, RestClient};
pub use rest_error::{CallError, CallOutcome};
pub use scratch::{Scratch, scratch};
pub use session_socket::{SessionSocket, lock_message};
pub use standalone::Standalone;
