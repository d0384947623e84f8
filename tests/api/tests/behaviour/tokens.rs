//! Fencing tokens: what a check says.

use crate::support::{Ask, TokenDoor, World, through};

through! {
    every_door:;
    with_tokens:
        a_check_is_true_exactly_for_tokens_of_present_holds,
        a_check_of_an_unknown_lock_is_false,
        a_token_is_good_for_its_own_lock_only;
}

async fn a_check_is_true_exactly_for_tokens_of_present_holds<D: TokenDoor>(world: World<D>) {
    let first = world.door.take(Ask::read("l", "p")).await.fencing_token.unwrap();
    let second = world.door.take(Ask::read("l", "q")).await.fencing_token.unwrap();
    assert!(first < second);
    for (token, current) in [(first, true), (second, true), (0, false), (second + 1, false)] {
        assert_eq!(world.door.check("l", token).await.unwrap(), current, "{token}");
    }
    world.door.release("l", "p").await.unwrap();
    assert!(!world.door.check("l", first).await.unwrap());
    assert!(world.door.check("l", second).await.unwrap());
    world.door.delete("l").await.unwrap();
    assert!(!world.door.check("l", second).await.unwrap());
}

async fn a_check_of_an_unknown_lock_is_false<D: TokenDoor>(world: World<D>) {
    assert!(!world.door.check("unknown", 1).await.unwrap());
}

async fn a_token_is_good_for_its_own_lock_only<D: TokenDoor>(world: World<D>) {
    let token = world.door.take(Ask::write("a", "p")).await.fencing_token.unwrap();
    world.door.take(Ask::write("b", "p")).await;
    assert!(!world.door.check("b", token).await.unwrap());
}
