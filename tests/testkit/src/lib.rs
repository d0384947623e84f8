//! What the tests of several crates and the benchmark share: the programs as processes, a cluster of them, clients for
//! their interfaces, a fake node, and a TCP proxy.
//!
//! Invariant: no process outlives the test that started it, even if that is killed. Processes listen on loopback
//! addresses or in network namespaces of their own. Their data lies in a folder of their own, which remains only if the
//! test fails.
//!
//! Deliberately unknown here: what is tested. Of the services it uses the configuration, the protocol with its
//! credentials, and the state machines that a fake node may run, so that the tests of all others can use it.

mod cluster;
pub mod core_shards;
mod disk;
mod event_stream;
mod eventually;
mod executables;
pub mod fake_node;
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
mod tcp_proxy;

pub use cluster::{Cluster, Secrets, Setup, Tenant};
pub use disk::{Disk, DiskKind};
pub use event_stream::{Event, EventStream};
pub use eventually::{
    eventually, eventually_blocking, eventually_some, eventually_some_within, eventually_true, eventually_within,
    wait_before_retry, wait_out,
};
pub use executables::{ProgramExit, executable, find_installed, run_admin, run_dev, run_to_exit};
pub use metrics::{Metrics, Sample};
pub use net_ns::{check_net_ns_support, run_command, skip_without_net_ns};
pub use network::Network;
pub use node_client::{NodeClient, replica_of};
pub use ports::free_address;
pub use program::Program;
pub use rest_client::{Response, RestClient};
pub use rest_error::{CallError, CallOutcome};
pub use scratch::{Scratch, folder_bytes, scratch};
pub use session_socket::{SessionSocket, lock_message};
pub use standalone::Standalone;
pub use tcp_proxy::{ProxyMode, TcpProxy};
