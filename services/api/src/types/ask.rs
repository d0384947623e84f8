//! Requests to release what somebody holds, and what holds keep of them.

use serde::Serialize;
use utoipa::ToSchema;

use super::{Lock, LockName, PoolInfo, SemaphoreInfo};
use crate::Timestamp;

/// A request to the owners of a lock, a semaphore or a pool to release it; the call says of which kind.
#[derive(Clone, Debug)]
pub struct AskRelease {
    /// The namespace.
    pub namespace: String,
    /// Its name or path. Only a lock can be that of the whole namespace.
    pub name: LockName,
    /// Only the hold that has this member of a pool.
    pub member: Option<String>,
    /// For people; empty when absent.
    pub reason: Option<String>,
    /// How long the owners are given, in milliseconds. Absent if the caller names no time; with `force` that is none at
    /// all.
    pub within_ms: Option<u64>,
    /// Ends what is still held then.
    pub force: bool,
}

/// A request to release, as a hold keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ReleaseRequest)]
pub struct ReleaseRequestInfo {
    /// Who asked: the id of an API key.
    pub by: String,
    /// As given.
    pub reason: String,
    /// How long the owner was given; absent if the request named no time.
    pub within_ms: Option<u64>,
    /// Wall clock at the request.
    pub requested_at: Timestamp,
    /// The remainder of that time or, with `force`, the time until the hold ends; absent without either.
    pub remaining_ms: Option<u64>,
    /// Whether the hold ends then, by this request or by an earlier one.
    pub force: bool,
}

/// The response of a request to release a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AskLockAnswer {
    /// How many holds are asked for.
    pub asked: u64,
    /// Whether there may be more.
    pub truncated: bool,
    /// The current state of the lock.
    pub lock: Lock,
}

/// The response of a request to release permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AskSemaphoreAnswer {
    /// How many holds are asked for.
    pub asked: u64,
    /// Whether there are more.
    pub truncated: bool,
    /// The semaphore as it now is.
    pub semaphore: SemaphoreInfo,
}

/// The response of a request to return members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AskPoolAnswer {
    /// How many holds are asked for.
    pub asked: u64,
    /// Whether there are more.
    pub truncated: bool,
    /// The pool as it now is.
    pub pool: PoolInfo,
}
