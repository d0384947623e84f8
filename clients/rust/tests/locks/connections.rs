//! Gateways that go, fall silent, and come back.

use std::time::{Duration, Instant};

use holdfast_client::{Client, EndReason, Error, LossReason, Session};

use crate::recorder::Recorder;
use crate::support::{
    NAMESPACE, ProxyMode, SHORT_TTL, TTL, TcpProxy, client, delete, eventually, eventually_waiting, get_lock, in_time,
    key, proxy, session, unique_name, wait_followed,
};

/// How often a loss is tried on a busy machine.
const MAX_TRIES: usize = 5;

async fn session_through(proxies: &[&TcpProxy], ttl: Duration, recorder: &Recorder) -> Session {
    let builder = proxies.iter().fold(Client::builder(), |builder, proxy| builder.gateway(proxy.url()));
    // A leader's gateway would be a way around the proxies.
    let client = builder.api_key(key()).prefer_leader(false).build().unwrap();
    let session = client.session(NAMESPACE).process_id("cut").ttl(ttl).handler(recorder.clone());
    session.open().await.unwrap()
}

#[tokio::test]
async fn holds_and_waits_survive_a_cut_and_a_release_sent_into_it_is_done() {
    let (proxy, recorder) = (proxy(), Recorder::default());
    let (cut, other) = (session_through(&[&proxy], TTL, &recorder).await, session("other").await);
    let (kept, freed, awaited, asked) =
        (unique_name("kept"), unique_name("freed"), unique_name("awaited"), unique_name("asked"));
    let keeping = cut.mutex(kept.as_str()).lock().await.unwrap();
    let freeing = cut.mutex(freed.as_str()).lock().await.unwrap();
    let theirs = other.mutex(awaited.as_str()).lock().await.unwrap();
    let lock = |name: &str| {
        let mutex = cut.mutex(name);
        tokio::spawn(async move { mutex.lock().await.unwrap() })
    };
    let waiting = lock(&awaited);
    eventually_waiting(&client(), &awaited, 1).await;
    proxy.set_mode(ProxyMode::Cut);
    recorder.eventually("jeopardy").await;
    // All of this happens while nobody can be told.
    let releasing = tokio::spawn(freeing.release());
    let asking = lock(&asked);
    theirs.release().await.unwrap();
    eventually("it is granted", async || get_lock(&client(), &awaited).await.holders_total == 1).await;
    assert!(!waiting.is_finished() && !asking.is_finished() && !releasing.is_finished());
    assert!(!keeping.is_lost());
    proxy.set_mode(ProxyMode::Open);
    in_time("the grant", waiting).await.unwrap().release().await.unwrap();
    in_time("the other grant", asking).await.unwrap().release().await.unwrap();
    in_time("the release", releasing).await.unwrap().unwrap();
    recorder.eventually("safe").await;
    assert_eq!(recorder.all(), ["jeopardy", "safe"]);
    assert_eq!(get_lock(&client(), &freed).await.holders_total, 0);
    let holder = get_lock(&client(), &kept).await.write_lock_holder.unwrap();
    assert_eq!(holder.fencing_token, keeping.fencing_token());
    keeping.release().await.unwrap();
}

/// While one is cut off somebody forces its lock open and takes it. Both believe to hold it until the first is heard
/// again.
#[tokio::test]
async fn of_two_who_believe_to_hold_a_lock_one_is_told_duplicate() {
    let (proxy, recorder) = (proxy(), Recorder::default());
    let (cut, other) = (session_through(&[&proxy], TTL, &recorder).await, session("other").await);
    let name = unique_name("twice");
    let first = cut.mutex(name.as_str()).lock().await.unwrap();
    proxy.set_mode(ProxyMode::Cut);
    recorder.eventually("jeopardy").await;
    delete(&client(), &name).await;
    let second = other.mutex(name.as_str()).lock().await.unwrap();
    assert!(!first.is_lost() && !second.is_lost());
    proxy.set_mode(ProxyMode::Open);
    let LossReason::Duplicate(Some(owner)) = in_time("the loss", first.lost()).await else {
        panic!("{:?}", first.loss())
    };
    assert_eq!((owner.process_id.as_str(), owner.fencing_token), ("other", second.fencing_token()));
    recorder.eventually(&format!("unlocked {name}: {} holds it", owner.name())).await;
    drop(first);
    assert!(!second.is_lost());
    second.release().await.unwrap();
    assert!(cut.end_reason().is_none());
}

