//! openraft's runtime: tokio, with the ticks of all groups of a node aligned.
//!
//! Every group ticks some twenty times a second, at a phase that openraft chooses at random. A node with three idle
//! groups would wake up 75 times a second for little else. This runtime delays the ticks of one node to common times,
//! no more often than its heartbeats need. It delays elections by at most a third of a second, which is less than the
//! random variation of their timeouts. Each node has its own period, so that no two nodes stay in step and stand for
//! the same elections repeatedly.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use openraft::OptionalSend;
use openraft::rt::{AsyncRuntime, Instant as _};

type Tokio = openraft::impls::TokioRuntime;
/// openraft's instant.
pub(crate) type Instant = <Tokio as AsyncRuntime>::Instant;

/// Shortest period. Each tick sends a heartbeat, see `Timing`; two of them fit well within a lease.
const MIN_PERIOD: Duration = Duration::from_millis(290);

/// Range by which nodes' periods differ, in microseconds.
const PERIOD_SPREAD_US: u64 = 12_000;

/// Deadlines this near are not ticks and are not delayed: openraft waits for a microsecond elsewhere.
const IMMEDIATE: Duration = Duration::from_micros(10);

tokio::task_local! {
    static TICK_SCHEDULE: TickSchedule;
}

/// The tick schedule of a node's groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickSchedule {
    /// The reference time of the ticks.
    origin: Instant,
    period: Duration,
}

impl TickSchedule {
    /// Creates a schedule that starts now, with the node's period.
    pub(crate) fn for_node(node: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        let longer = Duration::from_micros(hasher.finish() % PERIOD_SPREAD_US);
        Self { origin: Instant::now(), period: MIN_PERIOD + longer }
    }

    /// Runs a future whose groups tick on this schedule.
    pub(crate) async fn scope<F: Future>(self, future: F) -> F::Output {
        TICK_SCHEDULE.scope(self, future).await
    }

    /// Returns the first tick at or after a deadline.
    fn align(self, deadline: Instant) -> Instant {
        let (every, passed) = (self.period.as_micros() as u64, (deadline - self.origin).as_micros() as u64);
        self.origin + Duration::from_micros(passed.div_ceil(every) * every)
    }
}

/// tokio, except for the time of ticks.
#[derive(Debug)]
pub struct Runtime(Tokio);

impl AsyncRuntime for Runtime {
    type JoinError = <Tokio as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <Tokio as AsyncRuntime>::Sleep;
    type Instant = Instant;
    type TimeoutError = <Tokio as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <Tokio as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <Tokio as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <Tokio as AsyncRuntime>::Mpsc;
    type Watch = <Tokio as AsyncRuntime>::Watch;
    type Oneshot = <Tokio as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::Mutex<T>;

    /// Tasks that a group spawns use the same schedule.
    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match TICK_SCHEDULE.try_with(|moments| *moments) {
            Ok(moments) => Tokio::spawn(TICK_SCHEDULE.scope(moments, future)),
            Err(_) => Tokio::spawn(future),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Tokio::sleep(duration)
    }

    fn sleep_until(deadline: Instant) -> Self::Sleep {
        let is_soon = deadline <= Instant::now() + IMMEDIATE;
        let at = TICK_SCHEDULE.try_with(|moments| if is_soon { deadline } else { moments.align(deadline) });
        Tokio::sleep_until(at.unwrap_or(deadline))
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        Tokio::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Instant, future: F) -> Self::Timeout<R, F> {
        Tokio::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        Tokio::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        Tokio::thread_rng()
    }

    fn new(threads: usize) -> Self {
        Self(Tokio::new(threads))
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.0.block_on(future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_runtime_as_openraft_wants_one() {
        openraft::testing::runtime::Suite::<Runtime>::test_all();
    }

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn what_is_spawned_wakes_at_common_moments() {
        let moments = TickSchedule { origin: Instant::now(), period: 75 * MS };
        let woken = moments.scope(async {
            let sleepers = [10, 74, 75, 80].map(|ms| {
                Runtime::spawn(async move {
                    Runtime::sleep_until(moments.origin + ms * MS).await;
                    Instant::now() - moments.origin
                })
            });
            futures::future::try_join_all(sleepers).await
        });
        assert_eq!(woken.await.expect("nobody panics"), [75, 75, 75, 150].map(|ms| ms * MS));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_soon_or_belongs_to_no_group_is_not_put_off() {
        let moments = TickSchedule { origin: Instant::now(), period: 75 * MS };
        moments.scope(Runtime::sleep_until(moments.origin + IMMEDIATE)).await;
        assert!(Instant::now() - moments.origin <= MS, "tokio's timers are as coarse as that");
        Runtime::sleep_until(moments.origin + 22 * MS).await;
        assert_eq!(Instant::now() - moments.origin, 22 * MS);
    }

    #[tokio::test]
    async fn each_tick_of_any_node_sends_a_heartbeat_two_are_within_a_lease_and_nodes_differ() {
        let every = |node: usize| TickSchedule::for_node(&format!("nd_{node}")).period;
        let timing = crate::timing::Timing::default();
        assert!((1..=100).all(|node| every(node) > timing.heartbeat + 80 * MS));
        assert!((1..=100).all(|node| 2 * every(node) + 100 * MS < timing.usable_lease()));
        assert!(every(1) != every(2) && every(2) != every(3) && every(3) != every(1));
    }
}
