//! Contenders that ask, since nobody tells them: when they do.

use std::time::Duration;

use holdfast_contention::{Pacing, Timestamp};

use crate::kit::{Backend, Log, OwnerChange, Recorder, Recording, mutex};

/// Many times to live.
const OBSERVATION_TIME: Duration = Duration::from_secs(120);
/// What whole milliseconds and clocks that stop a little early make of a time.
const TOLERANCE_MS: i64 = 5;

async fn wait_for(duration: Duration) {
    tokio::time::sleep(duration).await;
}

fn ms_from_to(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.as_millis()).unwrap() - i64::try_from(from.as_millis()).unwrap()
}

/// Three contenders ask for a while.
async fn recorded(pacing: Pacing) -> (Backend, std::sync::Arc<Recording>, Vec<String>) {
    let backend = Backend::in_process(pacing);
    let (noting, mutex, log) = (Recording::new(&backend.store), mutex(), Log::new());
    let contend = |name| backend.with_store(noting.clone()).contend(Recorder::new(&mutex, name, &log));
    let services = ["owner", "second", "third"].map(contend);
    services[0].start().unwrap();
    log.eventually_notified(services[0].contender_id(), OwnerChange::Acquired, 1).await;
    services[1..].iter().for_each(|service| service.start().unwrap());
    wait_for(OBSERVATION_TIME).await;
    assert!(services[0].is_owner(), "whoever renews in time stays the owner");
    assert_eq!(log.entries().len(), 1);
    let ids = services.iter().map(|service| service.contender_id().to_owned()).collect();
    (backend, noting, ids)
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_polls_renews_at_the_end_of_its_time_to_live_and_others_ask_around_that_of_its_transition() {
    let (backend, noting, ids) = recorded(Pacing::Poll).await;
    let ttl = i64::try_from(backend.ttl.as_millis()).unwrap();
    let renewals = noting.calls_of(&ids[0]);
    assert!(renewals.len() > 70, "{}", renewals.len());
    for pair in renewals.windows(2) {
        let pause = ms_from_to(pair[0].at, pair[1].at);
        assert!((ttl - TOLERANCE_MS..=ttl + TOLERANCE_MS).contains(&pause), "{pause} ms: {pair:#?}");
    }
    let mut late = Vec::new();
    for other in &ids[1..] {
        let asked = noting.calls_of(other);
        late.extend(asked.windows(2).map(|pair| {
            let taken_until = pair[0].taken_until.expect("somebody else owns it");
            ms_from_to(taken_until, pair[1].at)
        }));
    }
    assert!(late.len() > 40, "{}", late.len());
    assert!(late.iter().all(|late| (-200 - TOLERANCE_MS..1_000 + TOLERANCE_MS).contains(late)), "{late:?}");
    let (earliest, latest) = (late.iter().min().unwrap(), late.iter().max().unwrap());
    assert!(*earliest < 200 && *latest > 600, "not all at once: {late:?}");
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_pushed_renews_after_a_third_of_its_time_to_live() {
    let (backend, noting, ids) = recorded(Pacing::Push).await;
    let third = i64::try_from(backend.ttl.as_millis()).unwrap() / 3;
    let renewals = noting.calls_of(&ids[0]);
    assert!(renewals.len() > 200, "{}", renewals.len());
    for pair in renewals.windows(2) {
        let pause = ms_from_to(pair[0].at, pair[1].at);
        assert!((third - TOLERANCE_MS..=third + TOLERANCE_MS).contains(&pause), "{pause} ms: {pair:#?}");
    }
}
