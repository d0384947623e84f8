//! The head of a call, as every frontend reads it: request id, credential, deadline and idempotency key.

use std::cell::Cell;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use holdfast_api::{ApiError, ApiResult};
use holdfast_backend::{CallContext, CallReport, DEFAULT_DEADLINE};
use tokio::time::Instant;
use uuid::{Builder, Uuid};

/// Names a call in logs, in the response and in support requests.
pub(crate) static REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("holdfast-request-id");
/// Of a response from a locks shard: the address of the gateway in the node that leads it.
static LEADER_HEADER: HeaderName = HeaderName::from_static("holdfast-leader");
/// How long a REST caller waits for its response, in milliseconds.
pub(crate) const TIMEOUT_HEADER: &str = "holdfast-timeout-ms";
/// How long a gRPC caller waits for its response: a number and a unit.
const GRPC_TIMEOUT_HEADER: &str = "grpc-timeout";
/// The same two, parsed once.
static TIMEOUT_NAME: HeaderName = HeaderName::from_static(TIMEOUT_HEADER);
static GRPC_TIMEOUT_NAME: HeaderName = HeaderName::from_static(GRPC_TIMEOUT_HEADER);
static IDEMPOTENCY_KEY_NAME: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest deadline of a caller; longer ones are cut to this.
pub(crate) const MAX_DEADLINE: Duration = Duration::from_secs(660);
/// How long after the deadline a frontend responds on its own: the service keeps deadlines, and its errors say more.
const RESPONSE_GRACE: Duration = Duration::from_secs(1);
const MAX_REQUEST_ID_BYTES: usize = 128;
/// The delay of a rate-limited response: a tenth of the shortest `Retry-After`.
const THROTTLE_DELAY: Duration = Duration::from_millis(100);

/// The head of a call, read once by the frontend, except for the credential, which is not copied. The operation rejects
/// malformed parts, not this module, so that the rejection takes the same path as every other. Every request carries it
/// in an [`Arc`] as an extension.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) request_id: Arc<str>,
    deadline: ApiResult<Instant>,
    /// Whether the caller set a deadline.
    is_own_deadline: bool,
    peer: Option<IpAddr>,
    /// Written by the service and by whoever reads the body, while the call runs.
    report: CallReport,
    idempotency_key: ApiResult<Option<String>>,
}

impl Head {
    /// Reads the head of a REST call.
    pub(crate) fn rest(headers: &HeaderMap) -> Self {
        Self::read(headers, &TIMEOUT_NAME, rest_timeout)
    }

    /// Reads the head of a gRPC call.
    pub(crate) fn grpc(headers: &HeaderMap) -> Self {
        Self::read(headers, &GRPC_TIMEOUT_NAME, grpc_timeout)
    }

    fn read(headers: &HeaderMap, timeout: &HeaderName, parse: fn(&str) -> ApiResult<Duration>) -> Self {
        Self {
            request_id: request_id(headers),
            deadline: single(headers, timeout).and_then(|text| deadline(text, parse)),
            is_own_deadline: headers.contains_key(timeout),
            peer: None,
            report: CallReport::default(),
            idempotency_key: single(headers, &IDEMPOTENCY_KEY_NAME).map(|key| key.map(str::to_owned)),
        }
    }

    /// Returns the head of a call from this address.
    pub(crate) fn with_peer(self, peer: Option<IpAddr>) -> Self {
        Self { peer, ..self }
    }

    /// Returns the context of the call for the service.
    pub(crate) fn context(&self) -> ApiResult<CallContext> {
        Ok(CallContext {
            request_id: Arc::clone(&self.request_id),
            deadline: self.deadline.clone()?,
            idempotency_key: self.idempotency_key.clone()?,
            is_own_deadline: self.is_own_deadline,
            peer: self.peer,
            report: self.report.clone(),
        })
    }

    /// Records the length of the body in bytes.
    pub(crate) fn set_body_bytes(&self, bytes: usize) {
        self.report.set_body_bytes(bytes);
    }

    /// Returns the response of the service, unless the frontend's deadline passes first. A waiting call may extend its
    /// deadline meanwhile.
    pub(crate) async fn within_deadline<T>(&self, answered: impl Future<Output = T>) -> Option<T> {
        let mut answered = pin!(answered);
        let first = self.deadline.clone().unwrap_or_else(|_| Instant::now() + DEFAULT_DEADLINE) + RESPONSE_GRACE;
        loop {
            let waited = self.report.deadline_extension();
            match tokio::time::timeout_at(first + waited, &mut answered).await {
                Ok(answer) => return Some(answer),
                Err(_) if self.report.deadline_extension() > waited => {}
                Err(_) => return None,
            }
        }
    }

