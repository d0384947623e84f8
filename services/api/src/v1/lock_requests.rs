//! Converts messages of `LocksService` to requests of the service.

use holdfast_proto::v1;
use holdfast_types::Mode;

use super::convert;
use crate::{
    AcquireLock, AcquireLocks, ApiError, ApiResult, LockName, OwnerFields, ReleaseLock, ReleaseLocks, ResetNamespace,
    Resource, Terms,
};

/// Converts an acquire of one lock.
pub fn acquire(message: v1::AcquireLockRequest) -> ApiResult<AcquireLock> {
    Ok(AcquireLock {
        namespace: message.namespace,
        lock: lock_name((message.name, message.path, message.whole_namespace))?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        mode: mode("mode", message.mode)?,
        terms: Terms {
            ttl_ms: message.ttl_ms,
            expires_at: convert::parse_instant("expires_at", message.expires_at)?,
            dlocks_expires_at_ns: None,
            wait_ms: message.wait_ms,
            poll_ms: message.poll_ms,
            transition_ms: message.transition_ms,
            at_least_ms: message.at_least_ms,
            metadata: message.metadata.into_iter().collect(),
            allow_upgrade: message.allow_upgrade,
            fencing_token: message.fencing_token,
            signed: message.signed,
        },
    })
}

/// Converts an acquire of a set.
pub fn acquire_set(message: v1::AcquireLocksRequest) -> ApiResult<AcquireLocks> {
    let resource = |(index, resource): (usize, v1::Resource)| {
        Ok(Resource { path: resource.path, mode: mode(&format!("resources[{index}].mode"), resource.mode)? })
    };
    Ok(AcquireLocks {
        namespace: message.namespace,
        resources: message.resources.into_iter().enumerate().map(resource).collect::<ApiResult<_>>()?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        request_id: message.request_id,
        terms: Terms {
            ttl_ms: message.ttl_ms,
            expires_at: convert::parse_instant("expires_at", message.expires_at)?,
            dlocks_expires_at_ns: None,
            wait_ms: message.wait_ms,
            poll_ms: message.poll_ms,
            transition_ms: message.transition_ms,
            at_least_ms: message.at_least_ms,
            metadata: message.metadata.into_iter().collect(),
            allow_upgrade: message.allow_upgrade,
            fencing_token: message.fencing_token,
            signed: message.signed,
        },
    })
}

/// Converts a release of one lock.
pub fn release(message: v1::ReleaseLockRequest) -> ApiResult<ReleaseLock> {
    Ok(ReleaseLock {
        namespace: message.namespace,
        lock: lock_name((message.name, message.path, message.whole_namespace))?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        fencing_token: message.fencing_token,
    })
}

/// Converts a release of a set.
pub fn release_set(message: v1::ReleaseLocksRequest) -> ReleaseLocks {
    let paths: Vec<_> = message.resources.into_iter().map(|resource| resource.path).collect();
    ReleaseLocks {
        namespace: message.namespace,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        paths: (!paths.is_empty()).then_some(paths),
        all: message.all,
    }
}

/// Converts a reset of a namespace.
pub fn reset(message: v1::ResetNamespaceRequest) -> ApiResult<ResetNamespace> {
    let Some(live_owners) = message.live_owners else {
        let detail = "live_owners: is required; an empty list ends the holds and waits of all owners";
        return Err(ApiError::invalid("live_owners", detail));
    };
    Ok(ResetNamespace {
        namespace: message.namespace,
        live_owners: live_owners.ids,
        before_revision: message.before_revision,
    })
}

/// Returns the lock of a name, of a path, or of the whole namespace: exactly one of them.
pub fn lock_name(named: (Option<String>, Vec<String>, bool)) -> ApiResult<LockName> {
    match named {
        (Some(name), path, false) if path.is_empty() => Ok(LockName::Flat(name)),
        (None, path, false) if !path.is_empty() => Ok(LockName::Path(path)),
        (None, path, true) if path.is_empty() => Ok(LockName::Path(path)),
        (None, _, false) => Err(ApiError::invalid("name", "name: one of name, path and whole_namespace is needed")),
        (_, _, true) => {
            Err(ApiError::invalid("whole_namespace", "whole_namespace: may not be combined with name or path"))
        }
        (Some(_), _, false) => Err(ApiError::invalid("path", "path: only one of name and path may be given")),
    }
}

fn mode(field: &str, number: i32) -> ApiResult<Mode> {
    match v1::Mode::try_from(number) {
        Ok(v1::Mode::Write) => Ok(Mode::Write),
        Ok(v1::Mode::Read) => Ok(Mode::Read),
        Err(_) => Err(ApiError::invalid(field, format!("{field}: must be READ or WRITE"))),
    }
}

#[cfg(test)]
#[path = "lock_requests_tests.rs"]
mod tests;
