//! Validates requests about locks: owners, paths, sets of claims, and the terms of an acquire.

use std::time::Duration;

use holdfast_types::{Claim, Limits, Owner, Path, Wait, limit};
use time::OffsetDateTime;

use super::{SESSION_PREFIX, at_most, name, process_id, ttl_ms};
use crate::{ApiError, ApiResult, LockName, OwnerFields, Resource, Terms};

/// How long an acquire waits for its grant, and the latest response to this one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitOptions {
    /// For the request; at least 1 ms.
    pub wait_ms: u64,
    /// For the call.
    pub poll: Option<Duration>,
}

/// Returns the owner: exactly one of a process id and a session.
pub fn owner(fields: &OwnerFields) -> ApiResult<Owner> {
    match (&fields.process_id, &fields.session_id, &fields.holder) {
        (Some(_), Some(_), _) => {
            Err(ApiError::invalid("session_id", "session_id: only one of process_id and session_id may be given"))
        }
        (_, None, Some(_)) => Err(ApiError::invalid("holder", "holder: is allowed only with session_id")),
        (Some(id), None, None) => {
            process_id(id)?;
            Ok(Owner::Process(id.clone()))
        }
        (None, Some(id), holder) => {
            session_id(id)?;
            if let Some(holder) = holder {
                name("holder", holder)?;
            }
            Ok(Owner::Session { session_id: id.clone(), holder: holder.clone() })
        }
        (None, None, None) => {
            Err(ApiError::invalid("process_id", "process_id: one of process_id and session_id is needed"))
        }
    }
}

/// Validates the id of a session, as the service generates them.
pub fn session_id(text: &str) -> ApiResult<()> {
    name("session_id", text)?;
    if text.starts_with(SESSION_PREFIX) {
        return Ok(());
    }
    Err(ApiError::invalid("session_id", "session_id: must begin with `se_`; the service generates session ids"))
}

/// Validates how long a session may live without a keep-alive.
pub fn session_ttl_ms(is: u64, limits: &Limits) -> ApiResult<()> {
    let (min, max) = (limits.min_session_ttl_ms, limits.max_session_ttl_ms);
    if (min..=max).contains(&is) {
        return Ok(());
    }
    let error = ApiError::invalid("ttl_ms", format!("ttl_ms: must be {min} to {max}, is {is}"));
    Err(match is > max {
        true => error.at_limit(&limit::MAX_SESSION_TTL, max),
        false => error.with("limit", limit::MIN_SESSION_TTL.name),
    })
}

/// Validates the name of a request among its owner's.
pub fn request_id(text: &str) -> ApiResult<()> {
    name("request_id", text)
}

/// Returns a path of at most this many segments; no segments mean the namespace as a whole.
pub fn path(field: &str, segments: &[String], max_depth: u32) -> ApiResult<Path> {
    if segments.len() > max_depth as usize {
        let detail = format!("{field}: has {} segments, at most {max_depth} are allowed", segments.len());
        return Err(ApiError::invalid(field, detail).at_limit(&limit::PATH_DEPTH, max_depth.into()));
    }
    for segment in segments {
        name(field, segment)?;
    }
    Ok(Path(segments.to_vec()))
}

/// Returns the path of a lock to acquire.
pub fn new_lock(lock: &LockName, limits: &Limits) -> ApiResult<Path> {
    lock_of_depth(lock, limits.max_path_depth)
}

/// Returns the path of a lock that may exist already, also from when paths could be deeper.
pub fn existing_lock(lock: &LockName, limits: &Limits) -> ApiResult<Path> {
    lock_of_depth(lock, existing_depth(limits))
}

fn lock_of_depth(lock: &LockName, max_depth: u32) -> ApiResult<Path> {
    match lock {
        LockName::Flat(text) => super::lock_name(text),
        LockName::Path(segments) => path("path", segments, max_depth),
    }
}

/// A lowered limit must not keep an owner from releasing earlier holds.
fn existing_depth(limits: &Limits) -> u32 {
    limits.max_path_depth.max(Limits::default().max_path_depth)
}

/// Returns the claims of a set, in the order given.
pub fn claims(resources: &[Resource], limits: &Limits) -> ApiResult<Vec<Claim>> {
    count(resources.len(), limits.max_claims_per_request)?;
    let claim = |(index, resource): (usize, &Resource)| {
        let path = path(&format!("resources[{index}].path"), &resource.path, limits.max_path_depth)?;
        Ok(Claim { path, mode: resource.mode })
    };
    resources.iter().enumerate().map(claim).collect()
}

