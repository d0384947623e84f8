//! Waits that would wait for themselves.

use crate::support::{AcquireRequest, FencingLockClient, TestEnv, through};

through! {
    every_frontend:;
    with_tokens:
        whoever_closes_a_cycle_is_told_and_the_others_go_on_waiting,
        a_long_cycle_is_named_as_a_whole,
        a_diamond_of_waits_is_no_cycle;
}

const WAIT_MS: u64 = 300_000;

/// Stays in the queue for as long as positions are kept.
fn waiting_request(lock: &str, process_id: &str) -> AcquireRequest {
    AcquireRequest::write(lock, process_id).wait_ms(WAIT_MS).poll_ms(1)
}

async fn whoever_closes_a_cycle_is_told_and_the_others_go_on_waiting<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("a", "p")).await;
    world.client.expect_granted(AcquireRequest::write("b", "q")).await;
    let close = async {
        world.wait_for_queue("b", 1).await;
        let refused = world.client.expect_refused(AcquireRequest::write("a", "q").wait_ms(WAIT_MS)).await;
        assert_eq!(
            (refused.reason.as_deref(), refused.cycle),
            (Some("DEADLOCK"), vec!["p".to_owned(), "q".to_owned()])
        );
        // What does not wait cannot wait for itself.
        let refused = world.client.expect_refused(AcquireRequest::write("a", "q")).await;
        assert_eq!((refused.reason.as_deref(), refused.cycle.len()), (Some("HELD"), 0));
        world.client.release("b", "q").await.unwrap();
    };
    tokio::join!(world.client.expect_granted(AcquireRequest::write("b", "p").wait_ms(WAIT_MS)), close);
}

async fn a_long_cycle_is_named_as_a_whole<D: FencingLockClient>(world: TestEnv<D>) {
    for (lock, owner) in [("a", "p"), ("b", "q"), ("c", "r")] {
        world.client.expect_granted(AcquireRequest::write(lock, owner)).await;
    }
    world.client.expect_refused(waiting_request("b", "p")).await;
    world.client.expect_refused(waiting_request("c", "q")).await;
    let refused = world.client.expect_refused(waiting_request("a", "r")).await;
    assert_eq!(
        (refused.reason.as_deref(), refused.cycle),
        (Some("DEADLOCK"), ["p", "q", "r"].map(str::to_owned).to_vec())
    );
}

async fn a_diamond_of_waits_is_no_cycle<D: FencingLockClient>(world: TestEnv<D>) {
    for (lock, owner) in [("left", "l"), ("right", "r"), ("end", "e")] {
        world.client.expect_granted(AcquireRequest::write(lock, owner)).await;
    }
    for (lock, owner) in [("end", "l"), ("end", "r"), ("left", "start"), ("right", "start")] {
        let queued = world.client.expect_refused(waiting_request(lock, owner)).await;
        assert_eq!(queued.reason.as_deref(), Some("QUEUED"), "{owner} waits for {lock}");
    }
}
