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
async fn shake(world: &mut World, node: usize, name: &str) {
    world.stop_node(node).await;
    world.serves(&format!("{name} without {node}")).await;
    world.start_node(node, "1").await;
    world.serves(&format!("{name} with {node}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_any_task_is_counted_and_said_and_everything_serves_again() {
    let metrics = install_metrics(Build { program: "test", version: "1" }).expect("it is installed once");
    // Groups are formed once.
    assert!(arm_panic("form", 0));
    let mut world = World::start().await;
    for (number, point) in POINTS.into_iter().enumerate() {
        if point != "form" {
            world.seen.lock().clear();
            assert!(arm_panic(point, number as u64 % 3));
            let mut rounds = 0;
            while !armed_panics().is_empty() {
                assert!(rounds < 6, "no panic at {point}");
                shake(&mut world, rounds % 3, &format!("{point} {rounds}")).await;
                rounds += 1;
            }
        }
        let counted = format!("holdfast_task_failures_total{{task=\"{point}\"}} 1");
        eventually(&counted, async || metrics.render().contains(&counted).then_some(())).await;
        // Who only calls nodes shows no readiness of its own here.
        if !["route", "config news"].contains(&point) {
            let is_said = async || world.seen.lock().iter().any(|reason| reason.contains(&says(point))).then_some(());
            eventually(&says(point), is_said).await;
        }
        world.until_ready().await;
        world.serves(&format!("after {point}")).await;
        world.until_equal().await;
        println!("{point}: {:?}", world.seen.lock());
    }
}
