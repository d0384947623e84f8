//! Conditions of locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_client::protocol::ListConditionsRequest;
use holdfast_client::{Error, Guard, Mutex, Session, Woken};

use crate::support::{NAMESPACE, client, eventually, in_time, session, unique_name};

const SHORT: Duration = Duration::from_millis(50);

/// How many await conditions of a lock.
async fn awaiting(name: &str) -> u64 {
    let list = ListConditionsRequest { namespace: NAMESPACE.into(), prefix: vec![name.into()], ..Default::default() };
    let page = client().locks().list_conditions(list).await.expect("they are listed").into_inner();
    page.conditions.iter().map(|condition| condition.awaiting).sum()
}

async fn wait_for_awaiting(name: &str, count: u64) {
    eventually("they await it", async || awaiting(name).await == count).await;
}

/// Locks, and awaits the condition `c` in another task.
fn lock_and_wait(session: &Session, lock: Mutex) -> tokio::task::JoinHandle<Result<Guard, Error>> {
    let condition = session.condition("c");
    tokio::spawn(async move { lock.lock().await?.wait(&condition).await })
}

#[tokio::test]
async fn a_guard_is_given_up_and_comes_back_after_a_signal() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("jobs");
    let guard = one.mutex(name.as_str()).lock().await.unwrap();
    let (given_up, hold) = (guard.fencing_token(), guard.hold());
    let condition = one.condition("c");
    let waiting = tokio::spawn(async move { guard.wait(&condition).await });
    wait_for_awaiting(&name, 1).await;
    assert!(hold.is_lost(), "it is not held while it is awaited");
    let guard = other.mutex(name.as_str()).lock().await.unwrap();
    assert_eq!(guard.signal(&other.condition("c")).await.unwrap(), 1);
    assert_eq!(guard.signal(&other.condition("c")).await.unwrap(), 0);
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let again = in_time("it is granted", waiting).await.unwrap().unwrap();
    assert!(again.fencing_token() > token && token > given_up);
    assert_eq!(again.check().unwrap(), again.fencing_token());
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_signal_to_all_wakes_all() {
    let session = session("one").await;
    let name = unique_name("jobs");
    let lock = |owner: &str| session.mutex(name.as_str()).owned_by(owner);
    let waiting = [lock_and_wait(&session, lock("a")), lock_and_wait(&session, lock("b"))];
    wait_for_awaiting(&name, 2).await;
    let guard = lock("c").lock().await.unwrap();
    assert_eq!(guard.signal_all(&session.condition("c")).await.unwrap(), 2);
    guard.release().await.unwrap();
    for waiting in waiting {
        drop(in_time("it is granted", waiting).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_wait_with_a_limit_tells_why_it_returned() {
    let session = session("one").await;
    let name = unique_name("jobs");
    let condition = session.condition("c");
    let guard = session.mutex(name.as_str()).lock().await.unwrap();
    let (guard, woken) = guard.wait_timeout(&condition, SHORT).await.unwrap();
    assert_eq!(woken, Woken::Elapsed);
    let waiting = tokio::spawn({
        let condition = condition.clone();
        async move { guard.wait_timeout(&condition, Duration::from_secs(60)).await }
    });
    wait_for_awaiting(&name, 1).await;
    let other = session.mutex(name.as_str()).owned_by("other").lock().await.unwrap();
    other.signal(&condition).await.unwrap();
    other.release().await.unwrap();
    let (guard, woken) = in_time("it is granted", waiting).await.unwrap().unwrap();
    assert_eq!(woken, Woken::Signalled);
    drop(guard);
}

#[tokio::test]
async fn a_predicate_is_asked_under_the_lock_until_it_is_false() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("jobs");
    let jobs = Arc::new(AtomicU64::new(0));
    let waiting = tokio::spawn({
        let (lock, condition, jobs) = (one.mutex(name.as_str()), one.condition("c"), Arc::clone(&jobs));
        async move {
            let guard = lock.lock().await?;
            guard.wait_while(&condition, || async { jobs.load(Ordering::SeqCst) < 2 }).await
        }
    });
    for _ in 0..2 {
        wait_for_awaiting(&name, 1).await;
        let guard = other.mutex(name.as_str()).lock().await.unwrap();
        jobs.fetch_add(1, Ordering::SeqCst);
        guard.signal(&other.condition("c")).await.unwrap();
        guard.release().await.unwrap();
    }
    in_time("both jobs are there", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// As a thread that is interrupted.
#[tokio::test]
async fn a_wait_that_is_dropped_leaves_and_takes_no_signal_along() {
    let session = session("one").await;
    let name = unique_name("jobs");
    let lock = |owner: &str| session.mutex(name.as_str()).owned_by(owner);
    let first = lock_and_wait(&session, lock("a"));
    wait_for_awaiting(&name, 1).await;
    let second = lock_and_wait(&session, lock("b"));
    wait_for_awaiting(&name, 2).await;
    let guard = lock("c").lock().await.unwrap();
    assert_eq!(guard.signal(&session.condition("c")).await.unwrap(), 1);
    first.abort();
    eventually("the signal is handed on", async || awaiting(&name).await == 0).await;
    guard.release().await.unwrap();
    drop(in_time("the second has the signal", second).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_nested_guard_and_one_of_a_reader_are_not_given_up() {
    let session = session("one").await;
    let name = unique_name("jobs");
    let (lock, condition) = (session.mutex(name.as_str()), session.condition("c"));
    let guard = lock.lock().await.unwrap();
    let nested = lock.lock_again().await.unwrap();
    assert_eq!(nested.wait(&condition).await.unwrap_err(), Error::Nested(name.as_str().into()));
    let (guard, _) = guard.wait_timeout(&condition, SHORT).await.expect("it is the only one now");
    guard.release().await.unwrap();
    let reader = session.rw_lock(name.as_str()).read().await.unwrap();
    assert!(matches!(reader.signal(&condition).await, Err(Error::Invalid(_))));
    assert!(matches!(reader.wait(&condition).await, Err(Error::Invalid(_))));
}
