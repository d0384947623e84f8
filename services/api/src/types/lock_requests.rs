//! Requests of operations on locks, the same for every frontend. Frontends parse, the service validates.

use holdfast_types::{Metadata, Mode};
use time::OffsetDateTime;

use super::PageRequest;

/// An owner as a caller names it: a process id, or a session with an optional holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerFields {
    /// A name chosen by the client.
    pub process_id: Option<String>,
    /// A session of the namespace.
    pub session_id: Option<String>,
    /// Distinguishes threads that share the session.
    pub holder: Option<String>,
}

impl OwnerFields {
    /// Returns an owner that is a process id.
    pub fn process(process_id: impl Into<String>) -> Self {
        Self { process_id: Some(process_id.into()), ..Self::default() }
    }
}

/// The name of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockName {
    /// Its flat name, with any characters.
    Flat(String),
    /// Segments from the root of the namespace; empty for the namespace as a whole.
    Path(Vec<String>),
}

impl From<&str> for LockName {
    fn from(name: &str) -> Self {
        Self::Flat(name.to_owned())
    }
}

/// One claim of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Segments from the root; empty for the namespace as a whole.
    pub path: Vec<String>,
    /// The mode; frontends set WRITE when the caller names none.
    pub mode: Mode,
}

/// The terms of an acquire.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// How long the lock is held, in milliseconds. A process id needs either this or an instant, a session neither.
    pub ttl_ms: Option<u64>,
    /// Until when the lock is held, by this gateway's clock.
    pub expires_at: Option<OffsetDateTime>,
    /// The same from a dlocks client, in Unix nanoseconds: it reads back what it wrote.
    pub dlocks_expires_at_ns: Option<i64>,
    /// How long the request waits for the grant, in milliseconds; 0 means that it does not wait.
    pub wait_ms: u64,
    /// Bounds this one call, in milliseconds; the queued request stays for the next call.
    pub poll_ms: Option<u64>,
    /// How long the hold then stays in transition, in milliseconds; 0 when the caller sets nothing.
    pub transition_ms: u64,
    /// How long the lock is kept from others at least, from the grant on, in milliseconds; 0 when the caller sets
    /// nothing.
    pub at_least_ms: u64,
    /// Kept with the hold.
    pub metadata: Metadata,
    /// Whether a hold that the owner has may change its mode.
    pub allow_upgrade: bool,
    /// Only extend the hold of this token.
    pub fencing_token: Option<u64>,
    /// Whether the response contains signed grants.
    pub signed: bool,
}

/// An acquire of one lock.
#[derive(Clone, Debug)]
pub struct AcquireLock {
    /// The namespace.
    pub namespace: String,
    /// The lock.
    pub lock: LockName,
    /// The owner.
    pub owner: OwnerFields,
    /// The mode; frontends set WRITE when the caller names none.
    pub mode: Mode,
    /// Times and options.
    pub terms: Terms,
}

/// An acquire of several paths at once.
#[derive(Clone, Debug)]
pub struct AcquireLocks {
    /// The namespace.
    pub namespace: String,
    /// The claims: all of them are granted, or none.
    pub resources: Vec<Resource>,
    /// The owner.
    pub owner: OwnerFields,
    /// Names the request, so that a repeat finds its position or its holds by it.
    pub request_id: Option<String>,
    /// Times and options.
    pub terms: Terms,
}

/// A release of one lock.
#[derive(Clone, Debug)]
pub struct ReleaseLock {
    /// The namespace.
    pub namespace: String,
    /// The lock.
    pub lock: LockName,
    /// The owner.
    pub owner: OwnerFields,
    /// Only the hold of this token.
    pub fencing_token: Option<u64>,
}

/// A release of several paths at once.
#[derive(Clone, Debug)]
pub struct ReleaseLocks {
    /// The namespace.
    pub namespace: String,
    /// The owner.
    pub owner: OwnerFields,
    /// The paths; absent with `all`.
    pub paths: Option<Vec<Vec<String>>>,
    /// Releases all holds and waiting requests of the owner; for a session without a holder, those of all its holders.
    pub all: bool,
}

/// A reset of a namespace.
#[derive(Clone, Debug)]
pub struct ResetNamespace {
    /// The namespace.
    pub namespace: String,
    /// Process ids and session ids of the owners that stay.
    pub live_owners: Vec<String>,
    /// Only owners older than this revision are removed.
    pub before_revision: Option<u64>,
}

/// A list of held locks.
#[derive(Clone, Debug, Default)]
pub struct ListLocks {
    /// The namespace.
    pub namespace: String,
    /// Segments of the path under which to list; empty for the whole namespace.
    pub prefix: Vec<String>,
    /// The page.
    pub page: PageRequest,
}
