//! Public errors for failed calls to shards.

use holdfast_api::{ApiError, Code};
use holdfast_routing::RouteError;

/// Returns the public error for a call without a reply. A function, since both types belong to other crates.
pub(crate) fn route_error(error: RouteError) -> ApiError {
    let detail = error.to_string();
    match error {
        RouteError::Unavailable { .. } => ApiError::new(Code::Unavailable, detail),
        RouteError::OutcomeUnknown { .. } => ApiError::new(Code::DeadlineExceeded, detail),
        RouteError::InvalidReply { .. } => ApiError::internal(detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_certainly_not_done_is_unavailable() {
        let (shard, reason) = ("locks_00".to_owned(), "no leader".to_owned());
        let error = route_error(RouteError::Unavailable { shard: shard.clone(), reason: reason.clone() });
        assert_eq!((error.code, error.retry_after_seconds()), (Code::Unavailable, Some(1)));
        assert!(error.code.has_no_side_effects());
        let error = route_error(RouteError::OutcomeUnknown { shard, reason });
        assert_eq!((error.code, error.retry_after_seconds()), (Code::DeadlineExceeded, None));
        assert!(!error.code.has_no_side_effects());
    }
}
