//! Ownerships that are lost, and such as come too late.

use std::sync::Arc;

use holdfast_contention::MutexContendService;

use crate::kit::{Backend, Failing, Failure, Gated, Log, OwnerChange, Recorder, mutex, on_every_backend};
use crate::support::{eventually, in_time};

on_every_backend!(
    an_owner_whose_renewals_fail_ceases_before_anybody_else_begins,
    an_owner_whose_renewals_stay_unanswered_ceases_before_anybody_else_begins,
    one_failed_renewal_is_no_loss,
    an_ownership_that_another_ended_is_lost_and_contended_for_again,
    an_acquisition_that_is_answered_when_it_is_over_is_none,
    an_acquisition_that_completes_after_the_stop_is_released,
);
on_every_backend!(@pushed
    a_grant_that_was_waited_for_and_is_answered_when_it_is_over_is_none,
    a_grant_that_was_waited_for_and_comes_after_the_stop_is_released,
);

async fn an_owner_whose_renewals_fail_ceases_before_anybody_else_begins(backend: Backend) {
    lose_by(backend, Failure::Immediate).await;
}

async fn an_owner_whose_renewals_stay_unanswered_ceases_before_anybody_else_begins(backend: Backend) {
    lose_by(backend, Failure::Silent).await;
}

async fn lose_by(backend: Backend, failure: Failure) {
    let (mutex, log) = (mutex(), Log::new());
    let failing = Failing::new(&backend.store);
    let first = backend.with_store(failing.clone()).contend(Recorder::new(&mutex, "first", &log));
    let second = backend.contend(Recorder::new(&mutex, "second", &log));
    first.start().unwrap();
    log.eventually_notified(first.contender_id(), OwnerChange::Acquired, 1).await;
    second.start().unwrap();
    eventually("the second knows the first", async || second.after_owner().is_owner(first.contender_id())).await;
    failing.set(failure);
    log.eventually_notified(second.contender_id(), OwnerChange::Acquired, 1).await;
    assert!(!first.is_owner() && second.is_owner());
    log.assert_one_at_a_time();
    let entries = log.entries();
    let (released, acquired) = (&entries[1], &entries[2]);
    assert!(acquired.at.since(released.at) >= backend.transition / 4, "there was time to stop: {entries:#?}");
    failing.set(Failure::None);
    second.stop().await.unwrap();
    log.eventually_notified(first.contender_id(), OwnerChange::Acquired, 2).await;
    first.stop().await.unwrap();
    log.assert_one_at_a_time();
}

async fn one_failed_renewal_is_no_loss(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let failing = Failing::new(&backend.store);
    let service = backend.with_store(failing.clone()).contend(Recorder::new(&mutex, "a", &log));
    service.start().unwrap();
    log.eventually_notified(service.contender_id(), OwnerChange::Acquired, 1).await;
    let first = service.after_owner();
    failing.set(Failure::Immediate);
    let mut trouble = service.last_error();
    in_time("a renewal that fails", trouble.wait_for(Option::is_some)).await.unwrap();
    failing.set(Failure::None);
    in_time("one that does not", trouble.wait_for(Option::is_none)).await.unwrap();
    assert_eq!(service.after_owner().fencing_token(), first.fencing_token());
    assert_eq!(log.changes_of(service.contender_id()), [OwnerChange::Acquired]);
    service.stop().await.unwrap();
}

async fn an_ownership_that_another_ended_is_lost_and_contended_for_again(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let service = backend.contend(Recorder::new(&mutex, "a", &log));
    service.start().unwrap();
    log.eventually_notified(service.contender_id(), OwnerChange::Acquired, 1).await;
    assert!(backend.store.release(&mutex, service.contender_id()).await.unwrap());
    log.eventually_notified(service.contender_id(), OwnerChange::Acquired, 2).await;
    log.assert_one_at_a_time();
    service.stop().await.unwrap();
    assert_eq!(log.entries().len(), 4);
}

/// Lets the kept-back answer of `late` come when its ownership is over and another contender's.
async fn assert_over_when_answered(
    backend: &Backend,
    mutex: &str,
    log: &Log,
    (gated, late): (Arc<Gated>, Arc<dyn MutexContendService>),
) {
    let next = backend.contend(Recorder::new(mutex, "next", log));
    next.start().unwrap();
    log.eventually_notified(next.contender_id(), OwnerChange::Acquired, 1).await;
    gated.open();
    eventually("it knows the next one", async || late.after_owner().is_owner(next.contender_id())).await;
    assert!(!late.is_owner() && log.changes_of(late.contender_id()).is_empty(), "nobody was told of it");
    next.stop().await.unwrap();
    log.eventually_notified(late.contender_id(), OwnerChange::Acquired, 1).await;
    late.stop().await.unwrap();
    log.assert_one_at_a_time();
}

async fn an_acquisition_that_is_answered_when_it_is_over_is_none(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let gated = Gated::new(&backend.store);
    let late = backend.with_store(gated.clone()).contend(Recorder::new(&mutex, "late", &log));
    late.start().unwrap();
    eventually("it owns the mutex, unknowingly", async || backend.owner(&mutex).await.is_some()).await;
    assert_over_when_answered(&backend, &mutex, &log, (gated, late)).await;
}

async fn an_acquisition_that_completes_after_the_stop_is_released(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let gated = Gated::new(&backend.store);
    let service = backend.with_store(gated.clone()).contend(Recorder::new(&mutex, "a", &log));
    service.start().unwrap();
    eventually("it owns the mutex, unknowingly", async || backend.owner(&mutex).await.is_some()).await;
    let stopping = service.stop();
    gated.open();
    stopping.await.unwrap();
    assert_eq!(log.entries().len(), 0, "nobody was told of it");
    assert_eq!(backend.owner(&mutex).await, None);
}

/// A contender that owns the mutex and does not know it, since it waited behind another one and the answer is kept back.
async fn unknowing_owner(backend: &Backend, mutex: &str, log: &Log) -> (Arc<Gated>, Arc<dyn MutexContendService>) {
    let holder = backend.contend(Recorder::new(mutex, "holder", log));
    holder.start().unwrap();
    log.eventually_notified(holder.contender_id(), OwnerChange::Acquired, 1).await;
    let gated = Gated::new(&backend.store);
    let late = backend.with_store(gated.clone()).contend(Recorder::new(mutex, "late", log));
    late.start().unwrap();
    // The first answer, which is that of a call that does not wait, lets it wait.
    gated.open();
    eventually("it waits", async || late.has_owner()).await;
    gated.close();
    holder.stop().await.unwrap();
    let is_granted = async || backend.owner(mutex).await.as_deref() == Some(late.contender_id());
    eventually("it owns the mutex, unknowingly", is_granted).await;
    assert!(!late.is_owner());
    (gated, late)
}

async fn a_grant_that_was_waited_for_and_is_answered_when_it_is_over_is_none(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let answered_late = unknowing_owner(&backend, &mutex, &log).await;
    assert_over_when_answered(&backend, &mutex, &log, answered_late).await;
}

async fn a_grant_that_was_waited_for_and_comes_after_the_stop_is_released(backend: Backend) {
    let (mutex, log) = (mutex(), Log::new());
    let (_gated, late) = unknowing_owner(&backend, &mutex, &log).await;
    late.stop().await.unwrap();
    assert!(log.changes_of(late.contender_id()).is_empty(), "nobody was told of it");
    backend.eventually_owned(&mutex, false).await;
}
