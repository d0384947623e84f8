//! Gateways that go, fall silent, and come back.

use std::time::{Duration, Instant};

use holdfast_client::{Client, EndReason, Error, LossReason, Session};

use crate::recorder::Recorder;
use crate::support::{
    NAMESPACE, Proxy, SHORT_TTL, TTL, Way, client, delete, eventually, eventually_waiting, fresh, key, server, session,
    shown, soon,
};

async fn through(proxies: &[&Proxy], ttl: Duration, recorder: &Recorder) -> Session {
    let builder = proxies.iter().fold(Client::builder(), |builder, proxy| builder.gateway(proxy.url()));
    let client = builder.api_key(key()).build().unwrap();
    let session = client.session(NAMESPACE).process_id("cut").ttl(ttl).handler(recorder.clone());
    session.open().await.unwrap()
}

#[tokio::test]
async fn holds_and_waits_survive_a_cut_and_a_release_sent_into_it_is_done() {
    let (proxy, recorder) = (Proxy::start(server().address()).await, Recorder::default());
    let (cut, other) = (through(&[&proxy], TTL, &recorder).await, session("other").await);
    let (kept, freed, awaited, asked) = (fresh("kept"), fresh("freed"), fresh("awaited"), fresh("asked"));
    let keeping = cut.mutex(kept.as_str()).lock().await.unwrap();
    let freeing = cut.mutex(freed.as_str()).lock().await.unwrap();
    let theirs = other.mutex(awaited.as_str()).lock().await.unwrap();
    let lock = |name: &str| {
        let mutex = cut.mutex(name);
        tokio::spawn(async move { mutex.lock().await.unwrap() })
    };
    let waiting = lock(&awaited);
    eventually_waiting(&client(), &awaited, 1).await;
    proxy.set(Way::Cut);
    recorder.eventually("jeopardy").await;
    // All of this happens while nobody can be told.
    let releasing = tokio::spawn(freeing.release());
    let asking = lock(&asked);
    theirs.release().await.unwrap();
    eventually("it is granted", async || shown(&client(), &awaited).await.holders_total == 1).await;
    assert!(!waiting.is_finished() && !asking.is_finished() && !releasing.is_finished());
    assert!(!keeping.is_lost());
    proxy.set(Way::Open);
    soon("the grant", waiting).await.unwrap().release().await.unwrap();
    soon("the other grant", asking).await.unwrap().release().await.unwrap();
    soon("the release", releasing).await.unwrap().unwrap();
    recorder.eventually("safe").await;
    assert_eq!(recorder.all(), ["jeopardy", "safe"]);
    assert_eq!(shown(&client(), &freed).await.holders_total, 0);
    let holder = shown(&client(), &kept).await.write_lock_holder.unwrap();
    assert_eq!(holder.fencing_token, keeping.fencing_token());
    keeping.release().await.unwrap();
}

/// While one is cut off somebody forces its lock open and takes it. Both believe to hold it until the first is heard
/// again.
#[tokio::test]
async fn of_two_who_believe_to_hold_a_lock_one_is_told_duplicate() {
    let (proxy, recorder) = (Proxy::start(server().address()).await, Recorder::default());
    let (cut, other) = (through(&[&proxy], TTL, &recorder).await, session("other").await);
    let name = fresh("twice");
    let first = cut.mutex(name.as_str()).lock().await.unwrap();
    proxy.set(Way::Cut);
    recorder.eventually("jeopardy").await;
    delete(&client(), &name).await;
    let second = other.mutex(name.as_str()).lock().await.unwrap();
    assert!(!first.is_lost() && !second.is_lost());
    proxy.set(Way::Open);
    let LossReason::Duplicate(Some(owner)) = soon("the loss", first.lost()).await else { panic!("{:?}", first.loss()) };
    assert_eq!((owner.process_id.as_str(), owner.fencing_token), ("other", second.fencing_token()));
    recorder.eventually(&format!("unlocked {name}: other (main) holds it")).await;
    drop(first);
    assert!(!second.is_lost());
    second.release().await.unwrap();
    assert!(cut.end_reason().is_none());
}

/// Counted from its own clock, and told at the deadline at the latest.
#[tokio::test]
async fn a_session_that_nobody_can_reach_is_lost_at_the_deadline() {
    let (proxy, recorder) = (Proxy::start(server().address()).await, Recorder::default());
    let (cut, other) = (through(&[&proxy], SHORT_TTL, &recorder).await, session("other").await);
    let (mine, theirs) = (fresh("mine"), fresh("theirs"));
    let guard = cut.mutex(mine.as_str()).lock().await.unwrap();
    let _held = other.mutex(theirs.as_str()).lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = cut.mutex(theirs.as_str());
        async move { mutex.lock().await.map(drop) }
    });
    eventually_waiting(&client(), &theirs, 1).await;
    let next = tokio::spawn({
        let mutex = other.mutex(mine.as_str());
        async move { (mutex.lock().await.unwrap(), Instant::now()) }
    });
    eventually_waiting(&client(), &mine, 1).await;
    proxy.set(Way::Cut);
    recorder.eventually("jeopardy").await;
    let deadline = guard.deadline();
    let lost = soon("the loss", guard.lost()).await;
    let late = Instant::now().saturating_duration_since(deadline);
    assert_eq!(lost, LossReason::SessionEnded(EndReason::Unreachable));
    assert!(late < Duration::from_millis(100), "{late:?} late");
    let error = soon("an answer", waiting).await.unwrap().unwrap_err();
    assert_eq!(error, Error::SessionEnded(EndReason::Unreachable));
    let (next, granted_at) = soon("the next one's turn", next).await.unwrap();
    assert!(granted_at > deadline, "nobody else has it before the first knows that it has not");
    assert!(next.fencing_token() > guard.fencing_token());
    // The way back changes nothing any more.
    proxy.set(Way::Open);
    assert!(guard.is_lost());
    recorder.eventually(&format!("ended: {}", EndReason::Unreachable)).await;
}

#[tokio::test]
async fn a_silent_gateway_is_left_for_another_one_in_time() {
    let (first, second) = (Proxy::start(server().address()).await, Proxy::start(server().address()).await);
    let recorder = Recorder::default();
    let ttl = SHORT_TTL * 3;
    let session = through(&[&first, &second], ttl, &recorder).await;
    let guard = session.mutex(fresh("quiet")).lock().await.unwrap();
    // Which of them serves was drawn: silence the one, then the other.
    for (silent, open) in [(&first, &second), (&second, &first)] {
        open.set(Way::Open);
        silent.set(Way::Silent);
        let before = session.deadline();
        eventually("it is kept alive", async || session.deadline() > before + ttl).await;
        assert!(!guard.is_lost());
    }
    let told = recorder.all();
    assert!(told.iter().all(|line| line == "jeopardy" || line == "safe"), "{told:?}");
    assert!(told.iter().any(|line| line == "jeopardy"), "one of them did serve");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_session_that_somebody_else_ends_is_over() {
    let (proxy, recorder) = (Proxy::start(server().address()).await, Recorder::default());
    let session = through(&[&proxy], TTL, &recorder).await;
    let guard = session.mutex(fresh("stolen")).lock().await.unwrap();
    delete_session(&session).await;
    assert_eq!(soon("the end", session.ended()).await, EndReason::Closed);
    assert!(guard.is_lost());
}

async fn delete_session(session: &Session) {
    let (namespace, session_id) = (session.namespace().to_owned(), session.id().to_owned());
    let delete = holdfast_client::protocol::DeleteSessionRequest { namespace, session_id };
    client().sessions().delete_session(delete).await.unwrap();
}
