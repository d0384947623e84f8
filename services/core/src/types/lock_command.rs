//! Commands of a locks shard.

use serde::{Deserialize, Serialize};

use super::{
    AccountId, Claim, FencingToken, Metadata, Mode, NamespaceMessage, NamespaceRef, Owner, Path, RequestId, Revision,
    Rules, SessionNumber,
};

/// Commands of a locks shard. Each but `Deliver` and `ExpireSessions` is refused with `NamespaceNotFound` for any but
/// the open incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocksCommand {
    /// A message from the outbox of a namespaces shard. Answers `Done`, also when it was seen before.
    Deliver {
        /// The sending shard's id.
        source: String,
        /// Its number in that shard's outbox.
        number: u64,
        /// What it says.
        message: NamespaceMessage,
    },
    /// Answers `Acquired`, or `Ignored` for an old message of a session. Refused: `QuotaExceeded`, `SessionNotFound`,
    /// `Superseded`, `RequestIdTaken`.
    Acquire(Acquire),
    /// Answers `Released`, or `Ignored`. Refused: `SessionNotFound`, `Superseded` when it comes with a message stamp.
    Release(Release),
    /// Ends all holds of a path in any state. Answers `Done`.
    Delete {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        path: Path,
    },
    /// A caller went away. Answers `Cancelled`.
    Cancel(Cancel),
    /// Ends the holds, waits and sessions of every owner that is not listed. Answers `Reset`.
    Reset(Reset),
    /// Opens or resumes a session. Answers `SessionOpened`. Refused: `SessionNotFound` for a resume of an unknown one,
    /// `IdTaken` for a new one of an id in use, `QuotaExceeded`.
    OpenSession(OpenSession),
    /// Ends a session; its holds are free at once. Answers `Done`, or `Ignored`. Refused: `SessionNotFound`, `Superseded`.
    CloseSession {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        session_id: String,
        /// Absent for a call that is not part of a connection.
        message: Option<MessageSeq>,
    },
    /// Ends sessions that were silent for too long; holds with a transition go into it first. Answers
    /// `SessionsExpired`.
    ExpireSessions {
        /// Which.
        ids: Vec<SessionNumber>,
        /// The revision of the shard that the leader knew when it found them silent: what was opened or resumed later
        /// stays.
        known_revision: Revision,
    },
    /// What a client knows after a resume. Answers `Reconciled`, or `Ignored`. Refused: `SessionNotFound`, `Superseded`.
    LockInfo(LockInfo),
    /// Several commands, each as if it came alone, one after the other with nothing in between: what a busy connection
    /// has to say at once. Answers `Batch`. Refused: `Malformed` when one of them is such a list itself,
    /// which is not read from bytes at all.
    Batch(#[serde(deserialize_with = "super::flat::commands")] Vec<LocksCommand>),
    /// The same as the acquire in it, by a call that comes in place of others. Known from rules 2 on; refused with
    /// `Malformed` before.
    Reattach(Reattach),
    /// The same as the cancel in it, for several callers. Known from rules 2 on; refused with `Malformed` before.
    CancelAttempts(CancelAttempts),
}

impl LocksCommand {
    /// The first rules by which it can be applied.
    pub fn min_rules(&self) -> Rules {
        let is_later = |command: &Self| {
            let opens = matches!(command, Self::Deliver { message: NamespaceMessage::Open2 { .. }, .. });
            opens || matches!(command, Self::Reattach(_) | Self::CancelAttempts(_))
        };
        let any_later = match self {
            Self::Batch(commands) => commands.iter().any(is_later),
            command => is_later(command),
        };
        if any_later { Rules::TWO } else { Rules::ONE }
    }

    /// Whether what is kept may be more for it, and for which account. Of a list of commands each is to be asked.
    pub fn growing_account(&self) -> Option<AccountId> {
        match self {
            Self::Acquire(acquire) | Self::Reattach(Reattach { acquire, .. }) => {
                Some(acquire.namespace.account).filter(|_| acquire.fencing_token.is_none())
            }
            Self::OpenSession(open) => Some(open.namespace.account).filter(|_| !open.resume),
            _ => None,
        }
    }

    /// The acquire that it is, and the attempts that its call replaces.
    pub fn as_acquire(&self) -> Option<(&Acquire, &[u64])> {
        match self {
            Self::Acquire(acquire) => Some((acquire, &[])),
            Self::Reattach(Reattach { acquire, abandoned }) => Some((acquire, abandoned)),
            _ => None,
        }
    }
}

