//! What is said on the connection of a session, whatever carries it.

use holdfast_core::{Metadata, ReportedHold, RevokedReason, SessionEnd};

use crate::error::ApiError;
use crate::service::{BlockerInfo, Holder, ReasonInfo, Resource};

/// A message of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientMessage {
    /// Rises with each message of the connection; one that does not raise it is ignored.
    pub(crate) seq: u64,
    pub(crate) payload: ClientPayload,
}

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientPayload {
    Open(Open),
    LockInfo(LockInfo),
    Lock(Lock),
    Release(Release),
    ReleaseAll,
    KeepAlive,
    Close,
}

/// Opens a session, or resumes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) namespace: String,
    /// The session to resume.
    pub(crate) session_id: Option<String>,
    pub(crate) process_id: String,
    pub(crate) ttl_ms: u64,
    pub(crate) metadata: Metadata,
}

/// What the client of a resumed session knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockInfo {
    /// The holds that it believes it has.
    pub(crate) held: Vec<ReportedHold>,
    /// Its messages without an answer.
    pub(crate) pending: Vec<Pending>,
}

/// A message without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    Lock(Lock),
    Release(Release),
}

/// A request for claims, granted all together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    /// Names the request until it is released.
    pub(crate) request_id: String,
    pub(crate) resources: Vec<Resource>,
    /// Tells apart threads that share the session.
    pub(crate) holder: Option<String>,
    /// How long the holds stay in transition when the session expires, in milliseconds.
    pub(crate) transition_ms: u64,
    pub(crate) allow_upgrade: bool,
    /// Whether it is refused, and does not wait, when it cannot be granted at once.
    pub(crate) only_try: bool,
}

/// The end of a request, waiting or granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) request_id: String,
}

/// A message of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerMessage {
    /// The session is open on this connection.
    Opened { session_id: String, epoch: u64, ttl_ms: u64, resumed: bool },
    /// The session lost a hold by no doing of its own.
    Revoked { path: Vec<String>, reason: RevokedReason, current_owner: Option<Holder> },
    /// The request holds all its claims.
    Acquired { request_id: String, fencing_token: u64 },
    /// The request waits.
    Enqueued { request_id: String, queue_position: Option<u64>, blockers: Vec<BlockerInfo> },
    /// The request is released. No request is named when everything was released by a client that had named none.
    Ready { request_id: Option<String> },
    /// The request has nothing and does not wait.
    Refused { request_id: String, why: RefusalCause },
    /// The session lives for so many milliseconds unless it is heard of.
    KeptAlive { remaining_ms: u64 },
    /// The session ended, or is another connection's. Nothing comes after it.
    SessionEnded { reason: EndReason },
    /// What was asked was not done or, with `DEADLINE_EXCEEDED` and `INTERNAL`, may not have been.
    Error { error: ApiError, request_id: Option<String> },
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCause {
    /// By what others hold, or by how its wait ended.
    Reason(ReasonInfo),
    /// By a limit or for its content. Nothing was done.
    Fault(ApiError),
}

/// Why a connection has no session any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The session ended.
    Ended(SessionEnd),
    /// Another connection resumed it.
    Superseded,
}

impl EndReason {
    /// The public name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ended(reason) => reason.name(),
            Self::Superseded => "SUPERSEDED",
        }
    }
}
