//! Domain errors: data in a reply, never a failed `apply`.

use serde::{Deserialize, Serialize};

use super::{AccountId, Revision};

/// Why a command or query had no effect. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CommandError {
    /// No such account.
    #[error("account {0} not found")]
    AccountNotFound(AccountId),
    /// No such namespace, or another incarnation of it. The text is part of the contract.
    #[error("namespace not found")]
    NamespaceNotFound,
    /// No such key in that account.
    #[error("API key not found")]
    ApiKeyNotFound,
    /// No such session in that namespace; it may have ended.
    #[error("session {0} not found")]
    SessionNotFound(String),
    /// The message is of an earlier epoch: another connection resumed the session since.
    #[error("the session was resumed by another connection, in epoch {epoch}")]
    Superseded {
        /// The present epoch.
        epoch: u64,
    },
    /// An unreleased request of that id has other claims.
    #[error("the request id {0:?} belongs to a request with other claims")]
    RequestIdTaken(String),
    /// The request was granted, or its wait ended.
    #[error("the request does not wait any more")]
    NotWaiting,
    /// The history of events does not reach back so far.
    #[error("events are remembered from revision {oldest} on only")]
    RevisionCompacted {
        /// The oldest revision that can be asked for.
        oldest: Revision,
    },
    /// An account with that e-mail exists.
    #[error("an account with the e-mail {0} already exists")]
    EmailTaken(String),
    /// A namespace of that name exists in the account.
    #[error("a namespace named {0:?} already exists")]
    NamespaceTaken(String),
    /// The random id drawn by the gateway is in use; it draws another.
    #[error("the id drawn is already in use")]
    IdTaken,
    /// A limit is reached; what exists stays.
    #[error("{what} is limited to {max}; {hint}")]
    QuotaExceeded {
        /// What is counted, e.g. `namespaces of an account`.
        what: String,
        /// The limit.
        max: u64,
        /// What to do about it.
        hint: String,
    },
    /// The changes asked for are no longer remembered; the reader drops what it keeps and starts from `now`.
    #[error("changes are remembered from revision {oldest} on only")]
    ChangesCompacted {
        /// The oldest revision that can be asked for.
        oldest: Revision,
        /// Where to go on.
        now: Revision,
    },
    /// It is for another kind of shard.
    #[error("not for this kind of shard: {0}")]
    Malformed(String),
    /// What was asked for waits for something that goes on over several entries. Known from rules 2 on.
    #[error("{0}; try again in a second")]
    Busy(String),
    /// A node has no memory for anything new. Never part of a state: the leader says so before it proposes. Known from
    /// rules 2 on.
    #[error("{0}; try again later, or somewhere with more memory")]
    Full(String),
}

/// What is counted, as refusals say it, and the account's limit of it.
const LIMITS: &[(&str, &str)] = &[
    ("the number of owners that wait and are waited for", "max_tangle"),
    ("the number of claims of owners that wait and are waited for", "max_tangle"),
    ("the number of holds of owners that wait and are waited for", "max_tangle"),
    ("the number of steps to find out who waits for whom", "max_tangle"),
    ("the number of waiting requests of an owner", "max_waiting_per_owner"),
    ("the number of holds and waiting claims of an owner that waits", "max_holds_of_waiting_owner"),
    ("the number of holds of owners that wait, when a request waits above holds", "max_holds_of_waiting_owner"),
    ("the number of waiting requests in a namespace", "max_waiting_per_namespace"),
    ("the number of requests that wait for a lock", "max_waiting_per_lock"),
    ("the number of holders of a session that hold or wait", "max_owners_per_session"),
    ("the number of requests of a session that are not released", "max_requests_per_session"),
    ("the number of requests that claim one hold", "max_requests_per_hold"),
    ("the number of claims in a request", "max_claims_per_request"),
    ("the number of segments in a path", "max_path_depth"),
    ("the number of holds in a namespace", "max_holds_per_namespace"),
    ("the number of readers of a lock", "max_readers_per_lock"),
    ("the number of sessions in a namespace", "max_sessions_per_namespace"),
    ("the state of the account in this shard, in bytes,", "max_state_bytes"),
    ("the state of the account in this node, in bytes,", "max_node_bytes"),
    ("the number of namespaces of an account", "max_number_of_namespaces"),
    ("the length of a description in bytes", "max_description_bytes"),
];

impl CommandError {
    /// The field of an account's limits that is reached, if it is one of those.
    pub fn limit(&self) -> Option<&'static str> {
        let Self::QuotaExceeded { what, .. } = self else { return None };
        LIMITS.iter().find(|(said, _)| said == what).map(|(_, limit)| *limit)
    }
}
