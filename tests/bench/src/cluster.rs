//! The cluster under test: three nodes and a gateway, in processes of their own, or three nodes that serve gateways.

mod entry_point;
mod leaders;
mod tenant;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use holdfast_testkit::{Cluster, Program, Setup, folder_bytes};

pub use entry_point::EntryPoint;
pub(crate) use entry_point::entry_addresses;
pub use leaders::wait_leaders;
pub(crate) use tenant::NAMESPACES_PER_SHARD;
pub use tenant::{
    Tenant, create_session_namespaces, create_session_namespaces_in_one_shard, create_tenant, create_tenant_with_email,
    namespace_per_shard, update_limits,
};

/// How many nodes there are, and replicas of each group.
pub const NODES: usize = 3;

/// A setup with so many shards of namespaces, and as many of locks, that keeps its data in a folder.
pub fn setup(shards: u32, data_dir: &Path, at: EntryPoint) -> Setup {
    let gateways = usize::from(at == EntryPoint::Gateway);
    // All servers of a cluster share this machine, and threads that outnumber its processors only wake one another. In
    // production each has a machine of its own, and one thread a processor.
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (processors / (NODES + gateways)).max(1);
    let environment = vec![("TOKIO_WORKER_THREADS", threads.to_string())];
    let (has_node_gateways, data_dir) = (at == EntryPoint::Leader, Some(data_dir.to_owned()));
    Setup { shards, gateways, has_node_gateways, environment, data_dir, ..Setup::default() }
}

/// Where the first gateway listens.
pub fn gateway(cluster: &Cluster) -> SocketAddr {
    cluster.gateway_address(0)
}

/// The name and process id of every process that runs, the nodes first.
pub fn pids(cluster: &Cluster) -> Vec<(String, i32)> {
    pids_of(cluster.nodes.iter().chain(&cluster.gateways))
}

/// The name and process id of those that run.
pub(crate) fn pids_of<'a>(programs: impl IntoIterator<Item = &'a Program>) -> Vec<(String, i32)> {
    let pid = |program: &Program| Some((program.name().to_owned(), program.pid()?.cast_signed()));
    programs.into_iter().filter_map(pid).collect()
}

/// Lets the leaders make a snapshot of each shard, and keeps them. Returns how long that took, and their bytes.
///
/// # Errors
/// If a snapshot can't be made.
pub async fn back_up(cluster: &Cluster) -> Result<(Duration, f64)> {
    let folder = cluster.dir().join("backup");
    let begun = Instant::now();
    let made = cluster.run_admin_command(&["backup", "--out", &folder.display().to_string()]).await;
    let took = begun.elapsed();
    made.map_err(|error| anyhow!("no backup was made: {error}"))?;
    Ok((took, folder_bytes(&folder)? as f64))
}

/// The file of a program of this machine, such as `etcd`.
pub(crate) fn find_installed(name: &str, package: &str) -> Result<PathBuf> {
    holdfast_testkit::find_installed(name)
        .with_context(|| format!("the program {name} is missing: install the package {package}"))
}
