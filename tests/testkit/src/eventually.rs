//! Waits for conditions.

use std::time::{Duration, Instant};

/// How long a condition may take if the test is not about time: far longer than it ever should.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

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

/// A client's pause before it repeats a call that was not answered.
pub async fn wait_before_retry() {
    tokio::time::sleep(POLL_INTERVAL).await;
}

/// Lets a fault last.
pub async fn wait_out(duration: Duration) {
    tokio::time::sleep(duration).await;
}
