//! What the figures of the operations mean.

use metrics::{describe_counter, describe_gauge};

/// Describes every figure that the operations count.
pub fn describe_metrics() {
    crate::admission::describe_metrics();
    describe_gauge!("holdfast_session_connections", "Connections of sessions that are open.");
    describe_counter!(
        "holdfast_directory_cache_lookups_total",
        "Look-ups of keys, accounts and namespaces, by outcome."
    );
}
