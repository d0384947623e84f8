//! Counts the calls that are refused at a limit, as their callers hear of it.

use holdfast_api::ApiError;
use holdfast_types::limit::{self, Limit};
use metrics::{counter, describe_counter};

const REFUSALS: &str = "holdfast_refusals_total";

/// Describes the metric, and makes a counter for each limit, so that the first refusal is an increase.
pub(crate) fn describe_metrics() {
    describe_counter!("holdfast_refusals_total", "Calls rejected at a limit, by limit.");
    for limit in limit::ALL {
        counter!(REFUSALS, "limit" => limit.name).increment(0);
    }
}

/// Counts an error that is sent to a caller, or ends its connection, if it is the refusal of a limit.
pub fn count_refusal(error: &ApiError) {
    if let Some(limit) = error.limit() {
        count_refusal_at(limit);
    }
}

/// Counts a refusal that is told by closing a connection.
pub(crate) fn count_refusal_at(limit: &'static Limit) {
    counter!(REFUSALS, "limit" => limit.name).increment(1);
}
