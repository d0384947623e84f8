//! A second call of the same owner: an error, unless it says that it means it.

use futures::FutureExt;
use holdfast_client::{Error, Guard, Mutex, Result};

use crate::support::{
    client, delete, eventually_nothing_left, eventually_waiting, get_lock, in_time, session, unique_name,
};

fn is_already_held<T>(result: Result<T>, name: &str) -> bool {
    result.err() == Some(Error::AlreadyHeld(name.into()))
}

#[tokio::test]
async fn of_two_futures_joined_in_one_task_one_gets_the_lock_and_the_other_an_error() {
    let session = session("one").await;
    let name = unique_name("joined");
    let mutex = session.mutex(name.as_str());
    let (first, second) = tokio::join!(mutex.lock(), mutex.lock());
    assert!(is_already_held(second, &name));
    first.unwrap().release().await.unwrap();
    // In a task of its own likewise.
    let (first, second) = tokio::spawn(async move { tokio::join!(mutex.try_lock(), mutex.lock()) }).await.unwrap();
    assert!(is_already_held(second, &name));
    first.unwrap().release().await.unwrap();
    eventually_nothing_left(&session, &name).await;
}

#[tokio::test]
async fn of_two_waits_in_one_select_the_second_fails_at_once_and_the_first_leaves_with_it() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("selected");
    let guard = other.mutex(name.as_str()).lock().await.unwrap();
    let mutex = one.mutex(name.as_str());
    let result = tokio::select! {
        biased;
        result = mutex.lock() => result,
        result = mutex.lock() => result,
    };
    assert!(is_already_held(result, &name));
    // Both futures are gone, so the owner waits no more, and may wait anew.
    eventually_waiting(&client(), &name, 0).await;
    let mut again = Box::pin(mutex.lock());
    assert!((&mut again).now_or_never().is_none());
    guard.release().await.unwrap();
    in_time("its turn", again).await.unwrap().release().await.unwrap();
}

async fn outer(mutex: &Mutex) -> Result<(Guard, Guard)> {
    let guard = mutex.lock().await?;
    Ok((guard, mutex.lock_again().await?))
}

#[tokio::test]
async fn a_nested_call_fails_and_with_lock_again_shares_the_hold() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("nested");
    let (mutex, theirs) = (one.mutex(name.as_str()), other.mutex(name.as_str()));
    let (guard, again) = outer(&mutex).await.unwrap();
    assert_eq!(guard.fencing_token(), again.fencing_token());
    assert!(is_already_held(mutex.lock().await, &name));
    assert!(is_already_held(mutex.try_lock().await, &name));
    assert!(is_already_held(mutex.lock_timeout(crate::support::TTL).await, &name));
    assert!(is_already_held(mutex.lock_observed(drop).await, &name));
    guard.release().await.unwrap();
    assert!(theirs.try_lock().await.is_err(), "the inner one still has it");
    assert!(is_already_held(mutex.lock().await, &name));
    again.release().await.unwrap();
    theirs.try_lock().await.unwrap().release().await.unwrap();
    // Where nothing is held, it is an ordinary request.
    mutex.lock_again().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_second_of_two_tasks_waits_for_the_first() {
    let session = session("one").await;
    let name = unique_name("two tasks");
    let mutex = session.mutex(name.as_str());
    let guard = mutex.lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock_again().await.unwrap().fencing_token() }
    });
    eventually_waiting(&client(), &name, 1).await;
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    assert!(in_time("the second one's turn", waiting).await.unwrap() > token);
}

#[tokio::test]
async fn after_a_lost_hold_its_owner_may_lock_anew_while_the_old_guard_is_there() {
    let session = session("one").await;
    let name = unique_name("lost");
    let mutex = session.mutex(name.as_str());
    let lost = mutex.lock().await.unwrap();
    delete(&client(), &name).await;
    in_time("the loss", lost.lost()).await;
    let guard = mutex.lock().await.unwrap();
    assert!(is_already_held(mutex.lock().await, &name));
    drop(lost);
    assert!(is_already_held(mutex.lock().await, &name), "the old guard has no part in it");
    assert_eq!(get_lock(&client(), &name).await.holders_total, 1);
    guard.release().await.unwrap();
    eventually_nothing_left(&session, &name).await;
}
