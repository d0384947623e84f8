//! Holds that are taken away, and sessions that end.

use holdfast_client::{Client, EndReason, Error, LossReason, Mode, protocol};

use crate::recorder::Recorder;
use crate::support::{
    NAMESPACE, TTL, client, delete, eventually_nothing_left, get_lock, in_time, session, unique_name, url,
    wait_followed,
};

#[tokio::test]
async fn a_lock_forced_open_is_told_to_its_guard_and_to_handlers() {
    let recorder = Recorder::default();
    let session = client().session(NAMESPACE).handler(recorder.clone()).open().await.unwrap();
    wait_followed(&session).await;
    let before = recorder.eventually_count(2).await.len();
    let name = unique_name("forced");
    let mutex = session.mutex(name.as_str());
    let guard = mutex.lock().await.unwrap();
    assert_eq!(guard.check().unwrap(), guard.fencing_token());
    delete(&client(), &name).await;
    assert_eq!(in_time("the loss", guard.lost()).await, LossReason::Deleted);
    assert!(guard.is_lost());
    assert_eq!(guard.check().unwrap_err(), Error::Lost(LossReason::Deleted));
    let told = recorder.eventually_count(before + 2).await;
    let reason = LossReason::Deleted;
    assert_eq!(told[before..], [format!("revoked {name}: {reason}"), format!("unlocked {name}: {reason}")]);
    // The same owner may have it anew, with a token of its own, while the old guard is still there.
    let again = mutex.lock().await.unwrap();
    assert!(again.fencing_token() > guard.fencing_token());
    assert_eq!(guard.release().await.unwrap_err(), Error::Lost(LossReason::Deleted));
    assert!(!again.is_lost());
    assert_eq!(get_lock(&client(), &name).await.holders_total, 1);
    again.release().await.unwrap();
    eventually_nothing_left(&session, &name).await;
}

#[tokio::test]
async fn a_set_is_lost_with_any_of_its_locks_and_gives_back_the_others() {
    let session = session("one").await;
    wait_followed(&session).await;
    let (x, y) = (unique_name("x"), unique_name("y"));
    let guard = session.lock_set([(x.as_str(), Mode::Write), (y.as_str(), Mode::Write)]).lock().await.unwrap();
    delete(&client(), &y).await;
    assert_eq!(in_time("the loss", guard.lost()).await, LossReason::Deleted);
    assert_eq!(get_lock(&client(), &x).await.holders_total, 1, "whoever works under it may still stop in good order");
    drop(guard);
    eventually_nothing_left(&session, &x).await;
}

#[tokio::test]
async fn protected_work_ends_when_the_lock_is_lost() {
    let session = session("one").await;
    wait_followed(&session).await;
    let name = unique_name("protected");
    let guard = session.mutex(name.as_str()).lock().await.unwrap();
    assert_eq!(guard.protect(async { 7 }).await.unwrap(), 7);
    let (client, working) = (client(), guard.protect(std::future::pending::<()>()));
    let (ended, ()) = tokio::join!(in_time("the end of the work", working), delete(&client, &name));
    assert_eq!(ended.unwrap_err(), Error::Lost(LossReason::Deleted));
    let mut ran = false;
    assert!(guard.protect(async { ran = true }).await.is_err());
    assert!(!ran, "work does not begin under a lost lock");
}

#[tokio::test]
async fn closing_a_session_frees_all_and_answers_those_who_wait() {
    let recorder = Recorder::default();
    let one = client().session(NAMESPACE).handler(recorder.clone()).open().await.unwrap();
    let other = session("other").await;
    let (mine, theirs) = (unique_name("mine"), unique_name("theirs"));
    let guard = one.mutex(mine.as_str()).lock().await.unwrap();
    let held = other.mutex(theirs.as_str()).lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = one.mutex(theirs.as_str());
        async move { mutex.lock().await.map(drop) }
    });
    crate::support::eventually_waiting(&client(), &theirs, 1).await;
    assert_eq!(one.close().await, EndReason::Closed);
    assert_eq!(waiting.await.unwrap().unwrap_err(), Error::SessionEnded(EndReason::Closed));
    assert!(guard.is_lost());
    assert!(matches!(one.mutex("x").lock().await.unwrap_err(), Error::SessionEnded(_)));
    let lock = get_lock(&client(), &mine).await;
    assert_eq!(lock.holders_total, 0);
    assert_eq!(recorder.eventually_count(1).await, [format!("ended: {}", EndReason::Closed)]);
    held.release().await.unwrap();
    eventually_nothing_left(&other, &theirs).await;
}

