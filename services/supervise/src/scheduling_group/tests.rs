use std::future::{pending, poll_fn};

use tokio::task::yield_now;

use super::*;
use crate::spawn_alongside;

pub(crate) fn group_of(limit: usize) -> SharedGroup {
    Arc::new(SchedulingGroup::new(limit, 1)).into()
}

/// Goes to the end of the queue, so often.
pub(crate) async fn steps(count: usize, done: Arc<AtomicUsize>) {
    for _ in 0..count {
        poll_fn(|context| Poll::Ready(context.waker().clone())).await.wake();
        futures::pending!();
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn many_tasks_of_an_account_are_not_ahead_of_one_of_another() {
    let (busy, light) = (group_of(2), group_of(2));
    let [busy_steps, light_steps] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    for _ in 0..1_000 {
        tokio::spawn(busy.run(steps(10, Arc::clone(&busy_steps))));
    }
    // All have begun.
    yield_now().await;
    let before = busy_steps.load(Ordering::Relaxed);
    tokio::spawn(light.run(steps(10, Arc::clone(&light_steps)))).await.unwrap();
    let meanwhile = busy_steps.load(Ordering::Relaxed) - before;
    assert!(meanwhile <= 100, "{meanwhile}");
    while busy_steps.load(Ordering::Relaxed) < 10_000 {
        yield_now().await;
    }
}

#[tokio::test]
async fn new_tasks_of_an_account_wait_for_their_first_turn() {
    let (busy, light) = (group_of(2), group_of(2));
    let begun = Arc::<AtomicUsize>::default();
    for _ in 0..1_000 {
        let begun = Arc::clone(&begun);
        tokio::spawn(busy.run(async move { begun.fetch_add(1, Ordering::Relaxed) }));
    }
    let meanwhile = tokio::spawn(light.run({
        let begun = Arc::clone(&begun);
        async move { begun.load(Ordering::Relaxed) }
    }));
    let meanwhile = meanwhile.await.unwrap();
    assert!(meanwhile <= 10, "{meanwhile}");
    while begun.load(Ordering::Relaxed) < 1_000 {
        yield_now().await;
    }
}

#[test]
fn a_group_whose_polls_are_long_has_fewer_turns() {
    let group = Arc::new(SchedulingGroup::new(8, 1));
    let limit_after = |poll_time| {
        group.state.lock().granted += 1;
        group.finish(Some(poll_time));
        group.limit(&group.state.lock())
    };
    assert_eq!(limit_after(LONG_POLL), 8);
    assert_eq!(limit_after(Duration::from_secs(1)), 8, "one that waited for a processor");
    assert_eq!([(); 3].map(|()| limit_after(LONG_POLL * 20))[2], 1);
    assert_eq!(limit_after(Duration::ZERO), 1);
    assert_eq!([(); 20].map(|()| limit_after(Duration::ZERO))[19], 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_task_of_another_group_runs_between_two_long_polls() {
    let (busy, light, polls) = (group_of(8), group_of(8), Arc::<AtomicUsize>::default());
    let long = |group: &SharedGroup| group.group().state.lock().mean_time = MAX_POLL_TIME;
    let endless = [(); 4].map(|()| {
        let (group, polls) = (busy.clone(), Arc::clone(&polls));
        tokio::spawn(busy.run(poll_fn(move |context| {
            long(&group);
            polls.fetch_add(1, Ordering::Relaxed);
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        })))
    });
    while polls.load(Ordering::Relaxed) < 100 {
        yield_now().await;
    }
    let between = tokio::spawn(light.run(async move {
        let mut most = 0;
        for _ in 0..100 {
            let before = polls.load(Ordering::Relaxed);
            // Not `yield_now`, with which the runtime polls dozens of others first.
            steps(1, Arc::default()).await;
            most = most.max(polls.load(Ordering::Relaxed) - before);
        }
        most
    }));
    assert!(between.await.unwrap() <= 2, "each task of the busy group goes ahead");
    endless.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn what_a_task_spawns_alongside_is_of_its_group() {
    let shared = group_of(2);
    let is_same = |other: Option<SharedGroup>| other.is_some_and(|other| Arc::ptr_eq(&other.0, &shared.0));
    let spawned = shared.run(async {
        let inner = spawn_alongside("inner", async { SharedGroup::current() });
        (SharedGroup::current(), inner.await.unwrap())
    });
    let (outer, inner) = tokio::spawn(spawned).await.unwrap();
    assert!(is_same(outer) && is_same(inner));
    assert!(SharedGroup::current().is_none());
    assert!(spawn_alongside("outside", async { SharedGroup::current() }).await.unwrap().is_none());
}

#[tokio::test]
async fn a_turn_comes_back_however_its_task_ends() {
    let shared = group_of(1);
    let done = Arc::<AtomicUsize>::default();
    let panicking = tokio::spawn(shared.run(async {
        yield_now().await;
        panic!("on purpose");
    }));
    assert!(panicking.await.unwrap_err().is_panic());
    let woken = Arc::new(tokio::sync::Notify::new());
    let (left, waiting) = (Arc::clone(&woken), Arc::clone(&woken));
    let mut dropped = Box::pin(shared.run(async move { left.notified().await }));
    let never = tokio::spawn(shared.run(async move {
        waiting.notified().await;
        pending::<()>().await;
    }));
    assert!(futures::poll!(&mut dropped).is_pending());
    yield_now().await;
    // One gets the only turn and does not use it; the other waits.
    woken.notify_waiters();
    drop(dropped);
    tokio::spawn(shared.run(steps(3, Arc::clone(&done)))).await.unwrap();
    never.abort();
    assert!(never.await.unwrap_err().is_cancelled());
    tokio::spawn(shared.run(steps(3, Arc::clone(&done)))).await.unwrap();
    let group = shared.group();
    let state = group.state.lock();
    assert_eq!((done.load(Ordering::Relaxed), state.granted, state.ready.len()), (6, 0, 0));
}

#[tokio::test]
async fn a_task_goes_on_in_its_next_group() {
    let shared = group_of(1);
    let (first, second) = (shared.group(), Arc::new(SchedulingGroup::new(1, 1)));
    let done = Arc::<AtomicUsize>::default();
    let task = tokio::spawn(shared.run(steps(100, Arc::clone(&done))));
    yield_now().await;
    shared.set(Arc::clone(&second));
    task.await.unwrap();
    assert_eq!([first, second].map(|group| group.state.lock().granted), [0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_task_is_forgotten_on_several_threads() {
    let shared = group_of(2);
    let done = Arc::<AtomicUsize>::default();
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let (next, done) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::clone(&done));
            let wakes = Arc::clone(&next);
            tokio::spawn(async move { wakes.add_permits(50) });
            tokio::spawn(shared.run(async move {
                for _ in 0..50 {
                    next.acquire().await.unwrap().forget();
                    if number % 3 == 0 {
                        yield_now().await;
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            }))
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let group = shared.group();
    assert_eq!((done.load(Ordering::Relaxed), group.state.lock().granted), (200, 0));
}