/// Returns the limits for locks that may exist already: a lowered limit must not keep an owner from repeating the
/// acquire of earlier holds.
pub fn limits_for_existing(limits: &Limits) -> Limits {
    let usual = Limits::default();
    Limits {
        max_claims_per_request: limits.max_claims_per_request.max(usual.max_claims_per_request),
        max_path_depth: existing_depth(limits),
        max_transition_ms: limits.max_transition_ms.max(usual.max_transition_ms),
        min_session_ttl_ms: limits.min_session_ttl_ms.min(usual.min_session_ttl_ms),
        max_session_ttl_ms: limits.max_session_ttl_ms.max(usual.max_session_ttl_ms),
        ..limits.clone()
    }
}

/// Returns the paths that a release names.
pub fn paths_to_release(paths: &[Vec<String>], limits: &Limits) -> ApiResult<Vec<Path>> {
    count(paths.len(), limits.max_claims_per_request.max(Limits::default().max_claims_per_request))?;
    let depth = existing_depth(limits);
    let checked = |(index, segments): (usize, &Vec<String>)| path(&format!("resources[{index}].path"), segments, depth);
    paths.iter().enumerate().map(checked).collect()
}

fn count(resources: usize, max: u32) -> ApiResult<()> {
    if (1..=max as usize).contains(&resources) {
        return Ok(());
    }
    let detail = format!("resources: must have 1 to {max} entries, has {resources}");
    Err(ApiError::invalid("resources", detail).at_limit(&limit::CLAIMS, max.into()))
}

/// Returns how long a hold lasts, in milliseconds: a process's has a time to live, a session's lasts as long as the
/// session.
pub fn hold_ms(owner: &Owner, terms: &Terms, limits: &Limits, now: OffsetDateTime) -> ApiResult<Option<u64>> {
    if matches!(owner, Owner::Process(_)) {
        return ttl_ms(terms.ttl_ms, terms.expires_at, terms.dlocks_expires_at_ns, limits, now).map(Some);
    }
    let given = if terms.ttl_ms.is_some() {
        "ttl_ms"
    } else if terms.expires_at.is_some() {
        "expires_at"
    } else {
        return Ok(None);
    };
    Err(ApiError::invalid(given, format!("{given}: not allowed with session_id; such holds end with the session")))
}

/// Returns the options of the wait, if the request waits.
pub fn wait_options(terms: &Terms, limits: &Limits) -> ApiResult<Option<WaitOptions>> {
    at_most("wait_ms", terms.wait_ms, &limit::WAIT, limits)?;
    if terms.poll_ms == Some(0) {
        return Err(ApiError::invalid("poll_ms", "poll_ms: must be at least 1; leave it out for no bound"));
    }
    if terms.wait_ms == 0 {
        return Ok(None);
    }
    if terms.expires_at.is_some() {
        let detail = "expires_at: not allowed with wait_ms, as the grant may come long after the call; use ttl_ms";
        return Err(ApiError::invalid("expires_at", detail));
    }
    Ok(Some(WaitOptions { wait_ms: terms.wait_ms, poll: terms.poll_ms.map(Duration::from_millis) }))
}

/// Validates how long a lock is kept from others at least, in milliseconds.
pub fn at_least_ms(at_least_ms: u64, limits: &Limits) -> ApiResult<()> {
    at_most("at_least_ms", at_least_ms, &limit::MAX_TTL, limits)
}

/// Returns that time of a request that may have been granted already, in milliseconds: a limit that was lowered since
/// must not keep a client from asking what became of it.
pub fn repeated_at_least_ms(at_least_ms: u64, limits: &Limits) -> u64 {
    at_least_ms.min(limits.max_ttl_ms.max(Limits::default().max_ttl_ms))
}

/// Rejects incompatible options: a change of mode, and an extension by token, concern one claim.
pub fn combination(terms: &Terms, claims: usize) -> ApiResult<()> {
    if terms.allow_upgrade && claims > 1 {
        return Err(ApiError::invalid("allow_upgrade", "allow_upgrade: is allowed only with one resource"));
    }
    if terms.fencing_token.is_none() {
        return Ok(());
    }
    let other = if claims > 1 {
        "several resources"
    } else if terms.wait_ms > 0 {
        "wait_ms"
    } else if terms.allow_upgrade {
        "allow_upgrade"
    } else {
        return Ok(());
    };
    let detail = format!("fencing_token: only extends the hold that has it; not allowed with {other}");
    Err(ApiError::invalid("fencing_token", detail))
}

/// Converts the options for the shard.
pub fn to_wait(waiting: Option<WaitOptions>) -> Wait {
    waiting.map_or(Wait::No, |waiting| Wait::For(waiting.wait_ms))
}

/// Validates the owners that a reset spares: process ids and session ids.
pub fn live_owners(owners: &[String]) -> ApiResult<()> {
    owners.iter().enumerate().try_for_each(|(index, owner)| name(&format!("live_owners[{index}]"), owner))
}

#[cfg(test)]
#[path = "locks_tests.rs"]
mod tests;
