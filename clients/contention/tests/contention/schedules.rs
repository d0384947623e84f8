//! Work that only the owner does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_contention::{ContentionError, Pacing, ScheduleConfig, Scheduler, Timestamp};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::kit::{Backend, mutex, on_every_backend};
use crate::support::in_time;

on_every_backend!(@without_polled_service
    it_works_while_it_runs,
    only_one_of_two_works_and_the_other_goes_on,
    work_that_panics_is_done_again,
    work_under_way_ends_before_anybody_else_owns_the_mutex,
);

const SHORT_PERIOD: Duration = Duration::from_millis(10);

fn short_period() -> ScheduleConfig {
    ScheduleConfig::delay(Duration::ZERO, SHORT_PERIOD)
}

/// Counts pieces of work.
#[derive(Clone)]
struct WorkCounter(Arc<watch::Sender<usize>>);

impl WorkCounter {
    fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    fn add(&self) {
        self.0.send_modify(|done| *done += 1);
    }

    fn count(&self) -> usize {
        *self.0.borrow()
    }

    async fn eventually(&self, count: usize) {
        in_time("work", self.0.subscribe().wait_for(|done| *done >= count)).await.unwrap();
    }
}

fn scheduler(backend: &Backend, mutex: &str, config: ScheduleConfig, done: &WorkCounter) -> Scheduler {
    let done = done.clone();
    Scheduler::new(&backend.factory(), mutex, config, move || {
        let done = done.clone();
        async move { done.add() }
    })
    .unwrap()
}

async fn it_works_while_it_runs(backend: Backend) {
    let (mutex, done) = (mutex(), WorkCounter::new());
    let scheduler = scheduler(&backend, &mutex, short_period(), &done);
    assert!(!scheduler.is_running());
    for life in 1..=2 {
        scheduler.start().unwrap();
        assert!(scheduler.is_running());
        done.eventually(3 * life).await;
        assert!(scheduler.is_owner());
        scheduler.stop().await.unwrap();
        assert!(!scheduler.is_running() && !scheduler.is_owner());
    }
    let until_then = done.count();
    // Whoever takes the mutex now and works a little shows that nobody else does.
    let (other_done, other_config) = (WorkCounter::new(), short_period());
    let other = self::scheduler(&backend, &mutex, other_config, &other_done);
    other.start().unwrap();
    other_done.eventually(5).await;
    other.stop().await.unwrap();
    assert_eq!(done.count(), until_then);
}

async fn only_one_of_two_works_and_the_other_goes_on(backend: Backend) {
    let mutex = mutex();
    let (first_done, second_done) = (WorkCounter::new(), WorkCounter::new());
    let first = scheduler(&backend, &mutex, short_period(), &first_done);
    let second = scheduler(&backend, &mutex, short_period(), &second_done);
    first.start().unwrap();
    first_done.eventually(1).await;
    second.start().unwrap();
    first_done.eventually(10).await;
    assert_eq!(second_done.count(), 0);
    first.stop().await.unwrap();
    let first_count = first_done.count();
    second_done.eventually(5).await;
    assert_eq!(first_done.count(), first_count);
    second.stop().await.unwrap();
}

async fn work_that_panics_is_done_again(backend: Backend) {
    let (done, also_done) = (WorkCounter::new(), WorkCounter::new());
    let counted = done.clone();
    let scheduler = Scheduler::new(&backend.factory(), mutex(), short_period(), move || {
        counted.add();
        assert!(counted.count() % 2 == 0, "as it is meant to");
        let also_done = also_done.clone();
        async move {
            also_done.add();
            assert!(also_done.count() % 2 == 0, "as it is meant to");
        }
    })
    .unwrap();
    scheduler.start().unwrap();
    done.eventually(8).await;
    scheduler.stop().await.unwrap();
}

/// Says when a piece of work is dropped.
struct WorkGuard(Arc<AtomicBool>);

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

async fn work_under_way_ends_before_anybody_else_owns_the_mutex(backend: Backend) {
    let mutex = mutex();
    let (done, overlaps) = (WorkCounter::new(), Arc::new(AtomicUsize::new(0)));
    let is_working = Arc::new(AtomicBool::new(false));
    let schedulers = [1, 2].map(|_| {
        let (done, overlaps, is_working) = (done.clone(), Arc::clone(&overlaps), Arc::clone(&is_working));
        Scheduler::new(&backend.factory(), &*mutex, short_period(), move || {
            let (done, overlaps, is_working) = (done.clone(), Arc::clone(&overlaps), Arc::clone(&is_working));
            async move {
                if is_working.swap(true, Ordering::SeqCst) {
                    overlaps.fetch_add(1, Ordering::SeqCst);
                }
                let _working = WorkGuard(is_working);
                done.add();
                // Ends only when it is dropped.
                std::future::pending::<()>().await;
            }
        })
        .unwrap()
    });
    for (number, scheduler) in schedulers.iter().enumerate() {
        scheduler.start().unwrap();
        if number == 0 {
            done.eventually(1).await;
        }
    }
    schedulers[0].stop().await.unwrap();
    done.eventually(2).await;
    schedulers[1].stop().await.unwrap();
    assert!(!is_working.load(Ordering::SeqCst), "a stop ends with the work");
    assert_eq!(overlaps.load(Ordering::SeqCst), 0);
}

/// When work begins that takes 40 ms.
async fn start_times(config: ScheduleConfig, count: usize) -> Vec<u64> {
    let begins = Arc::new(Mutex::new(Vec::new()));
    let (done, noted) = (WorkCounter::new(), Arc::clone(&begins));
    let counted = done.clone();
    let factory = Backend::in_process(Pacing::Push).factory();
    let scheduler = Scheduler::new(&factory, mutex(), config, move || {
        noted.lock().push(Timestamp::now());
        let counted = counted.clone();
        async move {
            tokio::task::yield_now().await;
            wait_for(Duration::from_millis(40)).await;
            counted.add();
        }
    })
    .unwrap();
    let started_at = Timestamp::now();
    scheduler.start().unwrap();
    done.eventually(count).await;
    scheduler.stop().await.unwrap();
    let begins = begins.lock();
    begins.iter().take(count).map(|at| u64::try_from(at.since(started_at).as_millis()).unwrap()).collect()
}

async fn wait_for(duration: Duration) {
    tokio::time::sleep(duration).await;
}

fn assert_near(found: &[u64], expected: &[u64]) {
    let is_near = found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= 10);
    assert!(is_near, "{found:?} and not {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_delay_is_counted_from_the_end_and_a_fixed_rate_from_the_begin() {
    let ms = Duration::from_millis;
    assert_near(&start_times(ScheduleConfig::delay(ms(200), ms(100)), 4).await, &[200, 340, 480, 620]);
    assert_near(&start_times(ScheduleConfig::rate(ms(200), ms(100)), 4).await, &[200, 300, 400, 500]);
    assert_near(&start_times(ScheduleConfig::rate(ms(0), ms(30)), 4).await, &[0, 40, 80, 120]);
}

#[tokio::test]
async fn a_period_of_nothing_is_refused() {
    let factory = Backend::in_process(Pacing::Push).factory();
    let config = ScheduleConfig::rate(Duration::ZERO, Duration::ZERO);
    let refused = Scheduler::new(&factory, "mutex", config, || async {});
    assert!(matches!(refused, Err(ContentionError::Invalid { what: "the period", .. })));
}