    /// Adds to a response the headers that do not depend on the operation: the request id and, if known, the leader of
    /// the locks shard that answered.
    pub(crate) fn add_response_headers(&self, headers: &mut HeaderMap) {
        // Accepted ids are checked, and generated ids are hex digits: both are always valid here.
        let id = HeaderValue::from_str(&self.request_id).unwrap_or_else(|_| HeaderValue::from_static("unknown"));
        headers.insert(&REQUEST_ID_HEADER, id);
        // The cluster config admits only addresses that are valid here.
        let leader = self.report.leader_gateway().and_then(|address| HeaderValue::from_str(&address).ok());
        if let Some(leader) = leader {
            headers.insert(&LEADER_HEADER, leader);
        }
    }
}

/// Delays a rate-limited response, so that a caller that retries at once, despite the error, takes little of the shared
/// capacity.
pub(crate) async fn throttle() {
    tokio::time::sleep(THROTTLE_DELAY).await;
}

/// Returns the parent span that the caller names.
pub(crate) fn trace_parent(headers: &HeaderMap) -> Option<&str> {
    headers.get("traceparent")?.to_str().ok()
}

fn request_id(headers: &HeaderMap) -> Arc<str> {
    let given = headers.get(&REQUEST_ID_HEADER).and_then(|value| value.to_str().ok());
    match given.filter(|id| is_request_id(id)) {
        Some(id) => Arc::from(id),
        None => new_request_id(),
    }
}

thread_local! {
    /// A hash function with random keys of its own, and the next number to hash. Random bytes of the system would be a
    /// system call for each id.
    static ID_SOURCE: (RandomState, Cell<u64>) = (RandomState::new(), Cell::new(0));
}

/// Returns another id each time, in the form of a random UUID without hyphens.
fn new_request_id() -> Arc<str> {
    let halves = ID_SOURCE.with(|(hasher, next)| {
        let number = next.get();
        next.set(number.wrapping_add(2));
        [hasher.hash_one(number), hasher.hash_one(number.wrapping_add(1))]
    });
    let random = (u128::from(halves[0]) << 64) | u128::from(halves[1]);
    let id = Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
    Arc::from(&*id.simple().encode_lower(&mut Uuid::encode_buffer()))
}

/// Accepts only ids from a caller that cannot confuse a log line or a header.
fn is_request_id(id: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.bytes().all(letters)
}

/// Returns the text after `Bearer `, if there is such a header.
pub(crate) fn bearer(headers: &HeaderMap) -> ApiResult<Option<&str>> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::unauthenticated("authorization: given more than once"));
    }
    let text = value.to_str().unwrap_or_default();
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        _ => Err(ApiError::unauthenticated("authorization: must be `Bearer` and an API key or the operator token")),
    }
}

/// Returns the value of a header that may occur once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> ApiResult<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::invalid(name.as_str(), format!("{name}: given more than once")));
    }
    let text =
        value.to_str().map_err(|_| ApiError::invalid(name.as_str(), format!("{name}: must be visible ASCII")))?;
    Ok(Some(text))
}

fn deadline(text: Option<&str>, read: impl FnOnce(&str) -> ApiResult<Duration>) -> ApiResult<Instant> {
    let timeout = text.map_or(Ok(DEFAULT_DEADLINE), read)?;
    Ok(Instant::now() + timeout.min(MAX_DEADLINE))
}

fn rest_timeout(text: &str) -> ApiResult<Duration> {
    match digits(text, 12) {
        Some(millis) if millis > 0 => Ok(Duration::from_millis(millis)),
        _ => Err(ApiError::invalid(
            TIMEOUT_HEADER,
            format!("{TIMEOUT_HEADER}: must be a number of milliseconds, at least 1"),
        )),
    }
}

fn grpc_timeout(text: &str) -> ApiResult<Duration> {
    let malformed = || {
        ApiError::invalid(
            GRPC_TIMEOUT_HEADER,
            format!("{GRPC_TIMEOUT_HEADER}: must be up to 8 digits and one of H, M, S, m, u, n"),
        )
    };
    let unit = text.chars().next_back().ok_or_else(malformed)?;
    let amount = digits(&text[..text.len() - unit.len_utf8()], 8).ok_or_else(malformed)?;
    match unit {
        'H' => Ok(Duration::from_secs(amount * 3_600)),
        'M' => Ok(Duration::from_secs(amount * 60)),
        'S' => Ok(Duration::from_secs(amount)),
        'm' => Ok(Duration::from_millis(amount)),
        'u' => Ok(Duration::from_micros(amount)),
        'n' => Ok(Duration::from_nanos(amount)),
        _ => Err(malformed()),
    }
}

fn digits(text: &str, at_most: usize) -> Option<u64> {
    let well_formed = (1..=at_most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if well_formed { text.parse().ok() } else { None }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
