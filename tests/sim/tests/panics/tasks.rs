//! Panics in long-lived tasks.

use holdfast_mutations::{PANIC_POINTS, inject_panic, pending_panics};
use holdfast_telemetry::{BuildInfo, install_metrics};

use crate::cluster::{TestCluster, eventually};

/// What the reason says why a node is not ready.
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

/// Lets a task panic, wherever it runs next; whether a node said so before it served again. One that is just being stopped
/// says nothing else, so the panic may have to wait until one is.
async fn panic_and_check_report(world: &mut TestCluster, point: &str, passes: u64, waits: bool) -> bool {
    world.seen.lock().clear();
    if waits {
        world.stop_node(0).await;
        assert!(inject_panic(point, passes));
        world.start_node(0, "1").await;
    } else {
        assert!(inject_panic(point, passes));
    }
    let mut rounds = 0;
    while !pending_panics().is_empty() {
        assert!(rounds < 6, "no panic at {point}");
        exercise_tasks(world, rounds % 3, &format!("{point} {rounds}")).await;
        rounds += 1;
    }
    world.wait_ready().await;
    is_reported(world, point)
}

fn is_reported(world: &TestCluster, point: &str) -> bool {
    world.seen.lock().iter().any(|reason| reason.contains(&failure_reason(point)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_any_task_is_counted_and_said_and_everything_serves_again() {
    let _alone = crate::EXCLUSIVE.lock().await;
    let metrics = install_metrics(BuildInfo { program: "test", version: "1" }).expect("it is installed once");
    // Groups are formed once.
    assert!(inject_panic("bootstrap", 0));
    let mut world = TestCluster::start().await;
    let forming_is_said = is_reported(&world, "bootstrap");
    for (number, point) in PANIC_POINTS.into_iter().enumerate() {
        // Who only calls nodes shows no readiness of its own here; and what forms groups did so in the beginning.
        let is_shown = !["node_connection", "config_watch"].contains(&point);
        let mut is_said = point == "bootstrap" && forming_is_said;
        let mut strikes = 0;
        while point != "bootstrap" && !is_said && (strikes == 0 || is_shown && strikes < 12) {
            is_said = panic_and_check_report(&mut world, point, (number as u64 + strikes) % 3, strikes > 0).await;
            strikes += 1;
        }
        assert!(is_said || !is_shown, "{point}: {:?}", world.seen.lock());
        let counted = format!("holdfast_task_failures_total{{task=\"{point}\"}} ");
        let is_counted = |line: &str| line.strip_prefix(&counted).is_some_and(|times| times != "0");
        eventually(&counted, async || metrics.render().lines().any(is_counted).then_some(())).await;
        world.assert_serves(&format!("after {point}")).await;
        world.wait_equal_states().await;
    }
}
