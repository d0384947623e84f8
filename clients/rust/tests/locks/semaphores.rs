//! Permits of semaphores.

use std::time::Duration;

use holdfast_client::protocol::{DeleteSemaphoreRequest, GetSemaphoreRequest, Semaphore};
use holdfast_client::{Error, LossReason, Reason};

use crate::support::{NAMESPACE, client, eventually, in_time, session, unique_name};

/// The semaphore as the service shows it; one that is gone has nothing in use.
async fn shown(name: &str) -> Semaphore {
    let get = GetSemaphoreRequest { namespace: NAMESPACE.into(), name: Some(name.into()), ..Default::default() };
    match client().semaphores().get_semaphore(get).await {
        Ok(answer) => answer.into_inner().semaphore.unwrap(),
        Err(status) => match Error::from(status).code() {
            Some("PRIMITIVE_NOT_FOUND") => Semaphore::default(),
            other => panic!("{other:?}"),
        },
    }
}

#[tokio::test]
async fn permits_are_shared_by_sessions_and_come_back_when_they_are_dropped() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("licences");
    let first = one.semaphore(name.as_str()).permits(3).acquire(2).await.unwrap();
    let second = other.semaphore(name.as_str()).permits(3).acquire(1).await.unwrap();
    assert!(second.fencing_token() > first.fencing_token());
    let refused = other.semaphore(name.as_str()).try_acquire(1).await.unwrap_err();
    let refusal = refused.refusal().unwrap();
    assert_eq!((refusal.reason, refusal.holders[0].weight), (Reason::Exhausted, 2));
    assert!(refused.to_string().contains("the permits were not granted"), "{refused}");
    let waiting = tokio::spawn({
        let semaphore = other.semaphore(name.as_str());
        async move { semaphore.acquire(2).await }
    });
    eventually("one waits", async || shown(&name).await.waiting == 1).await;
    drop(first);
    let third = in_time("its turn", waiting).await.unwrap().unwrap();
    assert_eq!((third.weight(), shown(&name).await.in_use), (2, 3));
    third.release().await.unwrap();
    drop(second);
    eventually("nothing is left", async || shown(&name).await.in_use == 0).await;
}

#[tokio::test]
async fn a_wait_that_is_dropped_leaves_the_queue_and_one_that_can_never_end_is_refused() {
    let session = session("one").await;
    let name = unique_name("slots");
    let semaphore = session.semaphore(name.as_str()).permits(2);
    let held = semaphore.acquire(2).await.unwrap();
    let limit = Duration::from_millis(50);
    assert_eq!(semaphore.acquire_timeout(1, limit).await.unwrap_err(), Error::TimedOut(limit));
    eventually("nobody waits", async || shown(&name).await.waiting == 0).await;
    let refused = semaphore.acquire(3).await.unwrap_err();
    assert_eq!(refused.refusal().unwrap().reason, Reason::TooLarge);
    let unknown = session.semaphore(unique_name("unknown")).acquire(1).await.unwrap_err();
    assert_eq!(unknown.code(), Some("PRIMITIVE_NOT_FOUND"));
    held.release().await.unwrap();
}

#[tokio::test]
async fn whoever_holds_permits_of_a_deleted_semaphore_is_told() {
    let session = session("one").await;
    let name = unique_name("deleted");
    let permit = session.semaphore(name.as_str()).permits(1).acquire(1).await.unwrap();
    let work = permit.protect(std::future::pending::<()>());
    let delete = async {
        let delete =
            DeleteSemaphoreRequest { namespace: NAMESPACE.into(), name: Some(name.clone()), ..Default::default() };
        client().semaphores().delete_semaphore(delete).await.unwrap();
    };
    let (stopped, ()) = in_time("the loss", async { tokio::join!(work, delete) }).await;
    assert_eq!(stopped, Err(Error::Lost(LossReason::Deleted)));
    assert_eq!(permit.release().await, Err(Error::Lost(LossReason::Deleted)));
    eventually("the request is over", async || session.request_count() == 0).await;
}

#[tokio::test]
async fn permits_of_a_closed_session_are_free() {
    let one = session("one").await;
    let name = unique_name("closed");
    let permit = one.semaphore(name.as_str()).permits(1).acquire(1).await.unwrap();
    one.close().await;
    assert!(permit.is_lost());
    let other = session("other").await;
    in_time("the permit", other.semaphore(name.as_str()).permits(1).acquire(1)).await.unwrap().release().await.unwrap();
}
