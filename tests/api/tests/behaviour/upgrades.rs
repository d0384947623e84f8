//! Changing the mode of a hold.

use crate::support::{AcquireRequest, FencingLockClient, State, TestEnv, through};

through! {
    every_frontend:;
    with_tokens:
        a_mode_is_not_changed_unless_that_is_asked_for,
        a_sole_reader_becomes_the_writer_with_a_new_token,
        a_writer_becomes_a_reader_and_keeps_its_token,
        an_upgrade_that_does_not_wait_is_refused_by_other_readers,
        an_upgrade_waits_at_the_head_of_the_queue,
        a_second_upgrade_is_refused,
        an_upgrade_whose_hold_ends_is_refused;
}

const WAIT_MS: u64 = 300_000;

fn upgrade_request(process_id: &str) -> AcquireRequest {
    AcquireRequest::write("l", process_id).allow_upgrade()
}

async fn a_mode_is_not_changed_unless_that_is_asked_for<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    for ask in [AcquireRequest::write("l", "p"), AcquireRequest::write("l", "p").wait_ms(WAIT_MS)] {
        assert_eq!(world.client.expect_refused(ask).await.reason.as_deref(), Some("UPGRADE"));
    }
    world.client.expect_granted(AcquireRequest::write("m", "p")).await;
    assert_eq!(world.client.expect_refused(AcquireRequest::read("m", "p")).await.reason.as_deref(), Some("UPGRADE"));
}

async fn a_sole_reader_becomes_the_writer_with_a_new_token<D: FencingLockClient>(world: TestEnv<D>) {
    let read = world.client.expect_granted(AcquireRequest::read("l", "p")).await.fencing_token.unwrap();
    let upgraded = world.client.expect_granted(upgrade_request("p")).await;
    let write = upgraded.fencing_token.unwrap();
    assert!(write > read);
    assert_eq!((upgraded.lock.state, upgraded.lock.readers.len()), (State::WriteLocked, 0));
    assert!(!world.client.check("l", read).await.unwrap());
    assert!(world.client.check("l", write).await.unwrap());
}

async fn a_writer_becomes_a_reader_and_keeps_its_token<D: FencingLockClient>(world: TestEnv<D>) {
    let token = world.client.expect_granted(AcquireRequest::write("l", "p")).await.fencing_token;
    let weaker = world.client.expect_granted(AcquireRequest::read("l", "p").allow_upgrade()).await;
    assert_eq!((weaker.fencing_token, weaker.lock.state), (token, State::ReadLocked));
    world.client.expect_granted(AcquireRequest::read("l", "q")).await;
}

async fn an_upgrade_that_does_not_wait_is_refused_by_other_readers<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    world.client.expect_granted(AcquireRequest::read("l", "q")).await;
    let refused = world.client.expect_refused(upgrade_request("p")).await;
    assert_eq!((refused.reason.as_deref(), refused.blockers), (Some("HELD"), vec!["q".to_owned()]));
    assert_eq!(refused.lock.reader_ids(), ["p", "q"], "the reader still reads");
}

async fn an_upgrade_waits_at_the_head_of_the_queue<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    world.client.expect_granted(AcquireRequest::read("l", "q")).await;
    world.client.expect_refused(AcquireRequest::write("l", "writer").wait_ms(WAIT_MS).poll_ms(1)).await;
    let leave = async {
        world.wait_for_queue("l", 2).await;
        world.client.release("l", "q").await.unwrap();
    };
    let (upgraded, ()) = tokio::join!(world.client.expect_granted(upgrade_request("p").wait_ms(WAIT_MS)), leave);
    assert_eq!((upgraded.lock.writer_id(), upgraded.lock.waiting), ("p", Some(1)));
}

async fn a_second_upgrade_is_refused<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    world.client.expect_granted(AcquireRequest::read("l", "q")).await;
    world.client.expect_refused(upgrade_request("p").wait_ms(WAIT_MS).poll_ms(1)).await;
    let refused = world.client.expect_refused(upgrade_request("q").wait_ms(WAIT_MS)).await;
    assert_eq!(refused.reason.as_deref(), Some("UPGRADE"));
}

async fn an_upgrade_whose_hold_ends_is_refused<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    world.client.expect_granted(AcquireRequest::read("l", "q")).await;
    let end = async {
        world.wait_for_queue("l", 1).await;
        world.client.release("l", "p").await.unwrap();
    };
    let (refused, ()) = tokio::join!(world.client.expect_refused(upgrade_request("p").wait_ms(WAIT_MS)), end);
    assert_eq!(refused.reason.as_deref(), Some("UPGRADE"));
}
