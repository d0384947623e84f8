//! Release, get and delete.

use crate::support::{Ask, Door, State, TokenDoor, World, through};

through! {
    every_door:
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

async fn a_released_lock_is_free_and_can_be_taken_by_another<D: Door>(world: World<D>) {
    world.door.take(Ask::write("l", "p")).await;
    let released = world.door.release("l", "p").await.unwrap();
    assert_eq!(released.lock.name, "l");
    released.lock.is_free();
    assert_eq!(world.door.take(Ask::write("l", "q")).await.lock.writer_id(), "q");
}

async fn a_release_by_a_stranger_changes_nothing<D: Door>(world: World<D>) {
    let taken = world.door.take(Ask::write("w", "p")).await;
    let released = world.door.release("w", "q").await.unwrap();
    assert_eq!((released.lock.state, released.lock.writer_id()), (State::WriteLocked, "p"));
    assert_eq!(released.lock.revision, taken.lock.revision);
    world.door.take(Ask::read("r", "p")).await;
    assert_eq!(world.door.release("r", "q").await.unwrap().lock.reader_ids(), ["p"]);
    assert_eq!(world.held().await, ["r", "w"]);
}

async fn a_release_of_one_of_two_readers_leaves_the_other<D: Door>(world: World<D>) {
    for reader in ["p", "q"] {
        world.door.take(Ask::read("l", reader)).await;
    }
    let released = world.door.release("l", "p").await.unwrap();
    assert_eq!((released.lock.state, released.lock.reader_ids()), (State::ReadLocked, vec!["q"]));
    assert_eq!(released.lock.locked_at_ms, Some(released.lock.readers[0].locked_at_ms));
    world.door.is_refused(Ask::write("l", "p")).await;
}

async fn the_last_reader_to_leave_frees_the_lock<D: Door>(world: World<D>) {
    for reader in ["p", "q"] {
        world.door.take(Ask::read("l", reader)).await;
    }
    world.door.release("l", "q").await.unwrap();
    world.door.release("l", "p").await.unwrap().lock.is_free();
    world.door.take(Ask::write("l", "w")).await;
}

async fn a_release_of_an_unknown_lock_is_no_error_and_changes_nothing<D: Door>(world: World<D>) {
    let released = world.door.release("unknown", "p").await.unwrap();
    assert_eq!(released.lock.name, "unknown");
    released.lock.is_free();
    assert_eq!(world.held().await, [""; 0]);
}

async fn an_unknown_lock_is_unlocked<D: Door>(world: World<D>) {
    let lock = world.door.get("unknown").await.unwrap();
    assert_eq!(lock.name, "unknown");
    lock.is_free();
}

async fn a_delete_of_an_unknown_lock_is_no_error<D: Door>(world: World<D>) {
    for _ in 0..2 {
        world.door.delete("unknown").await.unwrap();
    }
}

async fn a_deleted_lock_can_be_taken_by_another<D: Door>(world: World<D>) {
    world.door.take(Ask::write("l", "p")).await;
    world.door.delete("l").await.unwrap();
    world.door.get("l").await.unwrap().is_free();
    assert_eq!(world.door.take(Ask::write("l", "q")).await.lock.writer_id(), "q");
    let released = world.door.release("l", "p").await.unwrap();
    assert_eq!(released.lock.writer_id(), "q", "who lost it can't free it");
}

async fn a_delete_ends_every_reader<D: Door>(world: World<D>) {
    for reader in ["p", "q", "r"] {
        world.door.take(Ask::read("l", reader)).await;
    }
    world.door.delete("l").await.unwrap();
    world.door.get("l").await.unwrap().is_free();
    world.door.take(Ask::write("l", "w")).await;
}

async fn nothing_is_stored_after_release_and_delete<D: Door>(world: World<D>) {
    for lock in ["a", "b", "c"] {
        world.door.take(Ask::read(lock, "p")).await;
        world.door.take(Ask::read(lock, "q")).await;
    }
    assert_eq!(world.held().await, ["a", "b", "c"]);
    world.door.release("a", "p").await.unwrap();
    world.door.release("a", "q").await.unwrap();
    assert_eq!(world.held().await, ["b", "c"]);
    world.door.delete("b").await.unwrap();
    world.door.delete("c").await.unwrap();
    assert_eq!(world.held().await, [""; 0]);
}

async fn a_release_says_whether_a_hold_ended<D: TokenDoor>(world: World<D>) {
    world.door.take(Ask::read("l", "p")).await;
    for (process_id, ended) in [("q", false), ("p", true), ("p", false)] {
        assert_eq!(world.door.release("l", process_id).await.unwrap().released, Some(ended));
    }
}

async fn a_release_with_an_old_token_after_a_re_acquire_frees_nothing<D: TokenDoor>(world: World<D>) {
    let old = world.door.take(Ask::write("l", "p")).await.fencing_token.unwrap();
    world.door.release("l", "p").await.unwrap();
    let new = world.door.take(Ask::write("l", "p")).await.fencing_token.unwrap();
    let released = world.door.release_token("l", "p", old).await.unwrap();
    assert_eq!((released.released, released.lock.writer_id()), (Some(false), "p"));
    assert!(world.door.check("l", new).await.unwrap());
}

async fn a_release_with_its_token_frees_the_lock<D: TokenDoor>(world: World<D>) {
    let token = world.door.take(Ask::write("l", "p")).await.fencing_token.unwrap();
    let released = world.door.release_token("l", "q", token).await.unwrap();
    assert_eq!(released.released, Some(false), "the token alone is not enough");
    let released = world.door.release_token("l", "p", token).await.unwrap();
    assert_eq!(released.released, Some(true));
    released.lock.is_free();
}
