//! Panics in long-lived tasks.

use holdfast_plant::{POINTS, arm_panic, armed_panics};
use holdfast_telemetry::{Build, install_metrics};

use crate::world::{World, eventually};

/// What the reason says why a node is not ready.
fn says(point: &str) -> String {
    match point {
        "apply" => "can't be applied: ".to_owned(),
        task => format!("task {task} has failed: panic"),
    }
}

/// Everything that runs gets something to do: a node goes and comes back, shards change their leaders, locks expire.
/// Before it is ready a node does not vote, so that no other one may stop.
async fn shake(world: &mut World, node: usize, name: &str) {
    world.stop_node(node).await;
    world.serves(&format!("{name} without {node}")).await;
    world.start_node(node, "1").await;
    world.until_ready().await;
    world.serves(&format!("{name} with {node}")).await;
}

/// Lets a task panic, wherever it runs next; whether a node said so before it served again. One that is just being stopped
/// says nothing else, so the panic may have to wait until one is.
async fn strikes_and_is_said(world: &mut World, point: &str, passes: u64, waits: bool) -> bool {
    world.seen.lock().clear();
    if waits {
        world.stop_node(0).await;
        assert!(arm_panic(point, passes));
        world.start_node(0, "1").await;
    } else {
        assert!(arm_panic(point, passes));
    }
    let mut rounds = 0;
    while !armed_panics().is_empty() {
        assert!(rounds < 6, "no panic at {point}");
        shake(world, rounds % 3, &format!("{point} {rounds}")).await;
        rounds += 1;
    }
    world.until_ready().await;
    is_said(world, point)
}

fn is_said(world: &World, point: &str) -> bool {
    world.seen.lock().iter().any(|reason| reason.contains(&says(point)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_any_task_is_counted_and_said_and_everything_serves_again() {
    let _alone = crate::ALONE.lock().await;
    let metrics = install_metrics(Build { program: "test", version: "1" }).expect("it is installed once");
    // Groups are formed once.
    assert!(arm_panic("form", 0));
    let mut world = World::start().await;
    let forming_is_said = is_said(&world, "form");
    for (number, point) in POINTS.into_iter().enumerate() {
        // Who only calls nodes shows no readiness of its own here; and what forms groups did so in the beginning.
        let is_shown = !["route", "config news"].contains(&point);
        let mut is_said = point == "form" && forming_is_said;
        let mut strikes = 0;
        while point != "form" && !is_said && (strikes == 0 || is_shown && strikes < 12) {
            is_said = strikes_and_is_said(&mut world, point, (number as u64 + strikes) % 3, strikes > 0).await;
            strikes += 1;
        }
        assert!(is_said || !is_shown, "{point}: {:?}", world.seen.lock());
        let counted = format!("holdfast_task_failures_total{{task=\"{point}\"}} ");
        let is_counted = |line: &str| line.strip_prefix(&counted).is_some_and(|times| times != "0");
        eventually(&counted, async || metrics.render().lines().any(is_counted).then_some(())).await;
        world.serves(&format!("after {point}")).await;
        world.until_equal().await;
    }
}
