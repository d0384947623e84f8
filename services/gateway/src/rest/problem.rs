//! Errors as `application/problem+json`.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_api::{ApiError, Code, PATH_MEMBER};
use holdfast_backend::count_refusal;
use serde_json::{Map, Value};

/// An error as a REST response.
#[derive(Debug)]
pub(crate) struct Problem(Box<ApiError>);

impl From<ApiError> for Problem {
    fn from(error: ApiError) -> Self {
        Self(Box::new(error))
    }
}

/// Members that are numbers, as everywhere in JSON; gRPC has text for all of them.
const NUMERIC_MEMBERS: [&str; 3] = ["oldest", "max", "epoch"];

impl Problem {
    pub(super) fn to_json(&self) -> Value {
        let error = &self.0;
        let mut members = Map::new();
        // The ids come first, so that none of them can replace a member of the standard.
        for (name, value) in &error.ids {
            if *name == PATH_MEMBER {
                let path = members.entry(*name).or_insert_with(|| Value::Array(Vec::new()));
                path.as_array_mut().into_iter().for_each(|segments| segments.push(Value::from(value.as_str())));
                continue;
            }
            if let (true, Ok(number)) = (NUMERIC_MEMBERS.contains(name), value.parse::<u64>()) {
                members.insert((*name).to_owned(), Value::from(number));
                continue;
            }
            members.insert((*name).to_owned(), Value::from(value.as_str()));
        }
        members.insert("type".to_owned(), Value::from(format!("urn:holdfast:error:{}", error.code.name())));
        members.insert("title".to_owned(), Value::from(error.code.title()));
        members.insert("status".to_owned(), Value::from(error.code.http_status()));
        members.insert("code".to_owned(), Value::from(error.code.name()));
        members.insert("detail".to_owned(), Value::from(error.detail.as_str()));
        Value::Object(members)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        count_refusal(&self.0);
        let status = StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.to_json().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.0.code == Code::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"holdfast\""));
        }
        if let Some(seconds) = self.0.retry_after_seconds() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_problem_has_the_members_of_the_standard_whatever_the_ids_are_called() {
        for code in Code::ALL {
            let error = ApiError::new(code, "what happened").with("namespace", "demo").with("status", "mine");
            let problem = Problem::from(error).to_json();
            assert_eq!(problem["type"], format!("urn:holdfast:error:{}", code.name()));
            assert_eq!((&problem["title"], &problem["code"]), (&code.title().into(), &code.name().into()));
            assert_eq!(problem["status"], code.http_status());
            assert_eq!((&problem["detail"], &problem["namespace"]), (&"what happened".into(), &"demo".into()));
        }
    }

    #[test]
    fn what_may_be_tried_again_says_when_in_whole_seconds() {
        let header = |error: ApiError| Problem::from(error).into_response().headers().get(RETRY_AFTER).cloned();
        assert_eq!(header(ApiError::rate_limited(5, Duration::from_millis(1_200))).unwrap(), "2");
        assert_eq!(header(ApiError::new(Code::Unavailable, "no leader")).unwrap(), "1");
        assert_eq!(header(ApiError::internal("fault")), None);
    }
}
