//! Waiting for what ready tasks are about to make, for a short time.

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::Instant;

use crate::scheduling_group::do_tasks_wait;

/// Limits of [`YieldToReady`]. The time adds to each call whose frame waits for those of others. It stands still in a
/// simulation, where the tasks that wait may be those of another host.
const MAX_YIELD_TIME: Duration = Duration::from_millis(2);
const MAX_YIELDS: u32 = 64;

/// Lets ready tasks run, so that one message has what many of them make.
#[derive(Debug)]
pub struct YieldToReady {
    began: Instant,
    yields_left: u32,
}

impl Default for YieldToReady {
    fn default() -> Self {
        Self { began: Instant::now(), yields_left: MAX_YIELDS }
    }
}

impl YieldToReady {
    /// Yields once, and again in later calls while tasks of any group wait for a turn: at most 64 times, and not after
    /// 2 ms. Returns whether it has yielded.
    pub async fn again(&mut self) -> bool {
        let is_first = self.yields_left == MAX_YIELDS;
        let are_more = || do_tasks_wait() && self.began.elapsed() < MAX_YIELD_TIME;
        let yields = is_first || self.yields_left > 0 && are_more();
        if yields {
            self.yields_left -= 1;
            yield_now().await;
        }
        yields
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::scheduling_group::tests::{group_of, steps};

    async fn yield_to_ready() -> u32 {
        let mut ready = YieldToReady::default();
        while ready.again().await {}
        MAX_YIELDS - ready.yields_left
    }

    #[tokio::test(start_paused = true)]
    async fn who_yields_to_ready_tasks_yields_to_those_that_wait_for_a_turn() {
        let (shared, done) = (group_of(2), Arc::<AtomicUsize>::default());
        for _ in 0..60 {
            tokio::spawn(shared.run(steps(1, Arc::clone(&done))));
        }
        assert!(yield_to_ready().await >= 1);
        assert_eq!(done.load(Ordering::Relaxed), 60);
        // Tasks that are ready for ever keep nobody from going on.
        let endless = [(); 3].map(|()| tokio::spawn(shared.run(steps(usize::MAX, Arc::clone(&done)))));
        yield_now().await;
        assert_eq!(yield_to_ready().await, MAX_YIELDS);
        endless.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
