//! Names in the path of a request.

use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use holdfast_api::{ApiError, Code};
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// The variable segments of the route, percent-decoded one by one: `a%2Fb` is the name `a/b`, and `%2e%2e` is `..`, a
/// name like any other.
#[derive(Debug)]
pub(super) struct PathParams<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(names)) => Ok(Self(names)),
            Err(rejection) => Err(path_error(rejection)),
        }
    }
}

fn path_error(rejection: PathRejection) -> Problem {
    let PathRejection::FailedToDeserializePathParams(inner) = rejection else {
        return Problem::from(ApiError::internal("the route has no parameters"));
    };
    match inner.into_kind() {
        ErrorKind::InvalidUtf8InPathParam { key } => {
            let detail = format!("{key}: is not UTF-8 once percent-decoded");
            Problem::from(ApiError::new(Code::InvalidArgument, detail).with("field", key))
        }
        other => Problem::from(ApiError::internal(format!("the route's parameters cannot be read: {other}"))),
    }
}
