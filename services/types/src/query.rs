//! Queries of all three kinds of shard, which need no log entry.

use serde::{Deserialize, Serialize};

use super::{
    AccountId, AuditCursor, BarrierQuery, Claim, ConditionQuery, FencingToken, Kinds, LatchQuery, NamespaceRef, Owner,
    Path, PermitQuery, ReportedHold, ReportedPermits, Revision, SessionKeepAlive, WaitId,
};

/// A query, which needs no log entry. The reply comes from the last applied entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// Returns `Account`.
    Account {
        /// The account.
        id: AccountId,
    },
    /// Returns `Accounts`, in order of id.
    Accounts {
        /// Start after this one.
        after: Option<AccountId>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `ApiKey`, of any account: for authentication.
    ApiKey {
        /// The id of the key.
        key_id: String,
    },
    /// Returns `ApiKeys`, in order of creation.
    ApiKeys {
        /// The account of the keys.
        account: AccountId,
    },
    /// Returns `AccountChanges`. Errors: `ChangesCompacted`.
    AccountChanges {
        /// Changes after this revision.
        after: Revision,
    },
    /// Returns `Namespace`.
    Namespace {
        /// The account of the namespace.
        account: AccountId,
        /// The name of the namespace.
        name: String,
    },
    /// Returns `Namespaces`, in order of name. Errors: `AccountNotFound`.
    Namespaces {
        /// The account of the namespaces.
        account: AccountId,
        /// Start after this one.
        after: Option<String>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `Lock`, with at most 1,000 readers.
    Lock {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
    },
    /// Returns `Locks`: held locks at or below a path, in path order.
    Locks {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        prefix: Path,
        /// Start after this one.
        after: Option<Path>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `Checked`.
    Check {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
        /// The check is true exactly while the hold with this token is held.
        fencing_token: FencingToken,
    },
    /// Returns `Session`. Errors: `SessionNotFound`.
    Session {
        /// The namespace.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
    },
    /// Returns `Sessions`, in order of id.
    Sessions {
        /// The namespace.
        namespace: NamespaceRef,
        /// Start after this one.
        after: Option<String>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `Waits`: waiting requests, in order of arrival.
    Waits {
        /// The namespace.
        namespace: NamespaceRef,
        /// Start after this one.
        after: Option<WaitId>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `Events`. Errors: `RevisionCompacted`.
    Events {
        /// The namespace.
        namespace: NamespaceRef,
        /// From this revision on, inclusive. If absent, from now on: the response has no events, only the revision to
        /// continue from.
        from_revision: Option<Revision>,
        /// Only events with a claim at, below or above this path; the empty path matches all events, even those without
        /// claims.
        prefix: Path,
        /// Only events of these kinds of things.
        kinds: Kinds,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `Usage`.
    Usage {
        /// The namespace.
        namespace: NamespaceRef,
    },
    /// A keep-alive of a session, which its leader records. Returns `Session`. Errors: `SessionNotFound`, `Superseded`.
    KeepAlive {
        /// The namespace.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
        /// The epoch of the connection; absent for a call that is not part of a connection.
        epoch: Option<u64>,
    },
    /// Compares the holds that a client reports with those of its session. Changes nothing. Returns `Reconciled`, in
    /// which nothing ended. Errors: `SessionNotFound`.
    ReconcileHolds {
        /// The namespace.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
        /// The holds that the client reports.
        held: Vec<ReportedHold>,
    },
    /// The current status of a waiting request. Returns `Acquired` with `Enqueued`. Errors: `NotWaiting`.
    WaitStatus {
        /// The namespace.
        namespace: NamespaceRef,
        /// The wait.
        wait: WaitId,
    },
    /// Returns `KeyUse`, for those keys that were used, in order of key id. Errors: `AccountNotFound`.
    KeyUse {
        /// The account of the keys.
        account: AccountId,
    },
    /// Returns `AuditRecords`. Any shard serves this.
    Audit {
        /// The account; absent for all.
        account: Option<AccountId>,
        /// Records before this one; absent for the latest.
        before: Option<AuditCursor>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `AccountUsage` of a locks shard.
    AccountUsage {
        /// The account.
        account: AccountId,
    },
    /// Returns `Queue`: waiting requests with their blockers, in order of arrival.
    Queue {
        /// The namespace.
        namespace: NamespaceRef,
        /// Start after this one.
        after: Option<WaitId>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `Holds`.
    Holds {
        /// The namespace.
        namespace: NamespaceRef,
        /// The owner.
        owner: Owner,
        /// The paths, each in its mode.
        claims: Vec<Claim>,
    },
    /// Returns `AccountState` of a locks shard.
    AccountState {
        /// The account.
        account: AccountId,
    },
    /// Keep-alives of sessions in the locks shards of one group, whose leader records them. Returns `KeptAlive`.
    KeepAlives {
        /// At most [`MAX_KEEP_ALIVES`](super::MAX_KEEP_ALIVES).
        sessions: Vec<SessionKeepAlive>,
    },
    /// About latches.
    Latch(LatchQuery),
    /// About semaphores and pools.
    Permit(PermitQuery),
    /// As [`Self::ReconcileHolds`], for holds of semaphores and pools, and arrivals at barriers. Returns
    /// `PermitsReconciled`. Errors: `SessionNotFound`.
    ReconcilePermits {
        /// The namespace.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
        /// The holds that the client reports.
        held: Vec<ReportedPermits>,
    },
    /// About barriers.
    Barrier(BarrierQuery),
    /// About conditions.
    Condition(ConditionQuery),
    /// Returns `TableState`. Errors: `InvalidArgument` if the lock table is in the log.
    TableState {
        /// The namespace.
        namespace: NamespaceRef,
    },
}

impl Query {
    /// Returns the namespace of a query about its lock table or its events.
    pub fn lock_table(&self) -> Option<&NamespaceRef> {
        match self {
            Self::Lock { namespace, .. }
            | Self::Locks { namespace, .. }
            | Self::Check { namespace, .. }
            | Self::Waits { namespace, .. }
            | Self::Queue { namespace, .. }
            | Self::Holds { namespace, .. }
            | Self::WaitStatus { namespace, .. }
            | Self::Events { namespace, .. }
            | Self::ReconcileHolds { namespace, .. } => Some(namespace),
            _ => None,
        }
    }
}
