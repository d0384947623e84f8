//! Commands of connected sessions, which name their session by its number.

use serde::{Deserialize, Serialize};

use super::{AccountId, Claim, MessageSeq, Metadata, SessionAwait, SessionNumber, SessionSignal, Wait};
#[cfg(doc)]
use super::{Acquire, AcquireAtLeast, ConditionCommand, LocksCommand};

/// A request of a connected session. Its number stands for the namespace and for the names of the session, which would
/// otherwise be most of the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCommand {
    /// The account of the session, for fair queues and limits.
    #[serde(with = "super::ids::fixed")]
    pub account: AccountId,
    /// The session.
    pub session: SessionNumber,
    /// The sequence number of this message in its session.
    pub message: MessageSeq,
    /// What it requests.
    pub request: SessionRequest,
}

/// What a connected session requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionRequest {
    /// As [`LocksCommand::Acquire`]. Returns `Granted` if each claim has the new token in its mode.
    Acquire(SessionAcquire),
    /// As [`LocksCommand::Release`] of a request. Returns `Done` if it was granted, all of its holds ended, and none is
    /// left at their paths, provided that the connection knows the paths.
    Release {
        /// The request id.
        request_id: String,
        /// Whether the connection knows the claims of the request.
        is_known: bool,
    },
    /// As `Acquire`, with terms that few give. Known from rules 2 on; before, its command is rejected with `Malformed`.
    AcquireWith {
        /// The acquire.
        acquire: SessionAcquire,
        /// The terms.
        terms: SessionTerms,
    },
    /// As [`ConditionCommand::Await`]. Known from rules 2 on.
    Await(SessionAwait),
    /// As [`ConditionCommand::Signal`]. Known from rules 2 on.
    Signal(SessionSignal),
    /// As `Release` of a request that awaited a condition and has not heard of a grant: a signal that it had is handed
    /// on. Known from rules 2 on.
    ReleaseUnheard {
        /// The request id.
        request_id: String,
    },
}

impl SessionCommand {
    /// Returns the acquire, if it is one, and its further terms.
    pub fn as_acquire(&self) -> Option<(&SessionAcquire, &SessionTerms)> {
        static NO_TERMS: SessionTerms = SessionTerms { at_least_ms: 0, metadata: Metadata::new() };
        match &self.request {
            SessionRequest::Acquire(acquire) => Some((acquire, &NO_TERMS)),
            SessionRequest::AcquireWith { acquire, terms } => Some((acquire, terms)),
            SessionRequest::Release { .. }
            | SessionRequest::Await(_)
            | SessionRequest::Signal(_)
            | SessionRequest::ReleaseUnheard { .. } => None,
        }
    }

    pub(super) fn is_later(&self) -> bool {
        matches!(
            self.request,
            SessionRequest::AcquireWith { .. }
                | SessionRequest::Await(_)
                | SessionRequest::Signal(_)
                | SessionRequest::ReleaseUnheard { .. }
        )
    }

    /// Returns whether it ends what a request has.
    pub fn is_release(&self) -> bool {
        matches!(self.request, SessionRequest::Release { .. } | SessionRequest::ReleaseUnheard { .. })
    }
}

/// The fields of an [`Acquire`] that a connected session may give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionAcquire {
    /// The thread of the session, if it is not for the session as a whole.
    pub holder: Option<String>,
    /// The claims: at least one.
    pub claims: Vec<Claim>,
    /// As in [`Acquire`].
    pub transition_ms: u64,
    /// As in [`Acquire`].
    pub wait: Wait,
    /// As in [`Acquire`].
    pub allow_upgrade: bool,
    /// Identifies the request within its session.
    pub request_id: String,
}

/// The terms of a [`SessionAcquire`] that few give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionTerms {
    /// As in [`AcquireAtLeast`].
    pub at_least_ms: u64,
    /// Stored with each hold.
    pub metadata: Metadata,
}
