//! Validates requests. Every error is `INVALID_ARGUMENT` and names the field and the fault.

use holdfast_types::limit::{self, Limit, Value};
use holdfast_types::{
    AccountId, DEFAULT_PAGE_SIZE, Incarnation, Limits, MAX_EMAIL_BYTES, MAX_FULL_NAME_BYTES, MAX_NAME_BYTES,
    MAX_PAGE_SIZE, Metadata, Path,
};
use time::OffsetDateTime;

mod locks;
mod message_size;
mod things;

use crate::{ApiError, ApiResult};

pub use locks::*;
pub use message_size::*;
pub use things::*;

/// The prefix of session ids; no process id may have it.
pub const SESSION_PREFIX: &str = "se_";
/// Maximum bytes of an idempotency key.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;
/// Maximum namespaces that one API key may list.
pub const MAX_NAMESPACES_PER_API_KEY: usize = 100;

/// Validates a name, a path segment or a holder: 1 to 128 bytes without NUL. `..` and `a/b` are names like any other.
pub fn name(field: &str, text: &str) -> ApiResult<()> {
    bounded(field, text, 1, MAX_NAME_BYTES)
}

/// Validates a process id: a name that does not look like a session id.
pub fn process_id(text: &str) -> ApiResult<()> {
    name("process_id", text)?;
    if text.starts_with(SESSION_PREFIX) {
        return Err(ApiError::invalid("process_id", "process_id: may not begin with `se_`, as session ids do"));
    }
    Ok(())
}

/// Normalises an e-mail address: trimmed, lower-cased, with text on both sides of one `@`.
pub fn email(text: &str) -> ApiResult<String> {
    let email = text.trim().to_lowercase();
    bounded("email", &email, 3, MAX_EMAIL_BYTES)?;
    let parts: Vec<&str> = email.split('@').collect();
    let is_address = parts.len() == 2 && parts.iter().all(|part| !part.is_empty());
    if !is_address || email.chars().any(|letter| letter.is_whitespace() || letter.is_control()) {
        return Err(ApiError::invalid("email", "email: must be an address like name@example.com"));
    }
    Ok(email)
}

/// Validates an account's full name.
pub fn full_name(text: &str) -> ApiResult<()> {
    bounded("full_name", text, 1, MAX_FULL_NAME_BYTES)
}

/// Validates a description of a namespace or a key.
pub fn description(text: &str, limits: &Limits) -> ApiResult<()> {
    let max = limits.max_description_bytes;
    bounded("description", text, 0, max as usize).map_err(|error| match text.len() > max as usize {
        true => error.at_limit(&limit::DESCRIPTION_BYTES, max.into()),
        false => error,
    })
}

/// Returns the path of a flat name.
pub fn lock_name(text: &str) -> ApiResult<Path> {
    name("name", text)?;
    Ok(Path::flat(text))
}

/// Returns the prefix of a list of locks: at most as deep as a path may be.
pub fn prefix(segments: &[String], limits: &Limits) -> ApiResult<Path> {
    path("prefix", segments, limits.max_path_depth)
}

/// Validates the metadata of a hold: the limit covers keys and values together.
pub fn metadata(metadata: &Metadata, limits: &Limits) -> ApiResult<()> {
    metadata_of("metadata", metadata, limits)
}

/// Validates metadata in this field.
fn metadata_of(field: &str, metadata: &Metadata, limits: &Limits) -> ApiResult<()> {
    if metadata.contains_key("") {
        return Err(ApiError::invalid(field, format!("{field}: a key is empty")));
    }
    let (pairs, max) = (metadata.len() as u64, limit::METADATA_PAIRS.default_value());
    if pairs > max {
        let detail = format!("{field}: has {pairs} pairs, at most {max} are allowed");
        return Err(ApiError::invalid(field, detail).at_limit(&limit::METADATA_PAIRS, max));
    }
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    let max = limits.max_metadata_bytes;
    if bytes > max as usize {
        let detail = format!("{field}: has {bytes} bytes in keys and values, at most {max} are allowed");
        return Err(ApiError::invalid(field, detail).at_limit(&limit::METADATA_BYTES, max.into()));
    }
    Ok(())
}

/// Validates how long a hold stays in transition.
pub fn transition_ms(transition_ms: u64, limits: &Limits) -> ApiResult<()> {
    at_most("transition_ms", transition_ms, &limit::TRANSITION, limits)
}

/// Returns the time to live of a hold, which the caller gives in exactly one of three ways.
pub fn ttl_ms(
    ttl_ms: Option<u64>,
    expires_at: Option<OffsetDateTime>,
    dlocks_expires_at_ns: Option<i64>,
    limits: &Limits,
    now: OffsetDateTime,
) -> ApiResult<u64> {
    match (ttl_ms, expires_at, dlocks_expires_at_ns) {
        (Some(ttl_ms), None, None) => {
            check_ttl_ms(ttl_ms, limits)?;
            Ok(ttl_ms)
        }
        (None, Some(instant), None) => ms_until(instant.unix_timestamp_nanos(), now, limits.min_ttl_ms, limits),
        // The minimum does not apply: dlocks accepts any future instant.
        (None, None, Some(nanos)) => ms_until(i128::from(nanos), now, 1, limits),
        (None, None, None) => Err(ApiError::invalid("ttl_ms", "ttl_ms: one of ttl_ms and expires_at is needed")),
        _ => Err(ApiError::invalid("ttl_ms", "ttl_ms: only one of ttl_ms and expires_at may be given")),
    }
}

