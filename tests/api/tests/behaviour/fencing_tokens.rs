//! Fencing tokens: what a check says.

use crate::support::{AcquireRequest, FencingLockClient, TestEnv, through};

through! {
    every_frontend:;
    with_tokens:
        a_check_is_true_exactly_for_tokens_of_present_holds,
        a_check_of_an_unknown_lock_is_false,
        a_token_is_good_for_its_own_lock_only;
}

async fn a_check_is_true_exactly_for_tokens_of_present_holds<D: FencingLockClient>(world: TestEnv<D>) {
    let first = world.client.expect_granted(AcquireRequest::read("l", "p")).await.fencing_token.unwrap();
    let second = world.client.expect_granted(AcquireRequest::read("l", "q")).await.fencing_token.unwrap();
    assert!(first < second);
    for (token, current) in [(first, true), (second, true), (0, false), (second + 1, false)] {
        assert_eq!(world.client.check("l", token).await.unwrap(), current, "{token}");
    }
    world.client.release("l", "p").await.unwrap();
    assert!(!world.client.check("l", first).await.unwrap());
    assert!(world.client.check("l", second).await.unwrap());
    world.client.delete("l").await.unwrap();
    assert!(!world.client.check("l", second).await.unwrap());
}

async fn a_check_of_an_unknown_lock_is_false<D: FencingLockClient>(world: TestEnv<D>) {
    assert!(!world.client.check("unknown", 1).await.unwrap());
}

async fn a_token_is_good_for_its_own_lock_only<D: FencingLockClient>(world: TestEnv<D>) {
    let token = world.client.expect_granted(AcquireRequest::write("a", "p")).await.fencing_token.unwrap();
    world.client.expect_granted(AcquireRequest::write("b", "p")).await;
    assert!(!world.client.check("b", token).await.unwrap());
}
