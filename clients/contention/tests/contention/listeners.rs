//! Those who are told: in order, one at a time, and without harm to the contention.

use std::sync::{Arc, mpsc};

use holdfast_contention::{MutexOwner, MutexRetrievalServiceFactory, MutexRetriever, MutexState, Status};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::kit::{Backend, Log, OwnerChange, Recorder, mutex, on_every_backend};
use crate::support::{eventually, in_time};

on_every_backend!(a_listener_that_panics_is_told_again, whoever_looks_sees_owners_come_and_go_in_order,);
// Where time passes only when nothing is to do, a call that blocks is something to do.
on_every_backend!(@real a_listener_that_blocks_keeps_nobody_from_renewing);

async fn a_listener_that_panics_is_told_again(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let service = backend.contend(Recorder::new(&mutex, "a", &log).with_callback(|_, _| panic!("as it is meant to")));
    for life in 1..=2 {
        service.start().unwrap();
        log.eventually_notified(service.contender_id(), OwnerChange::Acquired, life).await;
        assert!(service.is_owner());
        service.stop().await.unwrap();
        log.eventually_notified(service.contender_id(), OwnerChange::Released, life).await;
    }
    log.assert_one_at_a_time();
}

async fn a_listener_that_blocks_keeps_nobody_from_renewing(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let (unblock, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let service = backend.contend(Recorder::new(&mutex, "a", &log).with_callback(move |what, _| {
        if what == OwnerChange::Acquired {
            // An error says that the test is over.
            let _ = blocked.lock().recv();
        }
    }));
    service.start().unwrap();
    log.eventually_notified(service.contender_id(), OwnerChange::Acquired, 1).await;
    let first = service.after_owner();
    let mut states = service.states();
    let renewed = states.wait_for(|state| state.after().ttl_at() > first.ttl_at() + backend.ttl);
    in_time("renewals", renewed).await.unwrap();
    assert!(service.is_owner());
    let stopping = service.stop();
    assert_eq!(log.changes_of(service.contender_id()), [OwnerChange::Acquired], "one call at a time");
    assert!(backend.owner(&mutex).await.is_some(), "not let go before the listener knows");
    unblock.send(()).unwrap();
    stopping.await.unwrap();
    assert_eq!(log.changes_of(service.contender_id()), [OwnerChange::Acquired, OwnerChange::Released]);
    assert_eq!(backend.owner(&mutex).await, None);
}

struct RecordingRetriever {
    mutex: String,
    states: watch::Sender<Vec<MutexState>>,
}

impl MutexRetriever for RecordingRetriever {
    fn mutex(&self) -> &str {
        &self.mutex
    }

    fn notify_owner(&self, state: &MutexState) {
        self.states.send_modify(|states| states.push(state.clone()));
    }
}

async fn whoever_looks_sees_owners_come_and_go_in_order(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let looker = Arc::new(RecordingRetriever { mutex: mutex.clone(), states: watch::Sender::new(Vec::new()) });
    let looking = backend.factory().create_retrieval_service(Arc::clone(&looker) as Arc<dyn MutexRetriever>).unwrap();
    looking.start().unwrap();
    let first = backend.contend(Recorder::new(&mutex, "first", &log));
    first.start().unwrap();
    eventually("the first is seen", async || looking.after_owner().is_owner(first.contender_id())).await;
    assert!(looking.has_owner());
    let second = backend.contend(Recorder::new(&mutex, "second", &log));
    second.start().unwrap();
    eventually("the first is known to the second", async || second.after_owner().is_owner(first.contender_id())).await;
    first.stop().await.unwrap();
    eventually("the second is seen", async || looking.after_owner().is_owner(second.contender_id())).await;
    eventually("the second knows it", async || second.is_owner()).await;
    assert_eq!(looking.after_owner().fencing_token(), second.after_owner().fencing_token());
    // What was not told yet when it stops is told no more.
    let second_id = second.contender_id();
    let mut told = looker.states.subscribe();
    let told = told.wait_for(|states| states.last().is_some_and(|state| state.after().is_owner(second_id)));
    in_time("the second", told).await.unwrap();
    looking.stop().await.unwrap();
    assert_eq!((looking.status(), looking.after_owner()), (Status::Initial, MutexOwner::NONE));
    second.stop().await.unwrap();

    let states = looker.states.borrow().clone();
    assert!(states.iter().all(MutexState::is_changed), "renewals are no news: {states:#?}");
    for (before, after) in states.iter().zip(&states[1..]) {
        assert_eq!(before.after().owner_id(), after.before().owner_id(), "{states:#?}");
    }
    let seen: Vec<&str> = states.iter().map(|state| state.after().owner_id()).filter(|id| !id.is_empty()).collect();
    assert_eq!(seen, [first.contender_id(), second.contender_id()]);
    assert!(states.last().unwrap().after().is_none(), "told of nobody when it stops");
}

#[tokio::test(start_paused = true)]
async fn a_looker_that_saw_nobody_is_told_of_nobody_when_it_stops() {
    let backend = Backend::in_process(holdfast_contention::Pacing::Push);
    let looker = Arc::new(RecordingRetriever { mutex: mutex(), states: watch::Sender::new(Vec::new()) });
    let looking = backend.factory().create_retrieval_service(Arc::clone(&looker) as Arc<dyn MutexRetriever>).unwrap();
    looking.start().unwrap();
    looking.stop().await.unwrap();
    assert_eq!(*looker.states.borrow(), [MutexState::NONE]);
}