/// A request for claims, granted all together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// Where.
    pub namespace: NamespaceRef,
    /// Who.
    pub owner: Owner,
    /// What: at least one.
    pub claims: Vec<Claim>,
    /// How long each hold is held, from its grant; absent for holds that live as long as a session.
    pub ttl_ms: Option<u64>,
    /// How long each hold then stays in transition; more than 49 days are taken as 49 days.
    pub transition_ms: u64,
    /// Kept with the holds; a repeat replaces it.
    pub metadata: Metadata,
    /// Only extend the hold of this token. Such a request never waits and never changes a mode.
    pub fencing_token: Option<FencingToken>,
    /// The instant that a dlocks client asked for, in nanoseconds since 1970, for display.
    pub requested_expires_at_ns: Option<i64>,
    /// Whether it waits when it can't be granted at once.
    pub wait: Wait,
    /// Whether a hold of the one claimed path may change its mode.
    pub allow_upgrade: bool,
    /// Names the request within its session (or, for a process, its wait): a repeat finds its place or its holds by it.
    /// Without it a waiting request is found by its claims.
    pub request_id: Option<String>,
    /// Which call attaches to the wait, or to the hold once granted: rising numbers, no two calls with the same. 0 for
    /// one whose caller never goes away. By rules 1 the highest owns the wait; from rules 2 on all count whose callers
    /// have not left.
    pub attempt: u64,
    /// The place of this message among those of its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// How long a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// Not at all. When it waits already it keeps its place.
    No,
    /// So many milliseconds of the shard clock; 0 is like `No`.
    For(u64),
    /// Until it is granted or its session ends. For sessions only.
    Unlimited,
}

/// Where a message of a session stands: those of a lower epoch are refused, those with a number not above the last one
/// of the epoch are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageSeq {
    /// The epoch that the open answered.
    pub epoch: u64,
    /// Rises with each message of the epoch; from 1.
    pub seq: u64,
}

/// Ends holds and waits of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Where.
    pub namespace: NamespaceRef,
    /// Who.
    pub owner: Owner,
    /// What.
    pub what: ReleaseTarget,
    /// The place of this message among those of its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// What a release is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReleaseTarget {
    /// The owner's holds of these paths, whatever requests claim them.
    Paths {
        /// Which.
        paths: Vec<Path>,
        /// Only the hold of this token.
        fencing_token: Option<FencingToken>,
    },
    /// A request by its id, waiting or granted. Each hold that no other unreleased request claims ends. The holder of a
    /// session owner does not count: ids are unique in the session.
    Request {
        /// Which.
        request_id: String,
    },
    /// All holds and waits of the owner; of a session without a holder those of all its holders. The session stays.
    All,
}

/// A caller that waited is gone: its place is given up, or, when the grant came first, its hold given back. Not by rules
/// 1 unless the attempt is still the highest, and from rules 2 on not as long as another attempt counts; nor when the hold
/// was extended by a call without an attempt, or by more calls than are kept apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    /// Where.
    pub namespace: NamespaceRef,
    /// Who waited.
    pub owner: Owner,
    /// As in the request.
    pub request_id: Option<String>,
    /// As in the request.
    pub claims: Vec<Claim>,
    /// As in the request.
    pub attempt: u64,
}

/// An acquire whose call takes over from others that left for good, or that it may be the next one of: those count no
/// more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reattach {
    /// What is asked for.
    pub acquire: Acquire,
    /// The attempts that left.
    pub abandoned: Vec<u64>,
}

/// Several callers of one request are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAttempts {
    /// One of them.
    pub cancel: Cancel,
    /// The attempts of the others.
    pub abandoned: Vec<u64>,
}

/// Ends what the owners that are not listed have, and their sessions, in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// Where.
    pub namespace: NamespaceRef,
    /// Process ids and session ids; a session's own process id does not protect it.
    pub live_owners: Vec<String>,
    /// Only owners older than this: a session is as old as its first opening, a process as the oldest of its present
    /// holds and waits.
    pub before_revision: Option<Revision>,
}

/// Opens a session or resumes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// Where.
    pub namespace: NamespaceRef,
    /// Begins with `se_`; drawn by the gateway for a new session.
    pub session_id: String,
    /// Whether the session is there already.
    pub resume: bool,
    /// Names this opening: a repeat answers as the first did, and supersedes nobody.
    pub request_id: RequestId,
    /// Shown with its holds; a resume replaces it.
    pub process_id: String,
    /// How long the session lives after the last sign of life; a resume replaces it.
    pub ttl_ms: u64,
    /// As given; a resume replaces it.
    pub metadata: Metadata,
}

/// What a client knows after a resume. Holds and waits that it does not list end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockInfo {
    /// Where.
    pub namespace: NamespaceRef,
    /// Which session.
    pub session_id: String,
    /// The place of this message among those of its session.
    pub message: Option<MessageSeq>,
    /// The holds that it believes it has.
    pub held: Vec<ReportedHold>,
    /// The ids of its requests without an answer. What they wait for or hold stays; the messages themselves are sent
    /// again after this one.
    pub pending: Vec<String>,
}

/// A hold that a client believes it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedHold {
    /// What.
    pub path: Path,
    /// How.
    pub mode: Mode,
    /// The token it was told.
    pub fencing_token: FencingToken,
}
