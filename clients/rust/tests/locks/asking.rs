//! Requests to release what is held, and locks that are kept at least so long.

use std::time::Duration;

use holdfast_client::protocol::{AskReleaseRequest, AskSemaphoreReleaseRequest, GetLockRequest, holder};
use holdfast_client::{LossReason, Path};

use crate::recorder::Recorder;
use crate::support::{NAMESPACE, TTL, client, eventually, get_lock, in_time, session, unique_name, wait_followed};

/// Asks for a lock. Returns how many holds are asked for.
async fn request_release(name: &str, reason: &str, forced_within_ms: Option<u64>) -> u64 {
    let (namespace, name, reason) = (NAMESPACE.to_owned(), Some(name.to_owned()), reason.to_owned());
    let (within_ms, force) = (forced_within_ms, forced_within_ms.is_some());
    let ask = AskReleaseRequest { namespace, name, reason, within_ms, force, ..Default::default() };
    client().locks().ask_release(ask).await.unwrap().into_inner().asked
}

#[tokio::test]
async fn a_request_to_release_is_told_to_the_hold_and_to_handlers_and_ends_nothing() {
    let recorder = Recorder::default();
    let session = client().session(NAMESPACE).handler(recorder.clone()).ttl(TTL).open().await.unwrap();
    wait_followed(&session).await;
    let name = unique_name("asked");
    let guard = session.mutex(name.as_str()).lock().await.unwrap();
    assert_eq!(request_release(&name, "a correction", None).await, 1);
    let told = in_time("the request", guard.release_requested()).await;
    assert_eq!((told.path, told.fencing_token), (Path::from(name.as_str()), guard.fencing_token()));
    assert_eq!((told.kind.as_str(), told.reason.as_str(), told.force), ("lock", "a correction", false));
    recorder.eventually(&format!("asked for {name}: a correction")).await;
    guard.check().unwrap();
    let shown = get_lock(&client(), &name).await.write_lock_holder.unwrap().release_requested.unwrap();
    assert_eq!((shown.by, shown.reason), (told.by, "a correction".to_owned()));
    guard.release().await.unwrap();
    assert_eq!(request_release(&name, "nobody has it", None).await, 0);
}

#[tokio::test]
async fn a_request_with_force_ends_the_hold_when_its_time_is_over() {
    let session = session("one").await;
    wait_followed(&session).await;
    let name = unique_name("forced");
    let guard = session.mutex(name.as_str()).lock().await.unwrap();
    assert_eq!(request_release(&name, "now", Some(200)).await, 1);
    let told = in_time("the request", guard.release_requested()).await;
    assert_eq!((told.within, told.force), (Some(Duration::from_millis(200)), true));
    assert_eq!(in_time("the loss", guard.lost()).await, LossReason::Deleted);
}

#[tokio::test]
async fn holders_of_permits_are_asked_too() {
    let session = session("one").await;
    wait_followed(&session).await;
    let name = unique_name("permits");
    let permit = session.semaphore(name.as_str()).permits(2).acquire(1).await.unwrap();
    let ask = AskSemaphoreReleaseRequest { namespace: NAMESPACE.into(), name: Some(name), ..Default::default() };
    assert_eq!(client().semaphores().ask_release(ask).await.unwrap().into_inner().asked, 1);
    let told = in_time("the request", permit.release_requested()).await;
    assert_eq!((told.kind.as_str(), told.fencing_token), ("semaphore", permit.fencing_token()));
}

#[tokio::test]
async fn a_lock_is_kept_from_others_but_not_from_its_owner_for_its_least_time() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("least");
    let job = one.mutex(name.as_str()).owned_by("job").at_least(TTL);
    let guard = job.lock().await.unwrap();
    let first = guard.fencing_token();
    guard.release().await.unwrap();
    eventually("nothing is left at the client", async || one.request_count() == 0).await;
    let get = GetLockRequest { namespace: NAMESPACE.into(), name: Some(name.clone()), ..Default::default() };
    let kept = client().locks().get_lock(get).await.unwrap().into_inner().lock.unwrap().write_lock_holder.unwrap();
    assert_eq!((kept.phase(), kept.fencing_token), (holder::Phase::Transition, first));
    assert!(other.mutex(name.as_str()).try_lock().await.is_err());
    let again = job.lock().await.unwrap();
    assert!(again.fencing_token() > first);
}
