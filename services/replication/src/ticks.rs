//! The runtime that openraft runs on: tokio's, with the ticks of all groups of a node at the same moments.
//!
//! Every group has a tick of its own, some thirty times a second, at a phase that openraft chooses at random. So a node
//! with 33 idle groups would be woken a thousand times a second, and would do little else. Here the ticks of one node
//! are put off to common moments, which are no more than its heartbeats need. An election starts that much later, which
//! is far below what its timeouts differ by at random.

use std::future::Future;
use std::time::Duration;

use openraft::OptionalSend;
use openraft::rt::{AsyncRuntime, Instant as _};

type Tokio = openraft::impls::TokioRuntime;
/// A point in time of openraft's.
pub(crate) type Instant = <Tokio as AsyncRuntime>::Instant;

/// Ticks happen at multiples of this.
const EVERY: Duration = Duration::from_millis(75);

/// Whatever is nearer than this is no tick, and is not put off.
const SOON: Duration = Duration::from_millis(2);

tokio::task_local! {
    /// What the moments are counted from: the start of the node.
    static SINCE: Instant;
}

/// The present moment.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs something whose groups tick together with all others since the same moment.
pub(crate) async fn together<F: Future>(since: Instant, future: F) -> F::Output {
    SINCE.scope(since, future).await
}

/// The next common moment.
fn put_off(deadline: Instant, since: Instant) -> Instant {
    let (step, passed) = (EVERY.as_micros() as u64, (deadline - since).as_micros() as u64);
    since + Duration::from_micros(passed.div_ceil(step) * step)
}

/// tokio, but for when it wakes a tick.
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

    /// What a group spawns ticks with it.
    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match SINCE.try_with(|since| *since) {
            Ok(since) => Tokio::spawn(SINCE.scope(since, future)),
            Err(_) => Tokio::spawn(future),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Tokio::sleep(duration)
    }

    fn sleep_until(deadline: Instant) -> Self::Sleep {
        let is_soon = deadline <= Instant::now() + SOON;
        let at = SINCE.try_with(|since| if is_soon { deadline } else { put_off(deadline, *since) });
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

    #[tokio::test(start_paused = true)]
    async fn what_is_spawned_wakes_at_common_moments() {
        let since = Instant::now();
        let woken = together(since, async move {
            let sleepers = [10, 74, 75, 80].map(|ms| {
                Runtime::spawn(async move {
                    Runtime::sleep_until(since + Duration::from_millis(ms)).await;
                    Instant::now() - since
                })
            });
            futures::future::try_join_all(sleepers).await
        });
        let woken = woken.await.expect("nobody panics");
        assert_eq!(woken, [75, 75, 75, 150].map(Duration::from_millis));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_soon_or_belongs_to_no_group_is_not_put_off() {
        let since = Instant::now();
        together(since, Runtime::sleep_until(since + Duration::from_millis(1))).await;
        assert_eq!(Instant::now() - since, Duration::from_millis(1));
        Runtime::sleep_until(since + Duration::from_millis(22)).await;
        assert_eq!(Instant::now() - since, Duration::from_millis(22));
    }
}
