//! Bounds the handshakes that run at a time.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

/// How long a handshake may take while a few others wait: several times what one over a long distance takes.
const TIME_WHILE_OTHERS_WAIT: Duration = Duration::from_secs(1);
/// How often that is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs a few handshakes at a time, since each costs a millisecond of a processor, and lets the others wait in order.
/// A peer that falls silent must not keep out those that do not: while others wait, a handshake has a second, and the
/// less the more of them wait, so that all are served before they give up.
pub(crate) struct HandshakeLimit {
    limit: usize,
    free: Semaphore,
    waiting: AtomicUsize,
}

/// Counts one that waits, until it is dropped.
struct WaitingGuard<'a>(&'a AtomicUsize);

impl HandshakeLimit {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, free: Semaphore::new(limit), waiting: AtomicUsize::new(0) }
    }

    /// Returns whether a further handshake must wait.
    pub(crate) fn is_full(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// Runs a handshake once there is room.
    ///
    /// # Errors
    /// Its error, and `TimedOut` if it takes long while others wait.
    pub(crate) async fn run<T>(&self, handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let _permit = self.permit().await;
        let mut handshake = pin!(handshake);
        let began = Instant::now();
        loop {
            match timeout(CHECK_INTERVAL, &mut handshake).await {
                Ok(done) => return done,
                Err(_) if self.max_time().is_some_and(|max| began.elapsed() >= max) => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(_) => {}
            }
        }
    }

    /// Returns how long a handshake may take now; `None` if no other waits.
    fn max_time(&self) -> Option<Duration> {
        let waiting = self.waiting.load(Ordering::Relaxed);
        let turns = u32::try_from(waiting / self.limit.max(1)).unwrap_or(u32::MAX).saturating_add(1);
        (waiting > 0).then(|| TIME_WHILE_OTHERS_WAIT / turns)
    }

    /// `None` only if the semaphore were closed, which never happens.
    async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.free.try_acquire() {
            return Some(permit);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = WaitingGuard(&self.waiting);
        self.free.acquire().await.ok()
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;

    use tokio::task::JoinHandle;

    use super::*;

    async fn wait_slowly() -> io::Result<u8> {
        tokio::time::sleep(TIME_WHILE_OTHERS_WAIT * 5).await;
        Ok(7)
    }

    fn spawn(
        limit: &Arc<HandshakeLimit>,
        handshake: impl Future<Output = io::Result<u8>> + Send + 'static,
    ) -> JoinHandle<io::Result<u8>> {
        let limit = Arc::clone(limit);
        tokio::spawn(async move { limit.run(handshake).await })
    }

    /// Begins as many handshakes as may run, which never end by themselves.
    async fn fill(limit: &Arc<HandshakeLimit>) -> Vec<JoinHandle<io::Result<u8>>> {
        let silent = (0..limit.limit).map(|_| spawn(limit, pending())).collect();
        while !limit.is_full() {
            tokio::task::yield_now().await;
        }
        silent
    }

    #[tokio::test(start_paused = true)]
    async fn silent_handshakes_end_after_a_second_if_others_wait() {
        let limit = Arc::new(HandshakeLimit::new(2));
        let (silent, began) = (fill(&limit).await, Instant::now());
        assert_eq!(limit.run(ready(Ok(7))).await.unwrap(), 7);
        assert!(began.elapsed() <= TIME_WHILE_OTHERS_WAIT * 2, "{:?}", began.elapsed());
        assert!(silent.iter().any(|ended| ended.is_finished()));
        assert_eq!(limit.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_wait_the_sooner_silent_handshakes_end() {
        let limit = Arc::new(HandshakeLimit::new(2));
        let (_silent, began) = (fill(&limit).await, Instant::now());
        let waiting: Vec<_> = (0..18).map(|_| spawn(&limit, ready(Ok(7)))).collect();
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap().unwrap(), 7);
        }
        assert!(began.elapsed() <= TIME_WHILE_OTHERS_WAIT / 5, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_handshake_goes_on_while_nobody_waits() {
        let limit = HandshakeLimit::new(1);
        assert_eq!(limit.run(wait_slowly()).await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stops_waiting_ends_nobody() {
        let limit = HandshakeLimit::new(1);
        let gone = timeout(TIME_WHILE_OTHERS_WAIT / 4, limit.run(ready(Ok(8))));
        let (done, gone) = tokio::join!(limit.run(wait_slowly()), gone);
        assert!(done.is_ok() && gone.is_err());
    }
}
