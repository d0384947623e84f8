//! Waits that would wait for themselves.

use crate::support::{Ask, TokenDoor, World, through};

through! {
    every_door:;
    with_tokens:
        whoever_closes_a_cycle_is_told_and_the_others_go_on_waiting,
        a_long_cycle_is_named_as_a_whole,
        a_diamond_of_waits_is_no_cycle;
}

const LONG_MS: u64 = 300_000;

/// Stands in the queue for as long as places are kept.
fn queue(lock: &str, process_id: &str) -> Ask {
    Ask::write(lock, process_id).waiting(LONG_MS).polling(1)
}

async fn whoever_closes_a_cycle_is_told_and_the_others_go_on_waiting<D: TokenDoor>(world: World<D>) {
    world.door.take(Ask::write("a", "p")).await;
    world.door.take(Ask::write("b", "q")).await;
    let close = async {
        world.wait_for_queue("b", 1).await;
        let refused = world.door.is_refused(Ask::write("a", "q").waiting(LONG_MS)).await;
        assert_eq!(
            (refused.reason.as_deref(), refused.cycle),
            (Some("DEADLOCK"), vec!["p".to_owned(), "q".to_owned()])
        );
        // What does not wait cannot wait for itself.
        let refused = world.door.is_refused(Ask::write("a", "q")).await;
        assert_eq!((refused.reason.as_deref(), refused.cycle.len()), (Some("HELD"), 0));
        world.door.release("b", "q").await.unwrap();
    };
    tokio::join!(world.door.take(Ask::write("b", "p").waiting(LONG_MS)), close);
}

async fn a_long_cycle_is_named_as_a_whole<D: TokenDoor>(world: World<D>) {
    for (lock, owner) in [("a", "p"), ("b", "q"), ("c", "r")] {
        world.door.take(Ask::write(lock, owner)).await;
    }
    world.door.is_refused(queue("b", "p")).await;
    world.door.is_refused(queue("c", "q")).await;
    let refused = world.door.is_refused(queue("a", "r")).await;
    assert_eq!(
        (refused.reason.as_deref(), refused.cycle),
        (Some("DEADLOCK"), ["p", "q", "r"].map(str::to_owned).to_vec())
    );
}

async fn a_diamond_of_waits_is_no_cycle<D: TokenDoor>(world: World<D>) {
    for (lock, owner) in [("left", "l"), ("right", "r"), ("end", "e")] {
        world.door.take(Ask::write(lock, owner)).await;
    }
    for (lock, owner) in [("end", "l"), ("end", "r"), ("left", "start"), ("right", "start")] {
        let queued = world.door.is_refused(queue(lock, owner)).await;
        assert_eq!(queued.reason.as_deref(), Some("QUEUED"), "{owner} waits for {lock}");
    }
}
