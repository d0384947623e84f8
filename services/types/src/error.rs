//! Domain errors: data in a reply, never a failed `apply`.

use serde::{Deserialize, Serialize};

use super::limit::{self, Limit, Reached};
use super::{AccountId, Kind, MAX_SESSION_TABLE_BYTES, Path, Revision};

/// Why a command or query was rejected. It changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CommandError {
    /// The account does not exist.
    #[error("account {0} not found")]
    AccountNotFound(AccountId),
    /// The namespace does not exist, or another incarnation of it is open. The text is part of the contract.
    #[error("namespace not found")]
    NamespaceNotFound,
    /// The account has no such key.
    #[error("API key not found")]
    ApiKeyNotFound,
    /// The namespace has no such session; it may have ended.
    #[error("session {0} not found")]
    SessionNotFound(String),
    /// The message has an earlier epoch: another connection resumed the session since.
    #[error("the session was resumed by another connection, in epoch {epoch}")]
    Superseded {
        /// The current epoch.
        epoch: u64,
    },
    /// An unreleased request with that id has other claims.
    #[error("the request id {0:?} belongs to a request with other claims")]
    RequestIdTaken(String),
    /// The request was granted, or its wait ended.
    #[error("the request does not wait any more")]
    NotWaiting,
    /// The event history does not reach back that far.
    #[error("only events from revision {oldest} on are kept")]
    RevisionCompacted {
        /// The oldest available revision.
        oldest: Revision,
    },
    /// An account with that e-mail exists.
    #[error("an account with the e-mail {0} already exists")]
    EmailTaken(String),
    /// A namespace with that name exists in the account.
    #[error("a namespace named {0:?} already exists")]
    NamespaceTaken(String),
    /// The random id drawn by the gateway is in use; the gateway draws another.
    #[error("the generated id is already in use")]
    IdTaken,
    /// A limit is reached; existing state stays.
    #[error("{what} is limited to {max}; {hint}")]
    QuotaExceeded {
        /// What is counted, e.g. `namespaces of an account`.
        what: String,
        /// The limit.
        max: u64,
        /// The remedy.
        hint: String,
    },
    /// The requested changes are not retained any more; the reader drops its cache and starts from `now`.
    #[error("only changes from revision {oldest} on are kept")]
    ChangesCompacted {
        /// The oldest available revision.
        oldest: Revision,
        /// The revision to continue from.
        now: Revision,
    },
    /// The command is malformed or for another kind of shard.
    #[error("not for this kind of shard: {0}")]
    Malformed(String),
    /// The request conflicts with work that is not finished: ends that span several entries, or changes that other
    /// shards have yet to confirm. Always the result of applying an entry.
    #[error("{0}; try again in a second")]
    Busy(String),
    /// A node has no memory for new state. Never the result of applying an entry: the leader rejects the command before
    /// it proposes it. Known from rules 2 on.
    #[error("{0}; try again later, or somewhere with more memory")]
    Full(String),
    /// An operator has set the namespace aside, because something in it made its shard fail. Only deleting it works.
    #[error("the namespace is quarantined after a fault; ask the operator of the service")]
    Quarantined,
    /// The account makes too many changes, or newer calls than this one wait for its request. Never the result of
    /// applying an entry: the leader rejects a change before it proposes it.
    #[error("{what} is limited to {max}; make them more slowly")]
    RateLimited {
        /// What is counted.
        what: String,
        /// The limit.
        max: u64,
        /// When one more is allowed, in milliseconds from now.
        wait_ms: u64,
    },
    /// The command is a part of a batch that was never written. Never the result of applying an entry. It says nothing
    /// about an earlier copy of the command.
    #[error("{0}; try again in a second")]
    NotProposed(String),
    /// There is no such thing, or one with another id.
    #[error("there is no such {}", kind.name())]
    PrimitiveNotFound {
        /// Its kind.
        kind: Kind,
        /// Its path.
        path: Path,
    },
    /// A thing of that kind and path exists with other parameters.
    #[error("a {} with that path already exists, with other parameters", kind.name())]
    PrimitiveTaken {
        /// Its kind.
        kind: Kind,
        /// Its path.
        path: Path,
    },
    /// The request contradicts the thing that it is for.
    #[error("{0}")]
    InvalidArgument(String),
    /// The session is of before the epoch of its leader, which does not know yet what it holds: a report of its gateway
    /// comes first. Never the result of applying an entry.
    #[error("the leader of the lock table does not know yet what the session holds; try again in a second")]
    Unreported {
        /// The epoch of the leader.
        table_epoch: Revision,
    },
}

impl CommandError {
    /// Returns the refusal of one more request of a session that may have this many.
    pub fn too_many_requests(max: u64) -> Self {
        let what = "the number of requests of a session that are not released".to_owned();
        Self::QuotaExceeded { what, max, hint: "release requests by their ids or have the limit raised".to_owned() }
    }

    /// Returns the refusal of a request of a session that has too much to be reported to the next leader.
    pub fn too_many_table_bytes() -> Self {
        let what = "the bytes of a session's requests in a lock table in memory".to_owned();
        let hint = "release requests, or share them among sessions".to_owned();
        Self::QuotaExceeded { what, max: MAX_SESSION_TABLE_BYTES, hint }
    }

    /// Returns the limit that is reached, if the error is about one.
    pub fn limit(&self) -> Option<&'static Limit> {
        self.reached().map(|reached| reached.limit)
    }

    /// Returns the limit that is reached and what it allows, if the error is about one.
    pub fn reached(&self) -> Option<Reached> {
        match self {
            Self::QuotaExceeded { what, max, .. } | Self::RateLimited { what, max, .. } => {
                let limit = limit::ALL.iter().copied().find(|limit| limit.what.contains(&what.as_str()))?;
                Some(Reached { limit, max: *max })
            }
            Self::Busy(reason) | Self::Full(reason) | Self::NotProposed(reason) => Reached::of_text(reason),
            _ => None,
        }
    }
}
