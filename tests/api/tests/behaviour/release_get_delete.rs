//! Release, get and delete.

use crate::support::{AcquireRequest, FencingLockClient, LockClient, State, TestEnv, through};

through! {
    every_frontend:
        a_released_lock_is_free_and_can_be_taken_by_another,
        a_release_by_a_stranger_changes_nothing,
        a_release_of_one_of_two_readers_leaves_the_other,
        the_last_reader_to_leave_frees_the_lock,
        a_release_of_an_unknown_lock_is_no_error_and_changes_nothing,
        an_unknown_lock_is_unlocked,
        a_delete_of_an_unknown_lock_is_no_error,
        a_deleted_lock_can_be_taken_by_another,
        a_delete_ends_every_reader,
        nothing_is_stored_after_release_and_delete;
    with_tokens:
        a_release_says_whether_a_hold_ended,
        a_release_with_an_old_token_after_a_re_acquire_frees_nothing,
        a_release_with_its_token_frees_the_lock;
}

async fn a_released_lock_is_free_and_can_be_taken_by_another<D: LockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    let released = world.client.release("l", "p").await.unwrap();
    assert_eq!(released.lock.name, "l");
    released.lock.assert_free();
    assert_eq!(world.client.expect_granted(AcquireRequest::write("l", "q")).await.lock.writer_id(), "q");
}

async fn a_release_by_a_stranger_changes_nothing<D: LockClient>(world: TestEnv<D>) {
    let taken = world.client.expect_granted(AcquireRequest::write("w", "p")).await;
    let released = world.client.release("w", "q").await.unwrap();
    assert_eq!((released.lock.state, released.lock.writer_id()), (State::WriteLocked, "p"));
    assert_eq!(released.lock.revision, taken.lock.revision);
    world.client.expect_granted(AcquireRequest::read("r", "p")).await;
    assert_eq!(world.client.release("r", "q").await.unwrap().lock.reader_ids(), ["p"]);
    assert_eq!(world.held_locks().await, ["r", "w"]);
}

async fn a_release_of_one_of_two_readers_leaves_the_other<D: LockClient>(world: TestEnv<D>) {
    for reader in ["p", "q"] {
        world.client.expect_granted(AcquireRequest::read("l", reader)).await;
    }
    let released = world.client.release("l", "p").await.unwrap();
    assert_eq!((released.lock.state, released.lock.reader_ids()), (State::ReadLocked, vec!["q"]));
    assert_eq!(released.lock.locked_at_ms, Some(released.lock.readers[0].locked_at_ms));
    world.client.expect_refused(AcquireRequest::write("l", "p")).await;
}

async fn the_last_reader_to_leave_frees_the_lock<D: LockClient>(world: TestEnv<D>) {
    for reader in ["p", "q"] {
        world.client.expect_granted(AcquireRequest::read("l", reader)).await;
    }
    world.client.release("l", "q").await.unwrap();
    world.client.release("l", "p").await.unwrap().lock.assert_free();
    world.client.expect_granted(AcquireRequest::write("l", "w")).await;
}

async fn a_release_of_an_unknown_lock_is_no_error_and_changes_nothing<D: LockClient>(world: TestEnv<D>) {
    let released = world.client.release("unknown", "p").await.unwrap();
    assert_eq!(released.lock.name, "unknown");
    released.lock.assert_free();
    assert_eq!(world.held_locks().await, [""; 0]);
}

async fn an_unknown_lock_is_unlocked<D: LockClient>(world: TestEnv<D>) {
    let lock = world.client.get("unknown").await.unwrap();
    assert_eq!(lock.name, "unknown");
    lock.assert_free();
}

async fn a_delete_of_an_unknown_lock_is_no_error<D: LockClient>(world: TestEnv<D>) {
    for _ in 0..2 {
        world.client.delete("unknown").await.unwrap();
    }
}

async fn a_deleted_lock_can_be_taken_by_another<D: LockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    world.client.delete("l").await.unwrap();
    world.client.get("l").await.unwrap().assert_free();
    assert_eq!(world.client.expect_granted(AcquireRequest::write("l", "q")).await.lock.writer_id(), "q");
    let released = world.client.release("l", "p").await.unwrap();
    assert_eq!(released.lock.writer_id(), "q", "who lost it can't free it");
}

async fn a_delete_ends_every_reader<D: LockClient>(world: TestEnv<D>) {
    for reader in ["p", "q", "r"] {
        world.client.expect_granted(AcquireRequest::read("l", reader)).await;
    }
    world.client.delete("l").await.unwrap();
    world.client.get("l").await.unwrap().assert_free();
    world.client.expect_granted(AcquireRequest::write("l", "w")).await;
}

async fn nothing_is_stored_after_release_and_delete<D: LockClient>(world: TestEnv<D>) {
    for lock in ["a", "b", "c"] {
        world.client.expect_granted(AcquireRequest::read(lock, "p")).await;
        world.client.expect_granted(AcquireRequest::read(lock, "q")).await;
    }
    assert_eq!(world.held_locks().await, ["a", "b", "c"]);
    world.client.release("a", "p").await.unwrap();
    world.client.release("a", "q").await.unwrap();
    assert_eq!(world.held_locks().await, ["b", "c"]);
    world.client.delete("b").await.unwrap();
    world.client.delete("c").await.unwrap();
    assert_eq!(world.held_locks().await, [""; 0]);
}

async fn a_release_says_whether_a_hold_ended<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    for (process_id, ended) in [("q", false), ("p", true), ("p", false)] {
        assert_eq!(world.client.release("l", process_id).await.unwrap().released, Some(ended));
    }
}

async fn a_release_with_an_old_token_after_a_re_acquire_frees_nothing<D: FencingLockClient>(world: TestEnv<D>) {
    let old = world.client.expect_granted(AcquireRequest::write("l", "p")).await.fencing_token.unwrap();
    world.client.release("l", "p").await.unwrap();
    let new = world.client.expect_granted(AcquireRequest::write("l", "p")).await.fencing_token.unwrap();
    let released = world.client.release_token("l", "p", old).await.unwrap();
    assert_eq!((released.released, released.lock.writer_id()), (Some(false), "p"));
    assert!(world.client.check("l", new).await.unwrap());
}

async fn a_release_with_its_token_frees_the_lock<D: FencingLockClient>(world: TestEnv<D>) {
    let token = world.client.expect_granted(AcquireRequest::write("l", "p")).await.fencing_token.unwrap();
    let released = world.client.release_token("l", "q", token).await.unwrap();
    assert_eq!(released.released, Some(false), "the token alone is not enough");
    let released = world.client.release_token("l", "p", token).await.unwrap();
    assert_eq!(released.released, Some(true));
    released.lock.assert_free();
}
