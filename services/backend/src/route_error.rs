//! Public errors for failed calls to shards.

use holdfast_api::{ApiError, Code};
use holdfast_routing::RouteError;

/// Returns the public error for a call without a reply. A function, since both types belong to other crates.
pub(crate) fn route_error(error: RouteError) -> ApiError {
    let detail = error.to_string();
    match error {
        RouteError::Unavailable { .. } => ApiError::new(Code::Unavailable, detail),
        RouteError::Limited { limit: reached, .. } => {
            ApiError::limited(reached.limit, reached.max, "nothing was done, try again later")
        }
        RouteError::OutcomeUnknown { .. } => ApiError::new(Code::DeadlineExceeded, detail),
        RouteError::InvalidReply { .. } => ApiError::internal(detail),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::limit::{self, Reached};

    use super::*;

    #[test]
    fn only_what_was_certainly_not_done_is_unavailable() {
        let (shard, reason) = ("locks_00".to_owned(), "no leader".to_owned());
        let error = route_error(RouteError::Unavailable { shard: shard.clone(), reason: reason.clone() });
        assert_eq!((error.code, error.retry_after_seconds()), (Code::Unavailable, Some(1)));
        assert!(error.code.has_no_side_effects());
        let reached = Reached { limit: &limit::CALLS_TO_SHARD, max: 3_072 };
        let limited = RouteError::Limited { shard: shard.clone(), limit: reached };
        let error = route_error(limited);
        assert_eq!((error.code, error.retry_after_seconds()), (Code::Unavailable, Some(1)));
        assert_eq!(error.ids, [("limit", "calls_to_shard".to_owned()), ("max", "3072".to_owned())]);
        let error = route_error(RouteError::OutcomeUnknown { shard, reason });
        assert_eq!((error.code, error.retry_after_seconds()), (Code::DeadlineExceeded, None));
        assert!(!error.code.has_no_side_effects());
    }
}
