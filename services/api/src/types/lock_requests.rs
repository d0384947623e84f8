//! What operations on locks are asked: the same for every door. Doors parse, the service checks.

use holdfast_core::{Metadata, Mode};
use time::OffsetDateTime;

use super::PageRequest;

/// Who holds or waits, as a caller says it: a process id, or a session with an optional holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerFields {
    /// A name chosen by the client.
    pub process_id: Option<String>,
    /// A session of the namespace.
    pub session_id: Option<String>,
    /// Tells apart threads that share the session.
    pub holder: Option<String>,
}

impl OwnerFields {
    /// An owner that is a process id.
    pub fn process(process_id: impl Into<String>) -> Self {
        Self { process_id: Some(process_id.into()), ..Self::default() }
    }
}

/// Which lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockName {
    /// Its flat name, whatever characters it has.
    Flat(String),
    /// Segments from the root of the namespace; none for the namespace as a whole.
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
    /// Segments from the root; none for the namespace as a whole.
    pub path: Vec<String>,
    /// How; the doors put WRITE where the caller does not say.
    pub mode: Mode,
}

/// How something is acquired.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// How long it is held, in milliseconds. For a process id exactly one of this and an instant, for a session
    /// neither.
    pub ttl_ms: Option<u64>,
    /// Until when it is held, by this gateway's clock.
    pub expires_at: Option<OffsetDateTime>,
    /// The same as a dlocks client says it, in Unix nanoseconds: read back as it was written.
    pub dlocks_expires_at_ns: Option<i64>,
    /// How long it waits for the grant, in milliseconds; 0 not at all.
    pub wait_ms: u64,
    /// Bounds this one call, in milliseconds; its place in the queue stays for the next.
    pub poll_ms: Option<u64>,
    /// How long it then stays in transition, in milliseconds; 0 when the caller does not say.
    pub transition_ms: u64,
    /// Kept with the hold.
    pub metadata: Metadata,
    /// Whether a hold that the owner has may change its mode.
    pub allow_upgrade: bool,
    /// Only extend the hold of this token.
    pub fencing_token: Option<u64>,
    /// Whether the answer has signed grants.
    pub signed: bool,
}

/// An acquire of one lock.
#[derive(Clone, Debug)]
pub struct AcquireLock {
    /// Where.
    pub namespace: String,
    /// Which.
    pub lock: LockName,
    /// Who.
    pub owner: OwnerFields,
    /// How; the doors put WRITE where the caller does not say.
    pub mode: Mode,
    /// How long, and the like.
    pub terms: Terms,
}

/// An acquire of several paths at once.
#[derive(Clone, Debug)]
pub struct AcquireLocks {
    /// Where.
    pub namespace: String,
    /// What: all of it is granted, or nothing.
    pub resources: Vec<Resource>,
    /// Who.
    pub owner: OwnerFields,
    /// Names the request, so that a repeat finds its place or its holds by it.
    pub request_id: Option<String>,
    /// How long, and the like.
    pub terms: Terms,
}

/// A release of one lock.
#[derive(Clone, Debug)]
pub struct ReleaseLock {
    /// Where.
    pub namespace: String,
    /// Which.
    pub lock: LockName,
    /// Who.
    pub owner: OwnerFields,
    /// Only the hold of this token.
    pub fencing_token: Option<u64>,
}

/// A release of several paths at once.
#[derive(Clone, Debug)]
pub struct ReleaseLocks {
    /// Where.
    pub namespace: String,
    /// Who.
    pub owner: OwnerFields,
    /// The paths; absent with `all`.
    pub paths: Option<Vec<Vec<String>>>,
    /// Everything that the owner holds and waits for; of a session without a holder that of all its holders.
    pub all: bool,
}

/// A reset of a namespace.
#[derive(Clone, Debug)]
pub struct ResetNamespace {
    /// Which.
    pub namespace: String,
    /// Process ids and session ids of those that stay.
    pub live_owners: Vec<String>,
    /// Only owners older than this revision go.
    pub before_revision: Option<u64>,
}

/// A list of held locks.
#[derive(Clone, Debug, Default)]
pub struct ListLocks {
    /// Where.
    pub namespace: String,
    /// Segments of the path under which to list; empty for the whole namespace.
    pub prefix: Vec<String>,
    /// Which page.
    pub page: PageRequest,
}
