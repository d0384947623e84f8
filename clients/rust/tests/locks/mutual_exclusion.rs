//! One at a time, counted, and in good time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_client::{Error, Reason};
use tokio::task::yield_now;

use crate::support::{client, eventually_nothing_left, eventually_waiting, in_time, session, unique_name};

const TASKS: u64 = 10;
const INCREMENTS: u64 = 1_000;
/// How often a limit is tried on a busy machine.
const MAX_TRIES: usize = 20;

/// Ten tasks, half of them in a process of their own as far as the service can tell, add to what only one may touch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_tasks_add_a_thousand_each_and_nothing_is_lost() {
    let sessions = [session("one").await, session("two").await];
    let name = unique_name("counter");
    let (counter, last_token) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks = (0..TASKS).map(|at| {
        let mutex = sessions[at as usize % 2].mutex(name.as_str());
        let (counter, last_token) = (Arc::clone(&counter), Arc::clone(&last_token));
        tokio::spawn(async move {
            for _ in 0..INCREMENTS {
                let guard = mutex.lock().await.unwrap();
                let before = counter.load(Ordering::Relaxed);
                let token = guard.fencing_token();
                assert!(last_token.swap(token, Ordering::Relaxed) < token, "tokens rise");
                // Whoever else was let in would run now.
                yield_now().await;
                counter.store(before + 1, Ordering::Relaxed);
                drop(guard);
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), TASKS * INCREMENTS);
    eventually_nothing_left(&sessions[0], &name).await;
}

#[tokio::test]
async fn an_owner_takes_its_lock_thirty_times_and_the_last_release_frees_it() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("deep");
    let mut guards = Vec::new();
    for _ in 0..30 {
        guards.push(one.mutex(name.as_str()).lock_again().await.unwrap());
    }
    let tokens: Vec<u64> = guards.iter().map(|guard| guard.fencing_token()).collect();
    assert!(tokens.iter().all(|token| *token == tokens[0]), "it is one hold");
    let waiting = tokio::spawn({
        let mutex = other.mutex(name.as_str());
        async move { mutex.lock().await.unwrap().fencing_token() }
    });
    eventually_waiting(&client(), &name, 1).await;
    for guard in guards.drain(1..) {
        guard.release().await.unwrap();
    }
    let refused = other.mutex(name.as_str()).try_lock().await.unwrap_err();
    assert_eq!(refused.refusal().unwrap().blockers[0].holder.process_id, "one");
    guards.remove(0).release().await.unwrap();
    assert!(in_time("the other one's turn", waiting).await.unwrap() > tokens[0]);
}

#[tokio::test]
async fn tasks_of_a_session_exclude_each_other_and_one_owner_by_name_does_not() {
    let session = session("one").await;
    let mutex = session.mutex(unique_name("tasks"));
    let guard = mutex.lock().await.unwrap();
    let elsewhere = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.try_lock().await.map(|guard| guard.fencing_token()) }
    });
    let error = elsewhere.await.unwrap().unwrap_err();
    assert_eq!(error.refusal().unwrap().reason, Reason::Held);
    guard.release().await.unwrap();
    let named = mutex.clone().owned_by("worker");
    let guard = named.lock().await.unwrap();
    let same = tokio::spawn(async move { named.lock_again().await.map(|guard| guard.fencing_token()) });
    assert_eq!(same.await.unwrap().unwrap(), guard.fencing_token());
    assert!(mutex.owned_by("another").try_lock().await.is_err());
}

/// Threads without tasks of their own are owners of their own, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn threads_that_block_on_locks_exclude_each_other() {
    let session = session("one").await;
    let mutex = session.mutex(unique_name("threads"));
    let runtime = tokio::runtime::Handle::current();
    let try_in_a_thread = || {
        let (mutex, runtime) = (mutex.clone(), runtime.clone());
        std::thread::spawn(move || runtime.block_on(mutex.try_lock()))
    };
    let guard = try_in_a_thread().join().unwrap().unwrap();
    let error = try_in_a_thread().join().unwrap().unwrap_err();
    assert_eq!(error.refusal().unwrap().reason, Reason::Held);
    assert!(mutex.try_lock().await.is_err(), "nor is it this one's");
    guard.release().await.unwrap();
    let guard = mutex.try_lock().await.unwrap();
    assert_eq!(mutex.lock_again().await.unwrap().fencing_token(), guard.fencing_token());
}

#[tokio::test]
async fn a_wait_with_a_limit_ends_within_a_tenth_of_a_second_of_it() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("limit");
    let guard = one.mutex(name.as_str()).lock().await.unwrap();
    for limit in [50, 300, 700].map(Duration::from_millis) {
        // None ends early. A process that is not run for a while makes any one late, but not so many in a row.
        let mut times: Vec<Duration> = Vec::new();
        while times.last().is_none_or(|took| *took >= limit + Duration::from_millis(100)) {
            assert!(times.len() < MAX_TRIES, "{times:?} for {limit:?}");
            let began = Instant::now();
            let error = other.mutex(name.as_str()).lock_timeout(limit).await.unwrap_err();
            times.push(began.elapsed());
            assert_eq!(error, Error::TimedOut(limit));
            assert!(times.last() >= Some(&limit), "{times:?} for {limit:?}");
        }
    }
    eventually_waiting(&client(), &name, 0).await;
    guard.release().await.unwrap();
    let limit = Duration::from_secs(5);
    other.mutex(name.as_str()).lock_timeout(limit).await.unwrap().release().await.unwrap();
}
