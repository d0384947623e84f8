//! Changing the mode of a hold.

use crate::support::{Ask, State, TokenDoor, World, through};

through! {
    every_door:;
    with_tokens:
        a_mode_is_not_changed_unless_that_is_asked_for,
        a_sole_reader_becomes_the_writer_with_a_new_token,
        a_writer_becomes_a_reader_and_keeps_its_token,
        an_upgrade_that_does_not_wait_is_refused_by_other_readers,
        an_upgrade_waits_at_the_head_of_the_queue,
        a_second_upgrade_is_refused,
        an_upgrade_whose_hold_ends_is_refused;
}

const LONG_MS: u64 = 300_000;

fn upgrade(process_id: &str) -> Ask {
    Ask::write("l", process_id).upgrading()
}

async fn a_mode_is_not_changed_unless_that_is_asked_for<D: TokenDoor>(world: World<D>) {
    world.door.take(Ask::read("l", "p")).await;
    for ask in [Ask::write("l", "p"), Ask::write("l", "p").waiting(LONG_MS)] {
        assert_eq!(world.door.is_refused(ask).await.reason.as_deref(), Some("UPGRADE"));
    }
    world.door.take(Ask::write("m", "p")).await;
    assert_eq!(world.door.is_refused(Ask::read("m", "p")).await.reason.as_deref(), Some("UPGRADE"));
}

async fn a_sole_reader_becomes_the_writer_with_a_new_token<D: TokenDoor>(world: World<D>) {
    let read = world.door.take(Ask::read("l", "p")).await.fencing_token.unwrap();
    let upgraded = world.door.take(upgrade("p")).await;
    let write = upgraded.fencing_token.unwrap();
    assert!(write > read);
    assert_eq!((upgraded.lock.state, upgraded.lock.readers.len()), (State::WriteLocked, 0));
    assert!(!world.door.check("l", read).await.unwrap());
    assert!(world.door.check("l", write).await.unwrap());
}

async fn a_writer_becomes_a_reader_and_keeps_its_token<D: TokenDoor>(world: World<D>) {
    let token = world.door.take(Ask::write("l", "p")).await.fencing_token;
    let weaker = world.door.take(Ask::read("l", "p").upgrading()).await;
    assert_eq!((weaker.fencing_token, weaker.lock.state), (token, State::ReadLocked));
    world.door.take(Ask::read("l", "q")).await;
}

async fn an_upgrade_that_does_not_wait_is_refused_by_other_readers<D: TokenDoor>(world: World<D>) {
    world.door.take(Ask::read("l", "p")).await;
    world.door.take(Ask::read("l", "q")).await;
    let refused = world.door.is_refused(upgrade("p")).await;
    assert_eq!((refused.reason.as_deref(), refused.blockers), (Some("HELD"), vec!["q".to_owned()]));
    assert_eq!(refused.lock.reader_ids(), ["p", "q"], "the reader still reads");
}

async fn an_upgrade_waits_at_the_head_of_the_queue<D: TokenDoor>(world: World<D>) {
    world.door.take(Ask::read("l", "p")).await;
    world.door.take(Ask::read("l", "q")).await;
    world.door.is_refused(Ask::write("l", "writer").waiting(LONG_MS).polling(1)).await;
    let leave = async {
        world.wait_for_queue("l", 2).await;
        world.door.release("l", "q").await.unwrap();
    };
    let (upgraded, ()) = tokio::join!(world.door.take(upgrade("p").waiting(LONG_MS)), leave);
    assert_eq!((upgraded.lock.writer_id(), upgraded.lock.waiting), ("p", Some(1)));
}

async fn a_second_upgrade_is_refused<D: TokenDoor>(world: World<D>) {
    world.door.take(Ask::read("l", "p")).await;
    world.door.take(Ask::read("l", "q")).await;
    world.door.is_refused(upgrade("p").waiting(LONG_MS).polling(1)).await;
    let refused = world.door.is_refused(upgrade("q").waiting(LONG_MS)).await;
    assert_eq!(refused.reason.as_deref(), Some("UPGRADE"));
}

async fn an_upgrade_whose_hold_ends_is_refused<D: TokenDoor>(world: World<D>) {
    world.door.take(Ask::read("l", "p")).await;
    world.door.take(Ask::read("l", "q")).await;
    let end = async {
        world.wait_for_queue("l", 1).await;
        world.door.release("l", "p").await.unwrap();
    };
    let (refused, ()) = tokio::join!(world.door.is_refused(upgrade("p").waiting(LONG_MS)), end);
    assert_eq!(refused.reason.as_deref(), Some("UPGRADE"));
}
