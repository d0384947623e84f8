//! A mutex for the length of a piece of work.

use std::time::Duration;

use holdfast_contention::{Contender, ContentionError, MutexContender, Pacing, SimbaLocker};

use crate::kit::{Backend, Failing, Failure, mutex, on_every_backend};
use crate::support::{dropped_after, eventually, in_time};
use tokio::time::Instant;

on_every_backend!(@without_polled_service
    it_is_acquired_and_closed_again_and_again,
    it_gives_up_after_its_time_and_can_be_used_again,
    it_is_acquired_once_at_a_time,
    an_acquire_that_is_given_up_leaves_nobody_waiting,
    an_acquire_that_is_dropped_at_any_point_leaves_nothing,
    it_says_when_the_mutex_is_lost,
);

fn locker(backend: &Backend, mutex: &str, name: &str) -> SimbaLocker {
    let contender = Contender::with_id(mutex, format!("{mutex}:{name}")).unwrap();
    SimbaLocker::with_contender(&backend.factory(), contender).unwrap()
}

const SHORT: Duration = Duration::from_millis(50);

async fn it_is_acquired_and_closed_again_and_again(backend: Backend) {
    let mutex = mutex();
    let locker = locker(&backend, &mutex, "a");
    let mut token = None;
    for _ in 0..3 {
        assert!(!locker.is_owner() && locker.fencing_token().is_none());
        let owner = in_time("the mutex", locker.acquire()).await.unwrap();
        assert!(locker.is_owner() && locker.fencing_token() == owner.fencing_token());
        assert!(owner.fencing_token() > token);
        token = owner.fencing_token();
        locker.close().await.unwrap();
        locker.close().await.unwrap();
    }
    assert_eq!(backend.owner(&mutex).await, None);
}

async fn it_gives_up_after_its_time_and_can_be_used_again(backend: Backend) {
    let mutex = mutex();
    let (first, second) = (locker(&backend, &mutex, "first"), locker(&backend, &mutex, "second"));
    in_time("the mutex", first.acquire()).await.unwrap();
    for _ in 0..2 {
        match in_time("an end of the wait", second.acquire_within(SHORT)).await {
            Err(ContentionError::TimedOut { within, .. }) => assert_eq!(within, SHORT),
            other => panic!("{other:?}"),
        }
        assert!(!second.is_owner() && first.is_owner());
    }
    first.close().await.unwrap();
    in_time("the mutex", second.acquire_within(Duration::from_secs(20))).await.unwrap();
    assert!(second.is_owner());
    second.close().await.unwrap();
}

async fn it_is_acquired_once_at_a_time(backend: Backend) {
    let mutex = mutex();
    let locker = locker(&backend, &mutex, "a");
    in_time("the mutex", locker.acquire()).await.unwrap();
    let twice = locker.acquire().await;
    assert_eq!(twice, Err(ContentionError::AlreadyAcquired { mutex }));
    assert!(locker.is_owner(), "what was acquired stays");
    locker.close().await.unwrap();
}

async fn an_acquire_that_is_given_up_leaves_nobody_waiting(backend: Backend) {
    let mutex = mutex();
    let (first, second) = (locker(&backend, &mutex, "first"), locker(&backend, &mutex, "second"));
    in_time("the mutex", first.acquire()).await.unwrap();
    tokio::select! {
        acquired = second.acquire() => panic!("{acquired:?}"),
        () = eventually("it waits", async || format!("{second:?}").contains("Running")) => {}
    }
    first.close().await.unwrap();
    eventually("the second has gone", async || format!("{second:?}").contains("Initial")).await;
    // The service hears of it when the connection does, and gives back what it granted in between.
    eventually("nobody is its owner", async || backend.owner(&mutex).await.is_none()).await;
    in_time("the mutex", second.acquire()).await.unwrap();
    second.close().await.unwrap();
}

/// Of a free mutex and of one that somebody else owns.
async fn an_acquire_that_is_dropped_at_any_point_leaves_nothing(backend: Backend) {
    for is_taken in [false, true] {
        let mutex = mutex();
        let (first, second) = (locker(&backend, &mutex, "first"), locker(&backend, &mutex, "second"));
        if is_taken {
            in_time("the mutex", first.acquire()).await.unwrap();
        }
        for steps in [0, 1, 2, 3, 5, 8, 20, 50, 200, 1_000, 5_000] {
            drop(dropped_after(second.acquire(), steps).await);
            second.close().await.unwrap();
            assert!(!second.is_owner());
            backend.eventually_owned(&mutex, is_taken).await;
        }
        first.close().await.unwrap();
        // Nobody was left in the queue.
        backend.eventually_owned(&mutex, false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_with_a_limit_ends_within_a_tenth_of_a_second_of_it_also_when_nobody_answers() {
    let backend = Backend::in_process(Pacing::Push);
    let failing = Failing::new(&backend.store);
    let (near, far) = (locker(&backend, "mutex", "near"), locker(&backend.with_store(failing.clone()), "mutex", "far"));
    near.acquire().await.unwrap();
    for failure in [Failure::None, Failure::Immediate, Failure::Silent] {
        failing.set(failure);
        let began = Instant::now();
        let limit = Duration::from_millis(200);
        let refused = far.acquire_within(limit).await;
        let took = began.elapsed();
        assert!(matches!(refused, Err(ContentionError::TimedOut { .. })), "{refused:?}");
        assert!(took >= limit && took < limit + Duration::from_millis(100), "{failure:?}: {took:?}");
    }
    failing.set(Failure::None);
    near.close().await.unwrap();
    // What was given up last still waits for an answer; the next acquire comes after it.
    in_time("the mutex", far.acquire()).await.unwrap();
    far.close().await.unwrap();
}

async fn it_says_when_the_mutex_is_lost(backend: Backend) {
    let mutex = mutex();
    let contender = Contender::with_id(&*mutex, format!("{mutex}:a")).unwrap();
    let contender_id = contender.contender_id().to_owned();
    let locker = SimbaLocker::with_contender(&backend.factory(), contender).unwrap();
    in_time("the mutex", locker.acquire()).await.unwrap();
    let ended = async {
        backend.store.release(&mutex, &contender_id).await.unwrap();
    };
    let ((), ()) = tokio::join!(in_time("the loss", locker.lost()), ended);
    locker.close().await.unwrap();
    in_time("it is not owned anyhow", locker.lost()).await;
}
