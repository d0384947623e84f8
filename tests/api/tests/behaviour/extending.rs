//! Acquiring what one holds already.

use std::time::Duration;

use crate::support::frontends::instant_ns;
use crate::support::{AcquireRequest, FencingLockClient, LockClient, Mode, TestEnv, through};

through! {
    every_frontend:
        an_extension_keeps_one_holder_and_when_it_came_and_takes_the_later_end,
        an_extension_may_end_the_hold_sooner,
        one_release_ends_a_hold_however_often_it_was_extended,
        an_extension_of_one_reader_leaves_the_other_and_their_order;
    with_tokens:
        an_extension_keeps_the_token,
        an_extension_with_its_token_is_an_extension,
        an_extension_with_the_token_of_a_hold_that_is_gone_takes_nothing,
        an_extension_with_the_token_of_another_takes_nothing;
}

async fn an_extension_keeps_one_holder_and_when_it_came_and_takes_the_later_end<D: LockClient>(world: TestEnv<D>) {
    for mode in [Mode::Write, Mode::Read] {
        let lock = format!("{mode:?}");
        let first = world.client.expect_granted(AcquireRequest::new(&lock, "p", mode)).await.lock;
        let second = world.client.expect_granted(AcquireRequest::new(&lock, "p", mode).ttl_ms(120_000)).await.lock;
        let (first, second) = match mode {
            Mode::Write => (first.writer.unwrap(), second.writer.unwrap()),
            Mode::Read => {
                assert_eq!(second.reader_ids(), ["p"]);
                (first.readers[0].clone(), second.readers[0].clone())
            }
        };
        assert_eq!((second.locked_at_ms, second.fencing_token), (first.locked_at_ms, first.fencing_token));
        assert!(second.expires_at_ms > first.expires_at_ms + 30_000, "{first:?} {second:?}");
        assert!(second.remaining_ms.is_none_or(|left| left > 90_000));
    }
}

async fn an_extension_may_end_the_hold_sooner<D: LockClient>(world: TestEnv<D>) {
    let first = world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(600_000)).await.lock.writer.unwrap();
    let until = instant_ns(Duration::from_secs(30));
    let second =
        world.client.expect_granted(AcquireRequest::write("l", "p").expires_at(until)).await.lock.writer.unwrap();
    assert!(second.expires_at_ms < first.expires_at_ms - 300_000, "{first:?} {second:?}");
    assert!(second.remaining_ms.is_none_or(|left| left <= 30_000));
    assert_eq!((second.locked_at_ms, second.fencing_token), (first.locked_at_ms, first.fencing_token));
}

async fn one_release_ends_a_hold_however_often_it_was_extended<D: LockClient>(world: TestEnv<D>) {
    for _ in 0..3 {
        world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    }
    world.client.release("l", "p").await.unwrap().lock.assert_free();
    world.client.expect_granted(AcquireRequest::write("l", "q")).await;
}

async fn an_extension_of_one_reader_leaves_the_other_and_their_order<D: LockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    let before = world.client.expect_granted(AcquireRequest::read("l", "q")).await.lock;
    let after = world.client.expect_granted(AcquireRequest::read("l", "p").ttl_ms(120_000)).await.lock;
    assert_eq!(after.reader_ids(), ["p", "q"]);
    let (q_before, q_after) = (&before.readers[1], &after.readers[1]);
    assert_eq!((q_before.locked_at_ms, q_before.fencing_token), (q_after.locked_at_ms, q_after.fencing_token));
    assert!(q_after.expires_at_ms <= q_before.expires_at_ms + 10_000, "{q_before:?} {q_after:?}");
}

async fn an_extension_keeps_the_token<D: FencingLockClient>(world: TestEnv<D>) {
    let first = world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    let second = world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    assert_eq!(first.fencing_token, second.fencing_token);
    assert!(world.client.check("l", first.fencing_token.unwrap()).await.unwrap());
}

async fn an_extension_with_its_token_is_an_extension<D: FencingLockClient>(world: TestEnv<D>) {
    let token = world.client.expect_granted(AcquireRequest::write("l", "p")).await.fencing_token.unwrap();
    let extended =
        world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(120_000).fencing_token(token)).await;
    assert_eq!(extended.fencing_token, Some(token));
    assert!(extended.lock.writer.unwrap().remaining_ms.unwrap() > 90_000);
}

async fn an_extension_with_the_token_of_a_hold_that_is_gone_takes_nothing<D: FencingLockClient>(world: TestEnv<D>) {
    let token = world.client.expect_granted(AcquireRequest::write("l", "p")).await.fencing_token.unwrap();
    world.client.release("l", "p").await.unwrap();
    let refused = world.client.expect_refused(AcquireRequest::write("l", "p").fencing_token(token)).await;
    assert_eq!(refused.reason.as_deref(), Some("NOT_HELD"));
    refused.lock.assert_free();
    assert_eq!(world.held_locks().await, [""; 0]);
    // The same owner has it again: the old token still extends nothing.
    let again = world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    let refused =
        world.client.expect_refused(AcquireRequest::write("l", "p").ttl_ms(600_000).fencing_token(token)).await;
    assert_eq!(refused.reason.as_deref(), Some("NOT_HELD"));
    assert!(refused.lock.writer.unwrap().remaining_ms.unwrap() <= 60_000, "the newer hold ends when it did");
    assert_eq!(refused.lock.revision, again.lock.revision);
}

async fn an_extension_with_the_token_of_another_takes_nothing<D: FencingLockClient>(world: TestEnv<D>) {
    let token = world.client.expect_granted(AcquireRequest::write("l", "p")).await.fencing_token.unwrap();
    for lock in ["l", "elsewhere"] {
        let refused = world.client.expect_refused(AcquireRequest::write(lock, "q").fencing_token(token)).await;
        assert_eq!(refused.reason.as_deref(), Some("NOT_HELD"));
    }
    assert_eq!(world.held_locks().await, ["l"]);
    assert_eq!(world.client.get("l").await.unwrap().writer_id(), "p");
}