#[tokio::test]
async fn a_session_lives_as_long_as_its_guards_and_is_closed_with_the_last() {
    let name = unique_name("kept");
    let guard = session("brief").await.mutex(name.as_str()).lock().await.unwrap();
    assert_eq!(get_lock(&client(), &name).await.holders_total, 1);
    assert!(!guard.is_lost());
    let left = guard.deadline() - std::time::Instant::now();
    assert!(left <= TTL && left > TTL / 2, "{left:?}");
    let watched = guard.hold();
    let session_id = guard.session().id().to_owned();
    drop(guard);
    in_time("the end", watched.lost()).await;
    let gone = async || {
        let get = protocol::GetSessionRequest { namespace: NAMESPACE.into(), session_id: session_id.clone() };
        client().sessions().get_session(get).await.is_err()
    };
    crate::support::eventually("the session is gone", gone).await;
}

#[tokio::test]
async fn a_reset_ends_the_session_and_says_so() {
    let namespace = unique_name("reset");
    let client = client();
    let create = protocol::CreateNamespaceRequest { name: namespace.clone(), ..Default::default() };
    client.namespaces().create_namespace(create).await.unwrap();
    let recorder = Recorder::default();
    let session = client.session(namespace.as_str()).handler(recorder.clone()).open().await.unwrap();
    let guard = session.mutex("x").lock().await.unwrap();
    // A gateway that does not follow the session yet finds it gone and cannot say why: it follows once it tells of a loss.
    let opened = session.mutex("y").lock().await.unwrap();
    let (of, name) = (namespace.clone(), Some("y".to_owned()));
    let delete = protocol::DeleteLockRequest { namespace: of, name, ..Default::default() };
    client.locks().delete_lock(delete).await.unwrap();
    in_time("the loss", opened.lost()).await;
    let live_owners = Some(protocol::Owners::default());
    let reset = protocol::ResetNamespaceRequest { namespace: namespace.clone(), live_owners, ..Default::default() };
    client.locks().reset_namespace(reset).await.unwrap();
    assert_eq!(in_time("the end", session.ended()).await, EndReason::Reset);
    in_time("the loss", guard.lost()).await;
    recorder.eventually(&format!("ended: {}", EndReason::Reset)).await;
    let error = session.mutex("x").lock().await.unwrap_err();
    assert_eq!(error, Error::SessionEnded(EndReason::Reset));
    let id = String::new();
    client.namespaces().delete_namespace(protocol::DeleteNamespaceRequest { name: namespace, id }).await.unwrap();
}

#[tokio::test]
async fn a_session_whose_key_is_revoked_is_over() {
    let create = protocol::CreateApiKeyRequest { description: "brief".into(), ..Default::default() };
    let made = client().accounts().create_api_key(create).await.unwrap().into_inner();
    let brief = Client::new(&url(), made.api_key.as_deref().unwrap()).unwrap();
    let session = brief.session(NAMESPACE).open().await.unwrap();
    let guard = session.mutex(unique_name("revoked")).lock().await.unwrap();
    let delete = protocol::DeleteApiKeyRequest { key_id: made.key_id, ..Default::default() };
    client().accounts().delete_api_key(delete).await.unwrap();
    let reason = in_time("the end", session.ended()).await;
    assert!(matches!(&reason, EndReason::Denied(why) if why.contains("UNAUTHENTICATED")), "{reason}");
    assert!(guard.is_lost());
}
