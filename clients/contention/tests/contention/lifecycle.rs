//! One service: its start, its end, and that it stays the owner in between.

use holdfast_contention::{ContentionError, MutexContendServiceFactory, MutexContender, MutexOwner, Status};

use crate::kit::{Backend, Log, OwnerChange, Recorder, mutex, on_every_backend};
use crate::support::in_time;

on_every_backend!(
    it_acquires_when_it_starts_and_releases_when_it_stops,
    the_same_service_starts_again,
    it_stays_the_owner_over_several_times_to_live,
    it_starts_only_when_initial_and_stops_only_when_running,
    a_service_that_is_dropped_releases,
);

async fn it_acquires_when_it_starts_and_releases_when_it_stops(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let service = backend.contend(Recorder::new(&mutex, "a", &log));
    assert_eq!(service.status(), Status::Initial);
    service.start().unwrap();
    log.eventually_notified(service.contender_id(), OwnerChange::Acquired, 1).await;
    assert!(service.is_owner() && service.is_in_ttl() && service.has_owner() && service.is_running());
    let owner = service.after_owner();
    assert!(owner.is_owner(service.contender_id()) && owner.is_in_ttl() && owner.is_in_transition());
    let transition = owner.transition_at().since(owner.ttl_at());
    assert!(backend.transition.abs_diff(transition) <= backend.transition / 500, "{transition:?}");
    assert_eq!(backend.owner(&mutex).await.as_deref(), Some(service.contender_id()));

    service.stop().await.unwrap();
    assert_eq!(
        log.changes_of(service.contender_id()),
        [OwnerChange::Acquired, OwnerChange::Released],
        "told before the stop has ended"
    );
    assert!(!service.is_owner() && !service.is_in_ttl() && !service.has_owner() && !service.is_running());
    assert_eq!((service.status(), service.after_owner()), (Status::Initial, MutexOwner::NONE));
    assert_eq!(backend.owner(&mutex).await, None);
}

async fn the_same_service_starts_again(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let service = backend.contend(Recorder::new(&mutex, "a", &log));
    for life in 1..=3 {
        service.start().unwrap();
        log.eventually_notified(service.contender_id(), OwnerChange::Acquired, life).await;
        assert!(service.is_owner());
        service.stop().await.unwrap();
        log.eventually_notified(service.contender_id(), OwnerChange::Released, life).await;
        assert!(!service.is_owner());
    }
    log.assert_one_at_a_time();
}

async fn it_stays_the_owner_over_several_times_to_live(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let service = backend.contend(Recorder::new(&mutex, "a", &log));
    service.start().unwrap();
    log.eventually_notified(service.contender_id(), OwnerChange::Acquired, 1).await;
    let first = service.after_owner();
    let mut states = service.states();
    let renewed = states.wait_for(|state| state.after().ttl_at() > first.ttl_at() + 3 * backend.ttl);
    let last = in_time("renewals", renewed).await.unwrap().after().clone();
    assert_eq!((last.owner_id(), last.fencing_token()), (first.owner_id(), first.fencing_token()));
    assert_eq!(last.acquired_at(), first.acquired_at());
    assert!(service.is_owner());
    assert_eq!(backend.owner(&mutex).await.as_deref(), Some(service.contender_id()));
    assert_eq!(log.changes_of(service.contender_id()), [OwnerChange::Acquired], "a renewal is no event");
    service.stop().await.unwrap();
    assert_eq!(log.changes_of(service.contender_id()), [OwnerChange::Acquired, OwnerChange::Released]);
}

async fn it_starts_only_when_initial_and_stops_only_when_running(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let service = backend.contend(Recorder::new(&mutex, "a", &log));
    let wrong = |error: ContentionError| match error {
        ContentionError::WrongStatus { expected, found, .. } => (expected, found),
        other => panic!("{other}"),
    };
    assert_eq!(wrong(service.stop().await.unwrap_err()), (Status::Running, Status::Initial));
    service.start().unwrap();
    assert_eq!(wrong(service.start().unwrap_err()), (Status::Initial, Status::Running));
    log.eventually_notified(service.contender_id(), OwnerChange::Acquired, 1).await;
    let stopping = service.stop();
    assert_eq!(service.status(), Status::Stopping);
    assert_eq!(wrong(service.start().unwrap_err()), (Status::Initial, Status::Stopping));
    assert_eq!(wrong(service.stop().await.unwrap_err()), (Status::Running, Status::Stopping));
    stopping.await.unwrap();
    assert_eq!(service.status(), Status::Initial);
    assert_eq!(wrong(service.stop().await.unwrap_err()), (Status::Running, Status::Initial));
}

async fn a_service_that_is_dropped_releases(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let contender = Recorder::new(&mutex, "a", &log);
    let contender_id = contender.contender_id().to_owned();
    let service = backend.contend(contender);
    service.start().unwrap();
    log.eventually_notified(&contender_id, OwnerChange::Acquired, 1).await;
    drop(service);
    log.eventually_notified(&contender_id, OwnerChange::Released, 1).await;
    let next = backend.contend(Recorder::new(&mutex, "b", &log));
    next.start().unwrap();
    log.eventually_notified(next.contender_id(), OwnerChange::Acquired, 1).await;
    next.stop().await.unwrap();
}

#[test]
fn it_does_not_start_without_a_runtime() {
    let backend = Backend::in_process(holdfast_contention::Pacing::Push);
    let service = backend.contend(Recorder::new("mutex", "a", &Log::new()));
    assert_eq!(service.start(), Err(ContentionError::NoRuntime));
    assert_eq!(service.status(), Status::Initial);
}

#[tokio::test]
async fn names_that_nobody_could_contend_for_are_refused() {
    let factory = Backend::in_process(holdfast_contention::Pacing::Push).factory();
    let refused = |mutex: &str| {
        let contender = std::sync::Arc::new(Recorder::new(mutex, "a", &Log::new()));
        matches!(factory.create_contend_service(contender), Err(ContentionError::Invalid { .. }))
    };
    assert!(refused(" ") && refused(&"x".repeat(129)) && refused("se_1"));
    assert!(!refused("x"));
}
