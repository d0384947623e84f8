//! A node's process on a simulated host: what the program `node` does, on a simulated disk and network.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use holdfast_node::{Node, NodeOptions, serve_connections};
use holdfast_replication::WallClock;
use holdfast_storage::NodeStore;
use tokio::time::{advance, sleep};

use crate::apply_log::NodeObserver;
use crate::host_state::HostState;
use crate::network::{self, SimConnector};
use crate::pause;
use crate::world::{World, node_name, now};

/// How often it is looked whether the process is to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Where wall clocks begin, in milliseconds since 1970.
const WALL_CLOCK_START_MS: u64 = 1_790_000_000_000;
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
    options.snapshot_interval_entries = plan.snapshot_interval_entries;
    options.retain_entries = plan.retain_entries;
    options.log_limits = plan.log_limits;
    options.bounds = plan.bounds.clone();
    options.wall_clock = wall_clock(&slot.wall_skew_ms);
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

/// Some day in 2026, plus simulated time, plus how far this node's clock is off.
fn wall_clock(skew_ms: &Arc<AtomicI64>) -> WallClock {
    let skew_ms = Arc::clone(skew_ms);
    WallClock::new(move || {
        let elapsed = now().unwrap_or_default().as_millis();
        let right = WALL_CLOCK_START_MS.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX));
        right.saturating_add_signed(skew_ms.load(Ordering::Relaxed))
    })
}

/// Stops everything in this process whenever that is asked for.
async fn run_pauses(world: Arc<World>, number: usize) {
    loop {
        sleep(POLL_INTERVAL).await;
        let pause_ms = world.nodes[number].pause_ms.swap(0, Ordering::Relaxed);
        if pause_ms > 0 && !pause::this_process(pause_ms).await {
            world.record_violation(format!("[simulation] {} went on while it was paused", node_name(number)));
        }
    }
}

/// Tells again and again which leases this process holds by its own clock, which only itself can read. One that is paused
/// or gone tells nothing.
async fn publish_leases(world: Arc<World>, number: usize) {
    let slot = &world.nodes[number];
    loop {
        sleep(POLL_INTERVAL).await;
        let held = slot.node.lock().as_ref().map(|node| node.held_leases()).unwrap_or_default();
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
