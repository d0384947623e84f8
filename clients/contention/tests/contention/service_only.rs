//! What only a running service can do: queues, keys, and a network that fails.

use std::sync::Arc;
use std::time::Duration;

use holdfast_client::Client;
use holdfast_contention::election::LeaderElection;
use holdfast_contention::{
    ContendOptions, Contender, ContentionError, ContentionFactory, Pacing, ServiceStore, SimbaLocker,
};

use crate::kit::{Backend, Log, OwnerChange, Recorder, mutex};
use crate::support::{
    NAMESPACE, ProxyMode, client, delete, eventually, eventually_waiting, get_lock, in_time, key, proxy, url,
};

#[tokio::test]
async fn contenders_wait_in_the_queue_and_leave_it() {
    let (backend, mutex, log) = (Backend::service(Pacing::Push), mutex(), Log::new());
    let services = ["a", "b", "c"].map(|name| backend.contend(Recorder::new(&mutex, name, &log)));
    services[0].start().unwrap();
    log.eventually_notified(services[0].contender_id(), OwnerChange::Acquired, 1).await;
    for (number, service) in services.iter().enumerate().skip(1) {
        service.start().unwrap();
        eventually_waiting(&client(), &mutex, number as u64).await;
    }
    services[1].stop().await.unwrap();
    eventually_waiting(&client(), &mutex, 1).await;
    services[0].stop().await.unwrap();
    log.eventually_notified(services[2].contender_id(), OwnerChange::Acquired, 1).await;
    let lock = get_lock(&client(), &mutex).await;
    assert_eq!(lock.write_lock_holder.unwrap().process_id, services[2].contender_id());
    assert_eq!(lock.waiting, 0);
    services[2].stop().await.unwrap();
    assert_eq!(get_lock(&client(), &mutex).await.holders_total, 0);
    log.assert_one_at_a_time();
}

#[tokio::test]
async fn a_lock_that_is_forced_open_is_lost_and_contended_for_again() {
    let (backend, mutex, log) = (Backend::service(Pacing::Push), mutex(), Log::new());
    let service = backend.contend(Recorder::new(&mutex, "a", &log));
    service.start().unwrap();
    log.eventually_notified(service.contender_id(), OwnerChange::Acquired, 1).await;
    delete(&client(), &mutex).await;
    log.eventually_notified(service.contender_id(), OwnerChange::Acquired, 2).await;
    log.assert_one_at_a_time();
    service.stop().await.unwrap();
}

#[tokio::test]
async fn what_the_service_refuses_for_good_is_an_error_and_not_a_wait() {
    let options = ContendOptions::new(Duration::from_secs(2));
    let stranger = Client::new(&url(), "hf_nobody_nothing").unwrap();
    let nowhere = ContentionFactory::service(&client(), "no-such-namespace", options).unwrap();
    let unknown = ContentionFactory::service(&stranger, NAMESPACE, options).unwrap();
    for (factory, code) in [(nowhere, "NAMESPACE_NOT_FOUND"), (unknown, "UNAUTHENTICATED")] {
        let is_meant = |error: ContentionError| match error {
            ContentionError::Store(error) => assert_eq!(error.code(), Some(code)),
            other => panic!("{other}"),
        };
        let locker = SimbaLocker::new(&factory, mutex()).unwrap();
        is_meant(in_time("a refusal", locker.acquire()).await.unwrap_err());
        is_meant(in_time("another refusal", locker.acquire()).await.unwrap_err());
        let election = LeaderElection::new(&factory, mutex());
        is_meant(in_time("a refusal", election.campaign("a")).await.unwrap_err());
    }
}

async fn lose_by(way: ProxyMode) {
    let (mutex, log) = (mutex(), Log::new());
    let proxy = proxy();
    let behind = Client::new(&proxy.url(), &key()).unwrap();
    let backend = Backend::service(Pacing::Push);
    let cut_off = backend.with_store(Arc::new(ServiceStore::new(&behind, NAMESPACE)));
    let first = cut_off.contend(Recorder::new(&mutex, "first", &log));
    let second = backend.contend(Recorder::new(&mutex, "second", &log));
    first.start().unwrap();
    log.eventually_notified(first.contender_id(), OwnerChange::Acquired, 1).await;
    second.start().unwrap();
    eventually_waiting(&client(), &mutex, 1).await;
    proxy.set_mode(way);
    log.eventually_notified(second.contender_id(), OwnerChange::Acquired, 1).await;
    assert!(!first.is_owner() && second.is_owner());
    second.stop().await.unwrap();
    proxy.set_mode(ProxyMode::Open);
    log.eventually_notified(first.contender_id(), OwnerChange::Acquired, 2).await;
    first.stop().await.unwrap();
    log.assert_one_at_a_time();
}

#[tokio::test]
async fn an_owner_that_is_cut_off_ceases_before_anybody_else_begins() {
    lose_by(ProxyMode::Cut).await;
}

#[tokio::test]
async fn an_owner_that_hears_nothing_ceases_before_anybody_else_begins() {
    lose_by(ProxyMode::Silent).await;
}

#[tokio::test]
async fn a_stop_that_reaches_nobody_ends_all_the_same() {
    let mutex = mutex();
    let proxy = proxy();
    let behind = Client::new(&proxy.url(), &key()).unwrap();
    let options = ContendOptions::new(Duration::from_secs(1));
    let factory = ContentionFactory::service(&behind, NAMESPACE, options).unwrap();
    let contender = Contender::with_id(&*mutex, format!("{mutex}:a")).unwrap();
    let locker = SimbaLocker::with_contender(&factory, contender).unwrap();
    in_time("the mutex", locker.acquire()).await.unwrap();
    proxy.set_mode(ProxyMode::Cut);
    let closed = in_time("the close", locker.close()).await;
    assert!(matches!(closed, Err(ContentionError::Store(_))), "{closed:?}");
    assert!(!locker.is_owner());
    eventually("it ran out", async || get_lock(&client(), &mutex).await.holders_total == 0).await;
    proxy.set_mode(ProxyMode::Open);
    in_time("the mutex", locker.acquire()).await.unwrap();
    locker.close().await.unwrap();
}
