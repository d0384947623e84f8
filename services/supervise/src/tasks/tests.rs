use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::*;

fn set() -> TaskSet {
    TaskSet::new(TaskOwner::replica("locks-1", 7))
}

async fn failure(tasks: &TaskSet) -> TaskFailure {
    let mut failed = tasks.failed();
    failed.wait_for(Option::is_some).await.expect("the set lives").clone().expect("it has failed")
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_essential_task_is_the_failure_of_the_set_at_once() {
    let tasks = set();
    assert_eq!(tasks.unhealthy_reason(), None);
    let began = Instant::now();
    tasks.spawn_essential("proposer", async { panic!("no luck") });
    let failure = failure(&tasks).await;
    assert_eq!(failure.task, "proposer");
    assert!(failure.reason.contains("no luck") && failure.reason.contains("tests.rs"), "{failure}");
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(tasks.unhealthy_reason(), Some(failure.to_string()));
}

#[tokio::test(start_paused = true)]
async fn so_is_its_end_but_not_when_the_set_is_ended() {
    let tasks = set();
    tasks.spawn_essential("proposer", async {});
    assert_eq!(failure(&tasks).await.reason, "it ended, which it should not");
    let tasks = set();
    let failed = tasks.failed();
    tasks.spawn_essential("ends with its owner", async {});
    tasks.spawn_essential("waits for ever", std::future::pending());
    tokio::task::yield_now().await;
    tasks.shutdown().await;
    assert_eq!(*failed.borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_kept_is_started_again_after_ever_longer_pauses() {
    let tasks = set();
    let (starts, mut started) = mpsc::unbounded_channel();
    tasks.spawn_restarting("expiry", move || {
        let starts = starts.clone();
        async move {
            starts.send(Instant::now()).expect("the test listens");
            panic!("again");
        }
    });
    let mut last = started.recv().await.expect("it starts");
    for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
        tokio::task::yield_now().await;
        assert!(tasks.unhealthy_reason().expect("it waits").contains("task expiry has failed: panic at "));
        let now = started.recv().await.expect("it starts again");
        assert_eq!((now - last).as_secs(), pause);
        last = now;
    }
    assert!(*tasks.failures().borrow() >= 8);
    assert_eq!(*tasks.failed().borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn what_ran_for_a_minute_begins_with_the_first_pause() {
    let tasks = set();
    let (starts, mut started) = mpsc::unbounded_channel();
    tasks.spawn_restarting("expiry", move || {
        let starts = starts.clone();
        async move {
            starts.send(Instant::now()).expect("the test listens");
            sleep(BACKOFF_RESET_AFTER).await;
            panic!("again");
        }
    });
    let mut last = started.recv().await.expect("it starts");
    for _ in 0..3 {
        let now = started.recv().await.expect("it starts again");
        assert_eq!((now - last).as_secs(), 61);
        assert_eq!(tasks.unhealthy_reason(), None);
        last = now;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_may_end_is_started_again_after_a_panic_only() {
    let tasks = set();
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    tasks.spawn_until_done("decommission", move || {
        let run = count.fetch_add(1, Ordering::Relaxed);
        async move { assert!(run > 0, "the first time") }
    });
    sleep(BACKOFF_RESET_AFTER).await;
    assert_eq!((runs.load(Ordering::Relaxed), tasks.unhealthy_reason()), (2, None));
}

#[tokio::test]
async fn a_set_that_is_dropped_takes_its_tasks_along() {
    let (alive, mut gone) = mpsc::channel::<()>(1);
    let tasks = set();
    tasks.spawn_essential("waits for ever", async move {
        let _alive = alive;
        std::future::pending().await
    });
    drop(tasks);
    assert_eq!(gone.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_child_ends_with_its_parent_and_its_trouble_ends_with_it() {
    let tasks = set();
    let children = tasks.child();
    let (alive, mut gone) = mpsc::channel::<()>(1);
    children.spawn_restarting("expiry", || async { panic!("again") });
    children.spawn_essential("waits for ever", async move {
        let _alive = alive;
        std::future::pending().await
    });
    tokio::task::yield_now().await;
    assert!(tasks.unhealthy_reason().expect("it waits").contains("expiry"));
    children.shutdown().await;
    assert_eq!((tasks.unhealthy_reason(), gone.recv().await), (None, None));
    let (children, (alive, mut gone)) = (tasks.child(), mpsc::channel::<()>(1));
    children.spawn_essential("waits for ever", async move {
        let _alive = alive;
        std::future::pending().await
    });
    tasks.shutdown().await;
    assert_eq!(gone.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
}

#[tokio::test(start_paused = true)]
async fn a_parent_says_that_an_essential_task_of_a_child_failed_until_the_child_ends() {
    let tasks = set();
    let (child, other) = (tasks.child(), tasks.child());
    child.spawn_essential("proposer", async { panic!("of a child") });
    assert!(failure(&child).await.reason.contains("of a child"));
    assert!(tasks.unhealthy_reason().expect("it has failed").contains("task proposer has failed: panic at "));
    assert_eq!((tasks.failed().borrow().clone(), other.failed().borrow().clone()), (None, None));
    child.shutdown().await;
    assert_eq!((tasks.unhealthy_reason(), other.unhealthy_reason()), (None, None));
    assert!(child.unhealthy_reason().is_some(), "the first one stays");
}

#[tokio::test(start_paused = true)]
async fn what_fails_in_a_set_of_the_process_is_said_until_it_runs_again_or_its_set_ends() {
    assert_eq!(failing_process_task(), None);
    let (one, other) = (TaskSet::of_process(), TaskSet::of_process());
    one.spawn_restarting("accept", || async { panic!("of one") });
    tokio::task::yield_now().await;
    let runs = AtomicUsize::new(0);
    other.spawn_until_done("accept", move || {
        let is_first = runs.fetch_add(1, Ordering::Relaxed) == 0;
        async move { assert!(!is_first, "of another") }
    });
    tokio::task::yield_now().await;
    assert!(failing_process_task().expect("both wait").contains("of one"));
    one.shutdown().await;
    assert!(failing_process_task().expect("the other one waits").contains("of another"));
    sleep(2 * INITIAL_BACKOFF).await;
    assert_eq!(failing_process_task(), None);
}

#[tokio::test(start_paused = true)]
async fn what_fails_in_the_background_is_said_apart() {
    let tasks = TaskSet::in_background();
    tasks.spawn_restarting("metrics", || async { panic!("no luck") });
    tokio::task::yield_now().await;
    assert!(failing_background_task().expect("it waits").contains("task metrics has failed: panic at "));
    assert!(failing_process_task().is_none_or(|failing| !failing.contains("metrics")), "the process is ready");
    tasks.shutdown().await;
    assert_eq!(failing_background_task(), None);
}
