//! Runs the calls of one HTTP/2 connection in one task.
//!
//! Thousands of calls of one peer can become ready at once. In tasks of their own they would all be ahead of the next call
//! of another peer, and once more at each of its steps. A lane polls a few calls in a turn, then all other tasks have
//! theirs.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use holdfast_supervise::{SharedGroup, spawn_temporary, survive_panic};
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::MAX_STREAMS;

/// Polls of calls in one turn: enough that a turn costs little beside them.
const MAX_POLLS: u32 = 8;
/// A turn polls no further call after this time. A call of another peer waits for a turn of every busy lane, and at each
/// of its steps once more.
const MAX_TURN_TIME: Duration = Duration::from_micros(100);
/// Calls that the lane has not begun. A peer reaches this only with calls that it resets.
const MAX_QUEUED: usize = 2 * MAX_STREAMS as usize;

type CallFuture = BoxFuture<'static, ()>;

/// Takes the calls of a connection. The task begins with the first call, so an HTTP/1.1 connection has none. It ends once
/// all clones are dropped and all calls are done.
#[derive(Clone)]
pub(super) struct CallLane {
    calls: Arc<OnceLock<mpsc::Sender<CallFuture>>>,
    group: SharedGroup,
}

impl CallLane {
    /// The task is one of this group.
    pub(super) fn new(group: SharedGroup) -> Self {
        Self { calls: Arc::default(), group }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for CallLane {
    fn execute(&self, call: F) {
        let calls = self.calls.get_or_init(|| {
            let (calls, queued) = mpsc::channel(MAX_QUEUED);
            spawn_temporary("calls", self.group.run(run(queued)));
            calls
        });
        // A call that is dropped resets its stream.
        let _ = calls.try_send(survive_panic("call", call).map(|_| ()).boxed());
    }
}

/// What is left of the current turn of a lane.
struct PollBudget {
    began: Instant,
    polls_left: u32,
}

impl PollBudget {
    fn new() -> Self {
        Self { began: Instant::now(), polls_left: MAX_POLLS }
    }

    /// Takes one of its polls, or returns false if the turn is over. The first poll is always one of them.
    fn take_poll(&mut self) -> bool {
        let is_over = self.polls_left == 0 || self.polls_left < MAX_POLLS && self.began.elapsed() >= MAX_TURN_TIME;
        self.polls_left -= u32::from(!is_over);
        !is_over
    }
}

/// A call that yields once the turn of its lane is over.
struct LaneCall {
    call: CallFuture,
    budget: Arc<Mutex<PollBudget>>,
}

impl Future for LaneCall {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.budget.lock().take_poll() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.call.as_mut().poll(context)
    }
}

async fn run(mut queued: mpsc::Receiver<CallFuture>) {
    let mut calls = FuturesUnordered::new();
    let budget = Arc::new(Mutex::new(PollBudget::new()));
    let mut is_open = true;
    poll_fn(|context| {
        *budget.lock() = PollBudget::new();
        let was_full = calls.len() >= MAX_QUEUED;
        while is_open && calls.len() < MAX_QUEUED {
            match queued.poll_recv(context) {
                Poll::Ready(Some(call)) => calls.push(LaneCall { call, budget: Arc::clone(&budget) }),
                Poll::Ready(None) => is_open = false,
                Poll::Pending => break,
            }
        }
        // `FuturesUnordered` ends its turn after the second call that yields.
        loop {
            match calls.poll_next_unpin(context) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) if !is_open => return Poll::Ready(()),
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        if was_full && calls.len() < MAX_QUEUED {
            // Nothing else would wake it for those in the queue.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::yield_now;

    use super::*;

    /// Goes to the end of the run queue.
    async fn step_back() {
        poll_fn(|context| Poll::Ready(context.waker().clone())).await.wake();
        futures::pending!();
    }

    #[tokio::test]
    async fn another_task_has_its_turn_after_a_few_calls() {
        const CALLS: usize = 10 * MAX_POLLS as usize;
        let (lane, done) = (CallLane::new(SharedGroup::default()), Arc::new(AtomicUsize::new(0)));
        for _ in 0..CALLS {
            let done = Arc::clone(&done);
            lane.execute(async move {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let other = spawn_temporary("other", async move {
            let mut turns = Vec::new();
            while turns.iter().sum::<usize>() < CALLS {
                turns.push(done.load(Ordering::Relaxed) - turns.iter().sum::<usize>());
                step_back().await;
            }
            turns
        });
        let turns = other.await.unwrap();
        assert!(turns.iter().all(|turn| *turn <= MAX_POLLS as usize), "{turns:?}");
    }

    #[test]
    fn a_turn_has_one_poll_however_long_and_no_further_one_after_its_time() {
        let mut budget = PollBudget::new();
        budget.began -= MAX_TURN_TIME;
        assert!(budget.take_poll());
        assert!(!budget.take_poll());
    }

    #[tokio::test]
    async fn calls_go_on_after_their_connection_and_too_many_are_dropped() {
        let (lane, done) = (CallLane::new(SharedGroup::default()), Arc::new(AtomicUsize::new(0)));
        for _ in 0..MAX_QUEUED + 10 {
            let done = Arc::clone(&done);
            lane.execute(async move {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(lane);
        while Arc::strong_count(&done) > 1 {
            yield_now().await;
        }
        assert_eq!(done.load(Ordering::Relaxed), MAX_QUEUED);
    }
}
