//! The pace of the load.

use std::time::Duration;

use tokio::time::Instant;

/// A pause of a load, or between two looks for a condition.
pub(crate) async fn wait_for(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Until something is due.
pub(crate) async fn wait_until(due: Instant) {
    tokio::time::sleep_until(due).await;
}
