//! Waits for conditions.

use std::time::{Duration, Instant};

use tokio::time::timeout;

/// How long a condition may take if the test is not about time: far longer than it ever should.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The same for what costs little to look at, or is soon over.
const SHORT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `check` succeeds, and returns what it found.
///
/// # Panics
/// After a minute, with `what` and the last reason.
pub async fn eventually<T>(what: &str, check: impl AsyncFnMut() -> Result<T, String>) -> T {
    eventually_within(DEFAULT_TIMEOUT, what, check).await
}

/// As [`eventually`], with another limit.
pub async fn eventually_within<T>(limit: Duration, what: &str, mut check: impl AsyncFnMut() -> Result<T, String>) -> T {
    let started = Instant::now();
    loop {
        match check().await {
            Ok(found) => return found,
            Err(reason) if started.elapsed() > limit => panic!("{what}: not within {limit:?}: {reason}"),
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// Waits until something is so. The limit counts in real time, also where the clock of the runtime is paused.
///
/// # Panics
/// After a minute, with `what`.
pub async fn eventually_true(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < DEFAULT_TIMEOUT, "{what}: not within {DEFAULT_TIMEOUT:?}");
        tokio::time::sleep(SHORT_POLL_INTERVAL).await;
    }
}

/// Waits until there is something, and returns it. A look that does not end counts as one that found nothing.
///
/// # Panics
/// After a minute, with `what`.
pub async fn eventually_some<T, F>(what: &str, look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    eventually_some_within(DEFAULT_TIMEOUT, what, look).await
}

/// As [`eventually_some`], with another limit.
pub async fn eventually_some_within<T, F>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(SHORT_POLL_INTERVAL).await;
        }
    };
    timeout(limit, looking).await.unwrap_or_else(|_| panic!("{what}: not within {limit:?}"))
}

/// As [`eventually_true`], for tests without a runtime.
///
/// # Panics
/// After a minute, with `what`.
pub fn eventually_blocking(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < DEFAULT_TIMEOUT, "{what}: not within {DEFAULT_TIMEOUT:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A client's pause before it repeats a call that was not answered.
pub async fn wait_before_retry() {
    tokio::time::sleep(POLL_INTERVAL).await;
}

/// Lets time pass: a fault lasts, or a load pauses.
pub async fn wait_out(duration: Duration) {
    tokio::time::sleep(duration).await;
}
