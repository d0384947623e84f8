//! The time after the time to live in which only the owner may come back.

use serde_json::json;

use crate::support::{AcquireRequest, FencingLockClient, LockClient, State, TestEnv, through, wait_until};

through! {
    every_frontend:;
    with_tokens:
        a_hold_in_transition_keeps_everybody_else_out_and_is_not_current,
        an_owner_in_transition_may_renew_and_keeps_its_token,
        a_release_ends_a_transition,
        a_delete_ends_a_transition,
        a_transition_ends_by_itself_and_leaves_nothing;
}

const TRANSITION_MS: u64 = 60_000;

/// A hold of `p` on `l` that is in transition, and its token.
async fn hold_in_transition<D: LockClient>(world: &TestEnv<D>, transition_ms: u64) -> u64 {
    let taken =
        world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(100).transition_ms(transition_ms)).await;
    let client = &world.client;
    wait_until("the hold is in transition", async || {
        client.get("l").await.unwrap().writer.is_some_and(|writer| writer.in_transition == Some(true))
    })
    .await;
    taken.fencing_token.unwrap()
}

async fn a_hold_in_transition_keeps_everybody_else_out_and_is_not_current<D: FencingLockClient>(world: TestEnv<D>) {
    let token = hold_in_transition(&world, TRANSITION_MS).await;
    assert!(!world.client.check("l", token).await.unwrap());
    let refused = world.client.expect_refused(AcquireRequest::read("l", "q")).await;
    assert_eq!((refused.reason.as_deref(), refused.blockers), (Some("TRANSITION"), vec!["p".to_owned()]));
    assert_eq!((refused.lock.state, refused.lock.writer_id()), (State::WriteLocked, "p"));
    let left_ms = refused.lock.writer.unwrap().remaining_ms.unwrap();
    assert!(left_ms > 0 && left_ms <= TRANSITION_MS, "what is left of the transition: {left_ms}");
    let page = world.rest.call("GET /v1/namespaces/ns/locks").await.ok();
    assert_eq!(page["locks"][0]["write_lock_holder"]["phase"], json!("TRANSITION"));
}

async fn an_owner_in_transition_may_renew_and_keeps_its_token<D: FencingLockClient>(world: TestEnv<D>) {
    let token = hold_in_transition(&world, TRANSITION_MS).await;
    for ask in [
        AcquireRequest::write("l", "p").ttl_ms(100).transition_ms(TRANSITION_MS),
        AcquireRequest::write("l", "p").fencing_token(token),
    ] {
        let renewed = world.client.expect_granted(ask).await;
        assert_eq!(renewed.fencing_token, Some(token));
        assert_eq!(renewed.lock.writer.unwrap().in_transition, Some(false));
    }
    assert!(world.client.check("l", token).await.unwrap());
}

async fn a_release_ends_a_transition<D: FencingLockClient>(world: TestEnv<D>) {
    hold_in_transition(&world, TRANSITION_MS).await;
    assert_eq!(world.client.release("l", "q").await.unwrap().released, Some(false));
    let released = world.client.release("l", "p").await.unwrap();
    assert_eq!(released.released, Some(true));
    released.lock.assert_free();
    world.client.expect_granted(AcquireRequest::write("l", "q")).await;
}

async fn a_delete_ends_a_transition<D: FencingLockClient>(world: TestEnv<D>) {
    hold_in_transition(&world, TRANSITION_MS).await;
    world.client.delete("l").await.unwrap();
    world.client.expect_granted(AcquireRequest::write("l", "q")).await;
}

async fn a_transition_ends_by_itself_and_leaves_nothing<D: FencingLockClient>(world: TestEnv<D>) {
    // Long enough to be seen on a busy machine.
    let token = hold_in_transition(&world, 3_000).await;
    let world = &world;
    wait_until("nothing is held", async || world.held_locks().await.is_empty()).await;
    let refused = world.client.expect_refused(AcquireRequest::write("l", "p").fencing_token(token)).await;
    assert_eq!(refused.reason.as_deref(), Some("NOT_HELD"));
}
