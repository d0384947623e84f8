//! Errors as gRPC statuses. `google.rpc.ErrorInfo` carries the public code.

use std::collections::HashMap;

use axum::response::Response;
use holdfast_api::{ApiError, Code, PATH_MEMBER};
use holdfast_backend::count_refusal;
use tonic::{Code as Grpc, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of the reasons in `google.rpc.ErrorInfo`.
const DOMAIN: &str = "holdfast";

/// Returns the one gRPC status of an error that ends a call, and counts it if a limit is reached.
pub(crate) fn status(error: ApiError) -> Status {
    count_refusal(&error);
    uncounted(error)
}

/// Returns the status of an error that is counted already.
pub(super) fn uncounted(error: ApiError) -> Status {
    let code = error.code;
    let mut ids = HashMap::<String, String>::new();
    for (name, value) in error.ids {
        // Metadata are text: the segments of a path are joined.
        let joined = ids.get(name).filter(|_| name == PATH_MEMBER).map(|before| format!("{before}/{value}"));
        ids.insert(name.to_owned(), joined.unwrap_or(value));
    }
    let mut details = ErrorDetails::with_error_info(code.name(), DOMAIN, ids);
    if error.retry_after.is_some() {
        details.set_retry_info(error.retry_after);
    }
    Status::with_error_details(code.grpc_code(), error.detail, details)
}

/// Replaces the gRPC library's own statuses for bad messages with the codes of the contract. A message that is too
/// large or malformed is the caller's fault, and must not look like a fault of the service.
pub(super) fn map_library_status(response: Response) -> Response {
    match Status::from_header_map(response.headers()).and_then(|made| to_api_error(&made)) {
        Some(error) => status(error).into_http(),
        None => response,
    }
}

fn to_api_error(made: &Status) -> Option<ApiError> {
    if !made.details().is_empty() {
        return None;
    }
    let message = made.message();
    match made.code() {
        Grpc::OutOfRange if message.contains("message length too large") => {
            Some(ApiError::new(Code::PayloadTooLarge, message))
        }
        Grpc::Internal if message.contains("failed to decode Protobuf message") => {
            Some(ApiError::new(Code::InvalidArgument, message))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_code_has_its_status_and_carries_its_name() {
        for code in Code::ALL {
            let status = status(ApiError::new(code, "what happened").with("namespace", "demo"));
            assert_eq!(status.code(), code.grpc_code());
            assert_eq!(status.message(), "what happened");
            let info = status.get_details_error_info().unwrap();
            assert_eq!((info.reason.as_str(), info.domain.as_str()), (code.name(), "holdfast"));
            assert_eq!(info.metadata.get("namespace").map(String::as_str), Some("demo"));
        }
    }

    #[test]
    fn what_may_be_tried_again_says_when() {
        let status = status(ApiError::rate_limited(10, Duration::from_secs(3)));
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(Duration::from_secs(3)));
    }

    #[test]
    fn a_message_that_cannot_be_read_is_the_callers_fault() {
        let made = Status::internal("failed to decode Protobuf message: invalid string value");
        assert_eq!(to_api_error(&made).unwrap().code, Code::InvalidArgument);
        let made = Status::out_of_range("Error, decoded message length too large: found 70000 bytes");
        assert_eq!(to_api_error(&made).unwrap().code, Code::PayloadTooLarge);
        assert_eq!(to_api_error(&Status::unimplemented("")), None);
        assert_eq!(to_api_error(&status(ApiError::internal("failed to decode Protobuf message"))), None);
    }
}