/// Returns an instant in milliseconds since 1970; it must be in the future.
pub fn future_instant_ms(field: &'static str, instant: OffsetDateTime, now: OffsetDateTime) -> ApiResult<u64> {
    if instant <= now {
        return Err(ApiError::invalid(field, format!("{field}: is in the past")));
    }
    let ms = instant.unix_timestamp_nanos() / 1_000_000;
    u64::try_from(ms).map_err(|_| ApiError::invalid(field, format!("{field}: is not an instant of this service")))
}

/// Returns the rows of a page.
pub fn page_size(page_size: Option<u32>) -> ApiResult<u32> {
    let size = page_size.unwrap_or(DEFAULT_PAGE_SIZE);
    range("page_size", u64::from(size), 1, u64::from(MAX_PAGE_SIZE))?;
    Ok(size)
}

/// Parses an account id: 16 lower-case hex digits.
pub fn account_id(field: &'static str, text: &str) -> ApiResult<AccountId> {
    text.parse().map_err(|error| ApiError::invalid(field, format!("{field}: {error}")))
}

/// Parses the id of one incarnation of a namespace.
pub fn incarnation(text: &str) -> ApiResult<Incarnation> {
    text.parse().map_err(|error| ApiError::invalid("id", format!("id: {error}")))
}

/// Validates an idempotency key.
pub fn idempotency_key(text: &str) -> ApiResult<()> {
    bounded("idempotency_key", text, 1, MAX_IDEMPOTENCY_KEY_BYTES)
}

/// Returns the namespaces of a new API key, sorted and without duplicates.
pub fn namespaces_of_key(mut names: Vec<String>) -> ApiResult<Vec<String>> {
    for text in &names {
        name("namespaces", text)?;
    }
    names.sort();
    names.dedup();
    if names.is_empty() || names.len() > MAX_NAMESPACES_PER_API_KEY {
        let detail = format!("namespaces: must list 1 to {MAX_NAMESPACES_PER_API_KEY} names, or be absent for all");
        return Err(ApiError::invalid("namespaces", detail));
    }
    Ok(names)
}

/// Validates an account's limits after a change: none may make the service reject or accept everything by accident.
pub fn limits(limits: &Limits) -> ApiResult<()> {
    for limit in limit::ALL {
        if let Value::OfAccount { get, min, max } = limit.value {
            range(&format!("limits.{}", limit.name), get(limits), min, max)?;
        }
    }
    range("limits.min_ttl_ms", limits.min_ttl_ms, 1, limits.max_ttl_ms)?;
    range("limits.min_session_ttl_ms", limits.min_session_ttl_ms, 1, limits.max_session_ttl_ms)
}

/// Checks a value that is only limited upwards.
fn at_most(field: &str, value: u64, limit: &Limit, limits: &Limits) -> ApiResult<()> {
    let max = limit.value_of(limits);
    range(field, value, 0, max).map_err(|error| error.at_limit(limit, max))
}

/// Validates a time to live that is given in milliseconds.
fn check_ttl_ms(ttl_ms: u64, limits: &Limits) -> ApiResult<()> {
    let checked = range("ttl_ms", ttl_ms, limits.min_ttl_ms, limits.max_ttl_ms);
    checked.map_err(|error| at_ttl_limit(error, ttl_ms, limits))
}

/// Adds the limit that a time to live violates. A minimum is not reported as `max`.
fn at_ttl_limit(error: ApiError, ttl_ms: u64, limits: &Limits) -> ApiError {
    match ttl_ms > limits.max_ttl_ms {
        true => error.at_limit(&limit::MAX_TTL, limits.max_ttl_ms),
        false => error.with("limit", limit::MIN_TTL.name),
    }
}

fn bounded(field: &str, text: &str, min: usize, max: usize) -> ApiResult<()> {
    let bytes = text.len();
    if bytes < min || bytes > max {
        return Err(ApiError::invalid(field, format!("{field}: must have {min} to {max} bytes, has {bytes}")));
    }
    if text.contains('\0') {
        return Err(ApiError::invalid(field, format!("{field}: must not contain NUL")));
    }
    Ok(())
}

fn range(field: &str, value: u64, min: u64, max: u64) -> ApiResult<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ApiError::invalid(field, format!("{field}: must be {min} to {max}, is {value}")))
}

/// Returns the whole milliseconds from now to an instant, rounded down so that no hold outlives the requested instant.
fn ms_until(instant_ns: i128, now: OffsetDateTime, min: u64, limits: &Limits) -> ApiResult<u64> {
    let left_ns = instant_ns - now.unix_timestamp_nanos();
    if left_ns < 1_000_000 {
        return Err(ApiError::invalid("expires_at", "expires_at: is in the past"));
    }
    let (max, left_ms) = (limits.max_ttl_ms, u64::try_from(left_ns / 1_000_000).unwrap_or(u64::MAX));
    if (min..=max).contains(&left_ms) {
        return Ok(left_ms);
    }
    let detail = format!("expires_at: must be {min} to {max} ms ahead, is {left_ms}");
    Err(at_ttl_limit(ApiError::invalid("expires_at", detail), left_ms, limits))
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
