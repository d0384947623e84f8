//! A node's process on a simulated host: what the program `node` does, on a simulated disk and network.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_node::{Node, NodeOptions, serve_connections};
use holdfast_storage::NodeStore;
use tokio::time::{advance, sleep};

use crate::apply_log::NodeObserver;
use crate::host_state::HostState;
use crate::network::{self, SimConnector};
use crate::pause;
use crate::world::{World, node_name, now};

/// How often it is looked whether the process is to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How far a clock that drifts is put forward at a time.
const DRIFT_STEP: Duration = Duration::from_millis(1);

/// Runs until the host crashes. A process that ends by itself says so and waits for the crash that takes it away.
pub(crate) async fn run(world: Arc<World>, number: usize) -> turmoil::Result {
    let name = node_name(number);
    let slot = &world.nodes[number];
    let run = slot.starts.fetch_add(1, Ordering::Relaxed) + 1;
    world.hosts.set(&name, HostState::Up);
    world.record(format!("{name} starts, run {run}"));
    let reason = match serve(&world, number).await {
        Ok(reason) => reason,
        Err(error) => format!("can't start: {error}"),
    };
    world.hosts.set(&name, HostState::ConnectionRefused);
    *slot.node.lock() = None;
    *slot.exited.lock() = Some(reason);
    std::future::pending().await
}

async fn serve(world: &Arc<World>, number: usize) -> anyhow::Result<String> {
    let plan = &world.plan;
    let slot = &world.nodes[number];
    let mut options = NodeOptions::new(node_name(number), world.config.clone(), world.secret.clone(), "");
    options.reads = plan.reads;
    options.leader_return_after = plan.leader_return_after;
    options.snapshot_interval_entries = plan.snapshot_interval_entries;
    options.retain_entries = plan.retain_entries;
    options.log_limits = plan.log_limits;
    options.bounds = plan.bounds.clone();
    options.slice_commands = plan.slice_commands;
    options.clocks = slot.clocks.start();
    tokio::spawn(run_clock_drift(plan.drift_ppm[number]));
    tokio::task::spawn_local(run_pauses(Arc::clone(world), number));
    tokio::task::spawn_local(publish_leases(Arc::clone(world), number));
    let connections = network::listen().await?;
    let store = NodeStore::in_memory(&slot.disk, &options.identity())?;
    let observer = NodeObserver { node: number, apply_log: Arc::clone(&world.ledger) };
    let node = Node::with_store(&options, store, SimConnector::new(Arc::clone(world)))?;
    let node = Arc::new(node.with_observer(Arc::new(observer)));
    let served = Arc::clone(&node);
    let serving = tokio::spawn(async move { serve_connections(&served, connections).await });
    *slot.node.lock() = Some(Arc::clone(&node));
    let asked = async {
        while !std::mem::take(&mut *slot.stop.lock()) {
            sleep(POLL_INTERVAL).await;
        }
    };
    let reason = match node.start_replicas(&options).await {
        Err(error) => format!("replicas can't start: {error}"),
        Ok(()) => tokio::select! {
            () = asked => "was asked to stop".to_owned(),
            error = node.store_failure() => error.to_string(),
        },
    };
    node.stop().await;
    serving.abort();
    Ok(reason)
}

/// Stops everything in this process whenever that is asked for.
async fn run_pauses(world: Arc<World>, number: usize) {
    let slot = &world.nodes[number];
    loop {
        sleep(POLL_INTERVAL).await;
        let next = slot.pause.lock().take();
        let Some((pause, pause_ms)) = next else { continue };
        let was_quiet = pause::this_process(pause_ms).await;
        slot.clocks.resume(pause, pause_ms);
        if !was_quiet {
            world.record_violation(format!("[simulation] {} went on while it was paused", node_name(number)));
        }
    }
}

/// Tells again and again which leases this process holds by its own clocks, which only itself can read. One that is
/// paused or gone tells nothing, and neither does one that may be wrong because it can't notice a pause.
async fn publish_leases(world: Arc<World>, number: usize) {
    let slot = &world.nodes[number];
    loop {
        sleep(POLL_INTERVAL).await;
        let node = slot.node.lock().clone().filter(|_| !slot.clocks.was_paused_unseen());
        let held = node.map(|node| node.held_leases()).unwrap_or_default();
        *slot.leases.lock() = (now().unwrap_or_default(), held);
    }
}

/// Lets the monotonic clock of this host run faster than that of the simulation, as far as such clocks may.
async fn run_clock_drift(ppm: u32) {
    if ppm == 0 {
        return;
    }
    loop {
        sleep(DRIFT_STEP * (1_000_000 / ppm)).await;
        // By whole steps of the simulation only: timers count in them.
        advance(DRIFT_STEP).await;
    }
}
