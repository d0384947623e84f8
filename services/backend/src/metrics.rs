//! Descriptions of the metrics of the operations.

use metrics::{describe_counter, describe_gauge};

/// Describes every metric of the operations.
pub fn describe_metrics() {
    crate::admission::describe_metrics();
    crate::refusals::describe_metrics();
    describe_gauge!("holdfast_session_connections", "Open connections of sessions.");
    describe_counter!(
        "holdfast_directory_cache_lookups_total",
        "Cache lookups of keys, accounts and namespaces, by outcome."
    );
}