/// Cuts a session off from everybody. How much later than its deadline it is told that it is lost.
async fn lose_unreachable_session() -> Duration {
    let (proxy, recorder) = (proxy(), Recorder::default());
    let (cut, other) = (session_through(&[&proxy], SHORT_TTL * 3, &recorder).await, session("other").await);
    let (mine, theirs) = (unique_name("mine"), unique_name("theirs"));
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
    proxy.set_mode(ProxyMode::Cut);
    recorder.eventually("jeopardy").await;
    let deadline = guard.deadline();
    let lost = in_time("the loss", guard.lost()).await;
    let late = Instant::now().saturating_duration_since(deadline);
    assert_eq!(lost, LossReason::SessionEnded(EndReason::Unreachable));
    let error = in_time("an answer", waiting).await.unwrap().unwrap_err();
    assert_eq!(error, Error::SessionEnded(EndReason::Unreachable));
    let (next, granted_at) = in_time("the next one's turn", next).await.unwrap();
    assert!(granted_at > deadline, "nobody else has it before the first knows that it has not");
    assert!(next.fencing_token() > guard.fencing_token());
    // The way back changes nothing any more.
    proxy.set_mode(ProxyMode::Open);
    assert!(guard.is_lost());
    recorder.eventually(&format!("ended: {}", EndReason::Unreachable)).await;
    late
}

/// Counted from its own clock, and told at the deadline at the latest.
#[tokio::test]
async fn a_session_that_nobody_can_reach_is_lost_at_the_deadline() {
    // A process that is not run for a while is told late of any one loss, but not of so many in a row.
    let mut late_by: Vec<Duration> = Vec::new();
    while late_by.last().is_none_or(|late| *late >= Duration::from_millis(100)) {
        assert!(late_by.len() < MAX_TRIES, "{late_by:?} late");
        late_by.push(lose_unreachable_session().await);
    }
}

/// The service may have counted from the moment at which a keep-alive was sent.
#[tokio::test]
async fn the_deadline_counts_from_its_sending_however_late_the_answer_comes() {
    let (proxy, recorder) = (proxy(), Recorder::default());
    let ttl = SHORT_TTL * 9;
    let session = session_through(&[&proxy], ttl, &recorder).await;
    let opened = session.deadline();
    eventually("it is kept alive", async || session.deadline() > opened).await;
    let before = session.deadline();
    proxy.set_mode(ProxyMode::Silent);
    // The next one is sent after a third of the time to live, and comes through after half of it.
    wait_for(ttl / 2).await;
    assert_eq!(session.deadline(), before);
    proxy.set_mode(ProxyMode::Open);
    eventually("it is kept alive", async || session.deadline() > before).await;
    let moved_by = session.deadline() - before;
    assert!(moved_by > ttl / 4 && moved_by < ttl / 2 - Duration::from_millis(50), "{moved_by:?}");
    assert!(recorder.all().is_empty(), "nobody was in danger");
}

async fn wait_for(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[tokio::test]
async fn a_silent_gateway_is_left_for_another_one_in_time() {
    let (first, second) = (proxy(), proxy());
    let recorder = Recorder::default();
    let ttl = SHORT_TTL * 6;
    let session = session_through(&[&first, &second], ttl, &recorder).await;
    let guard = session.mutex(unique_name("quiet")).lock().await.unwrap();
    // Which of them serves was drawn: silence the one, then the other.
    for (silent, open) in [(&first, &second), (&second, &first)] {
        open.set_mode(ProxyMode::Open);
        silent.set_mode(ProxyMode::Silent);
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
    let (proxy, recorder) = (proxy(), Recorder::default());
    let session = session_through(&[&proxy], TTL, &recorder).await;
    wait_followed(&session).await;
    let guard = session.mutex(unique_name("stolen")).lock().await.unwrap();
    delete_session(&session).await;
    assert_eq!(in_time("the end", session.ended()).await, EndReason::Closed);
    assert!(guard.is_lost());
}

async fn delete_session(session: &Session) {
    let (namespace, session_id) = (session.namespace().to_owned(), session.id().to_owned());
    let delete = holdfast_client::protocol::DeleteSessionRequest { namespace, session_id };
    client().sessions().delete_session(delete).await.unwrap();
}
