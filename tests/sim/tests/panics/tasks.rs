//! Panics in long-lived tasks.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_cluster::ClusterConfig;
use holdfast_mutations::{PANIC_POINTS, UNSIMULATED_PANIC_POINTS, inject_panic, pending_panics};
use holdfast_telemetry::{BuildInfo, install_metrics};
use tokio::time::Instant;

use crate::cluster::{TestCluster, eventually};
use crate::gateway::TestGateway;

/// Tasks that run once, and what they do is not done again: they panic when they do it.
const ONCE: [&str; 2] = ["bootstrap", "decommission"];
/// Panics of a task at most until one is seen.
const MAX_STRIKES: u64 = 12;
/// Restarts of a node without a panic that are not too many, however long they take.
const MIN_ROUNDS: usize = 6;
/// How long a panic may be awaited. Some tasks run every few seconds, whatever happens meanwhile.
const PANIC_TIMEOUT: Duration = Duration::from_secs(60);

/// What the reason says why a node or gateway is not ready.
fn failure_reason(point: &str) -> String {
    match point {
        "apply" => "can't be applied: ".to_owned(),
        task => format!("task {task} has failed: panic"),
    }
}

/// Everything that runs gets something to do: a node goes and comes back, shards change their leaders, locks expire.
/// Before it is ready a node does not vote, so that no other one may stop.
async fn exercise_tasks(world: &mut TestCluster, node: usize, name: &str) {
    world.stop_node(node).await;
    world.assert_serves(&format!("{name} without {node}")).await;
    world.start_node(node, "1").await;
    world.wait_ready().await;
    world.assert_serves(&format!("{name} with {node}")).await;
}

/// Lets a task panic, wherever it runs next; whether a node or the gateway said so before it served again. One that is
/// just being stopped says nothing else, so the panic may have to wait until one is.
async fn panic_and_check_report(world: &mut TestCluster, point: &str, passes: u64, waits: bool) -> bool {
    world.seen.lock().clear();
    if waits {
        world.stop_node(0).await;
        assert!(inject_panic(point, passes));
        world.start_node(0, "1").await;
    } else {
        assert!(inject_panic(point, passes));
    }
    let (mut rounds, began) = (0, Instant::now());
    while !pending_panics().is_empty() {
        assert!(rounds < MIN_ROUNDS || began.elapsed() < PANIC_TIMEOUT, "no panic at {point}");
        exercise_tasks(world, rounds % 3, &format!("{point} {rounds}")).await;
        rounds += 1;
    }
    world.wait_ready().await;
    is_reported(world, point)
}

fn is_reported(world: &TestCluster, point: &str) -> bool {
    world.seen.lock().iter().any(|reason| reason.contains(&failure_reason(point)))
}

/// Panics of a task until one is reported.
async fn assert_reported(world: &mut TestCluster, number: u64, point: &str) {
    for strikes in 0..MAX_STRIKES {
        if panic_and_check_report(world, point, (number + strikes) % 3, strikes > 0).await {
            return;
        }
    }
    panic!("{point}: {:?}", world.seen.lock());
}

/// The config of the same groups, of which the first has no replica on one of its nodes any more.
fn without_a_replica(config: &ClusterConfig) -> ClusterConfig {
    let mut next = ClusterConfig { version: config.version + 1, ..config.clone() };
    next.next_replica_id = Some(config.first_unused_replica());
    next.applications.iter_mut().for_each(|application| application.replication_factor = 2);
    next.groups[0].replicas.pop();
    next
}

/// A node removes a replica once its group works without.
async fn assert_decommission_is_reported(world: &TestCluster, gateway: &TestGateway) {
    assert!(inject_panic("decommission", 0));
    let next = without_a_replica(&world.config);
    world.operations().set_config(&world.config.nodes[0], &next).await.expect("it may follow");
    eventually("the panic is said", async || is_reported(world, "decommission").then_some(())).await;
    gateway.wait_counted("decommission").await;
    let replicas = async || {
        let nodes = world.statuses(false).into_iter();
        let left = nodes.flat_map(|node| node.replicas).filter(|replica| replica.group == next.groups[0].id);
        let left = left.map(|replica| replica.replica).collect::<BTreeSet<_>>();
        (left.len() == 2).then_some(())
    };
    eventually("the replica is removed", replicas).await;
    world.wait_ready().await;
    world.assert_serves("after decommission").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_any_task_is_counted_and_said_and_everything_serves_again() {
    let _alone = crate::EXCLUSIVE.lock().await;
    let metrics = install_metrics(BuildInfo { program: "test", version: "1" }).expect("it is installed once");
    // Groups are formed once.
    assert!(inject_panic("bootstrap", 0));
    let mut world = TestCluster::start().await;
    assert!(is_reported(&world, "bootstrap"), "{:?}", world.seen.lock());
    let gateway = TestGateway::start(&world, metrics).await;
    gateway.wait_counted("bootstrap").await;
    let points = PANIC_POINTS.into_iter().chain(UNSIMULATED_PANIC_POINTS).filter(|point| !ONCE.contains(point));
    for (number, point) in (0_u64..).zip(points) {
        assert_reported(&mut world, number, point).await;
        gateway.wait_counted(point).await;
        world.assert_serves(&format!("after {point}")).await;
        world.wait_equal_states().await;
        gateway.wait_ready().await;
    }
    assert_decommission_is_reported(&world, &gateway).await;
}
