//! JSON bodies: parsing is strict, and every error names the field.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as Incoming;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use bytes::Bytes;
use holdfast_api::validate::MAX_BODY_BYTES;
use holdfast_api::{ApiError, ApiResult, Code, parse_instant};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::error::Category;
use time::OffsetDateTime;
use tokio::time::timeout;

use super::problem::Problem;
use crate::head::Head;

/// How long a body may take, so that no caller occupies a connection by sending one byte by byte.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How many bytes of an oversized body are read and discarded: a caller that is still sending when the connection
/// closes may never receive the error.
const MAX_DISCARDED_BYTES: usize = 1_024 * 1_024;

/// A JSON object in the body of a request.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts.headers, body).await?;
        if let Some(head) = parts.extensions.get::<Arc<Head>>() {
            head.set_body_bytes(bytes.len());
        }
        check_content_type(&parts.headers, &bytes)?;
        parse(&bytes).map(Self).map_err(Problem::from)
    }
}

async fn read(headers: &HeaderMap, mut body: Incoming) -> ApiResult<Bytes> {
    let is_announced_too_large = content_length(headers).is_some_and(|length| length > MAX_BODY_BYTES as u64);
    if !is_announced_too_large {
        let broken = |why: String| Err(ApiError::new(Code::InvalidArgument, format!("the body ended early: {why}")));
        match timeout(BODY_TIMEOUT, Limited::new(&mut body, MAX_BODY_BYTES).collect()).await {
            Ok(Ok(collected)) => return Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {}
            Ok(Err(error)) => return broken(error.to_string()),
            Err(_) => return broken(format!("it did not arrive within {} s", BODY_TIMEOUT.as_secs())),
        }
    }
    // A caller that sends for longer does not receive the error.
    let _ = timeout(BODY_TIMEOUT, discard(body)).await;
    Err(ApiError::new(Code::PayloadTooLarge, format!("the body is larger than {MAX_BODY_BYTES} bytes")))
}

async fn discard(mut body: Incoming) {
    let mut discarded = 0;
    while discarded < MAX_DISCARDED_BYTES {
        let Some(Ok(frame)) = body.frame().await else { return };
        discarded += frame.data_ref().map_or(0, Bytes::len);
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A body needs a JSON type; a call without a body needs none.
fn check_content_type(headers: &HeaderMap, body: &Bytes) -> ApiResult<()> {
    let given = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    if given == Some("application/json") {
        return Ok(());
    }
    let media_type = given.map(|text| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    match media_type.as_deref() {
        None if body.is_empty() => Ok(()),
        Some("application/json") => Ok(()),
        Some(other) if other.starts_with("application/") && other.ends_with("+json") => Ok(()),
        _ => Err(ApiError::new(Code::UnsupportedMediaType, "the body must have the Content-Type application/json")),
    }
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> ApiResult<T> {
    // If all fields of a call are optional, it may omit the body.
    let text = if body.is_empty() { b"{}" } else { body };
    // Only an error names the path to its field, and following the path costs as much as parsing.
    if let Ok(StrictObject(value)) = serde_json::from_slice(text) {
        return Ok(value);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize::<_, StrictObject<T>>(&mut deserializer).map_err(parse_error)?;
    let trailing = |error| ApiError::new(Code::InvalidArgument, format!("the body is not one JSON object: {error}"));
    deserializer.end().map_err(trailing)?;
    Ok(value.0)
}

fn parse_error(error: serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    let path = error.path().to_string();
    let cause = error.into_inner();
    if cause.classify() != Category::Data {
        return ApiError::new(Code::InvalidArgument, format!("the body is not JSON: {cause}"));
    }
    let message = cause.to_string();
    // Missing and repeated fields are reported at the object around them, named in the message only.
    let named = ["missing field `", "duplicate field `", "unknown field `"]
        .iter()
        .find_map(|prefix| message.strip_prefix(prefix)?.split('`').next());
    let field = match (path.as_str(), named) {
        (".", Some(name)) => name.to_owned(),
        (path, Some(name)) if path != name && !path.ends_with(&format!(".{name}")) => format!("{path}.{name}"),
        (".", None) => {
            return ApiError::new(Code::InvalidArgument, format!("the body does not match the call: {message}"));
        }
        (path, _) => path.to_owned(),
    };
    ApiError::new(Code::InvalidArgument, format!("{field}: {message}")).with("field", field)
}

/// Reads only a JSON object: derived structs would accept an array too, field by field in order.
#[derive(Debug)]
pub(super) struct StrictObject<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for StrictObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MemberVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for MemberVisitor<T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(MemberVisitor(PhantomData)).map(Self)
    }
}

/// String pairs with unique keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StringMap(pub(super) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor;
        impl<'de> Visitor<'de> for MapVisitor {
            type Value = StringMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of string pairs")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringMap, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value()?;
                    if pairs.insert(key.clone(), value).is_some() {
                        return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
                    }
                }
                Ok(StringMap(pairs))
            }
        }
        deserializer.deserialize_map(MapVisitor)
    }
}

/// An instant in RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rfc3339(pub(super) OffsetDateTime);

impl<'de> Deserialize<'de> for Rfc3339 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let expected = || D::Error::custom("must be an RFC 3339 instant such as 2030-01-31T12:00:00.000Z");
        parse_instant(&text).map(Self).ok_or_else(expected)
    }
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
