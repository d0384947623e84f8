//! Several contenders for one mutex.

use std::sync::Arc;
use std::time::Duration;

use holdfast_contention::{MutexContendService, Pacing};

use crate::kit::{Backend, Log, OwnerChange, Recorder, mutex, on_every_backend};
use crate::support::eventually;

/// How long ten contenders contend.
const CONTEND_FOR: Duration = Duration::from_secs(30);

on_every_backend!(@in_process ten_contenders_are_never_two_owners_and_one_in_the_end);
on_every_backend!(each_stop_hands_the_mutex_to_another_and_to_nobody_else, owners_that_come_and_go_are_never_two,);

fn contenders(backend: &Backend, mutex: &str, log: &Log, count: usize) -> Vec<Arc<dyn MutexContendService>> {
    let contender = |number: usize| backend.contend(Recorder::new(mutex, &number.to_string(), log));
    (0..count).map(contender).collect()
}

async fn wait_for(duration: Duration) {
    tokio::time::sleep(duration).await;
}

async fn ten_contenders_are_never_two_owners_and_one_in_the_end(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let services = contenders(&backend, &mutex, &log, 10);
    for service in &services {
        service.start().unwrap();
    }
    wait_for(CONTEND_FOR).await;
    log.assert_one_at_a_time();
    let owner = log.owner().expect("somebody is the owner");
    assert_eq!(services.iter().filter(|service| service.is_owner()).count(), 1);
    eventually("all know the owner", async || {
        services.iter().all(|service| service.after_owner().is_owner(&owner) && service.has_owner())
    })
    .await;
    for service in services.iter().filter(|service| !service.is_owner()) {
        service.stop().await.unwrap();
    }
    assert_eq!(log.owner(), Some(owner), "whoever gives up waiting disturbs nobody");
    services.iter().find(|service| service.is_owner()).unwrap().stop().await.unwrap();
    backend.eventually_owned(&mutex, false).await;
    log.assert_one_at_a_time();
}

/// At the same time, since this takes so long: twenty contenders for two mutexes.
#[tokio::test]
async fn ten_contenders_of_the_service_are_never_two_owners_and_one_in_the_end() {
    let contend = |pacing| ten_contenders_are_never_two_owners_and_one_in_the_end(Backend::service(pacing));
    tokio::join!(contend(Pacing::Push), contend(Pacing::Poll));
}

async fn each_stop_hands_the_mutex_to_another_and_to_nobody_else(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let mut services = contenders(&backend, &mutex, &log, 4);
    for service in &services {
        service.start().unwrap();
    }
    for handed_over in 0..services.len() {
        log.eventually("another owner", |entries| entries.len() == 2 * handed_over + 1).await;
        let owner = log.owner().unwrap();
        let place = services.iter().position(|service| service.contender_id() == owner).unwrap();
        services.remove(place).stop().await.unwrap();
    }
    log.assert_one_at_a_time();
    assert_eq!(log.entries().len(), 8, "one acquisition and one release each");
    assert_eq!(backend.owner(&mutex).await, None);
}

/// The same services start and stop all the time, also in the middle of what they are about.
async fn owners_that_come_and_go_are_never_two(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let services = contenders(&backend, &mutex, &log, 3);
    let rounds = match backend.pacing {
        Pacing::Push => 30,
        // Nobody is told, so nothing happens until somebody asks.
        Pacing::Poll => 10,
    };
    let come_and_go = services.iter().zip([7, 23, 61]).map(|(service, pause)| {
        let service = Arc::clone(service);
        async move {
            for round in 0..rounds {
                service.start().unwrap();
                wait_for(Duration::from_millis(pause + round)).await;
                service.stop().await.unwrap();
            }
        }
    });
    futures::future::join_all(come_and_go).await;
    log.assert_one_at_a_time();
    let acquired = log.entries().iter().filter(|entry| entry.what == OwnerChange::Acquired).count();
    assert!(acquired > 0, "nobody ever was the owner");
    assert_eq!(log.entries().len(), 2 * acquired, "every acquisition was followed by a release");
    backend.eventually_owned(&mutex, false).await;
}
