//! JSON bodies of responses.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use holdfast_api::ApiError;
use serde::Serialize;

use super::problem::Problem;

/// Room for the view of a lock with one holder, so that its text does not grow in steps.
const USUAL_BYTES: usize = 1_024;

/// A response of one JSON value.
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut text = Vec::with_capacity(USUAL_BYTES);
        let written = serde_json::to_writer(&mut text, &self.0);
        json_response(text, written)
    }
}

/// Apart from the above, so that it is compiled once for all types.
fn json_response(text: Vec<u8>, written: serde_json::Result<()>) -> Response {
    if let Err(error) = written {
        tracing::error!(%error, "response serialization failed");
        return Problem::from(ApiError::internal("the response cannot be written")).into_response();
    }
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use axum::body::to_bytes;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_value_is_written_as_axum_writes_it() {
        let value = json!({"name": "a/b", "holders": [{"process_id": "p\u{1}\"", "remaining_ms": 1}], "none": null});
        let (own, theirs) = (Json(&value).into_response(), axum::Json(&value).into_response());
        assert_eq!((own.status(), own.headers()), (theirs.status(), theirs.headers()));
        let (own, theirs) = (to_bytes(own.into_body(), 1_024).await, to_bytes(theirs.into_body(), 1_024).await);
        assert_eq!(own.unwrap(), theirs.unwrap());
    }

    #[test]
    fn what_cannot_be_written_is_a_fault() {
        let keys_that_are_no_texts = BTreeMap::from([((1, 2), 3)]);
        assert_eq!(Json(keys_that_are_no_texts).into_response().status(), 500);
    }
}
