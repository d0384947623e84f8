//! Bounds the handshakes that run at a time.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// How long a handshake may take while others wait: several times what one over a long distance takes.
const TIME_WHILE_OTHERS_WAIT: Duration = Duration::from_secs(1);

/// Runs a few handshakes at a time, since each costs a millisecond of a processor, and lets the others wait in order. A
/// peer that says nothing must not keep out those that do: while others wait, a handshake has a second.
pub(crate) struct HandshakeLimit {
    free: Semaphore,
    waiting: AtomicUsize,
}

/// Counts one that waits, until it is dropped.
struct WaitingGuard<'a>(&'a AtomicUsize);

impl HandshakeLimit {
    pub(crate) fn new(limit: usize) -> Self {
        Self { free: Semaphore::new(limit), waiting: AtomicUsize::new(0) }
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
        loop {
            match timeout(TIME_WHILE_OTHERS_WAIT, &mut handshake).await {
                Ok(done) => return done,
                Err(_) if self.waiting.load(Ordering::Relaxed) > 0 => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {}
            }
        }
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

    use tokio::time::Instant;

    use super::*;

    async fn wait_slowly() -> io::Result<u8> {
        tokio::time::sleep(TIME_WHILE_OTHERS_WAIT * 5).await;
        Ok(7)
    }

    #[tokio::test(start_paused = true)]
    async fn silent_handshakes_end_after_a_second_if_others_wait() {
        let limit = Arc::new(HandshakeLimit::new(2));
        let silent = |_| {
            let limit = Arc::clone(&limit);
            tokio::spawn(async move { limit.run(pending::<io::Result<()>>()).await })
        };
        let silent: Vec<_> = (0..2).map(silent).collect();
        while !limit.is_full() {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        assert_eq!(limit.run(ready(Ok(7))).await.unwrap(), 7);
        assert!(began.elapsed() <= TIME_WHILE_OTHERS_WAIT * 2, "{:?}", began.elapsed());
        assert!(silent.iter().any(|ended| ended.is_finished()));
        assert_eq!(limit.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_handshake_goes_on_while_nobody_waits() {
        let limit = HandshakeLimit::new(1);
        assert_eq!(limit.run(wait_slowly()).await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stops_waiting_ends_nobody() {
        let limit = HandshakeLimit::new(1);
        let gone = timeout(TIME_WHILE_OTHERS_WAIT / 2, limit.run(ready(Ok(8))));
        let (done, gone) = tokio::join!(limit.run(wait_slowly()), gone);
        assert!(done.is_ok() && gone.is_err());
    }
}
