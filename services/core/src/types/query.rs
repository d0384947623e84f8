//! Queries: what is asked without a log entry, of all three kinds of shard.

use serde::{Deserialize, Serialize};

use super::{AccountId, AuditCursor, Claim, FencingToken, NamespaceRef, Owner, Path, ReportedHold, Revision, WaitId};

/// What is asked without a log entry. Answered from the last applied entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// Answers `Account`.
    Account {
        /// Which.
        id: AccountId,
    },
    /// Answers `Accounts`, in order of id.
    Accounts {
        /// After this one.
        after: Option<AccountId>,
        /// At most so many.
        limit: u32,
    },
    /// Answers `ApiKey`, whoever's it is: for authentication.
    ApiKey {
        /// Which.
        key_id: String,
    },
    /// Answers `ApiKeys`, in order of creation.
    ApiKeys {
        /// Whose.
        account: AccountId,
    },
    /// Answers `AccountChanges`. Refused: `ChangesCompacted`.
    AccountChanges {
        /// Changes after this revision.
        after: Revision,
    },
    /// Answers `Namespace`.
    Namespace {
        /// Whose.
        account: AccountId,
        /// Which.
        name: String,
    },
    /// Answers `Namespaces`, in order of name. Refused: `AccountNotFound`.
    Namespaces {
        /// Whose.
        account: AccountId,
        /// After this one.
        after: Option<String>,
        /// At most so many.
        limit: u32,
    },
    /// Answers `Lock`, with all its readers.
    Lock {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        path: Path,
    },
    /// Answers `Locks`: held locks under a path, in order of path.
    Locks {
        /// Where.
        namespace: NamespaceRef,
        /// Under this path, itself included.
        prefix: Path,
        /// After this one.
        after: Option<Path>,
        /// At most so many.
        limit: u32,
    },
    /// Answers `Checked`.
    Check {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        path: Path,
        /// True exactly while the hold of this token is held.
        fencing_token: FencingToken,
    },
    /// Answers `Session`. Refused: `SessionNotFound`.
    Session {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        session_id: String,
    },
    /// Answers `Sessions`, in order of id.
    Sessions {
        /// Where.
        namespace: NamespaceRef,
        /// After this one.
        after: Option<String>,
        /// At most so many.
        limit: u32,
    },
    /// Answers `Waits`: waiting requests, in the order in which they began to wait.
    Waits {
        /// Where.
        namespace: NamespaceRef,
        /// After this one.
        after: Option<WaitId>,
        /// At most so many.
        limit: u32,
    },
    /// Answers `Events`. Refused: `RevisionCompacted`.
    Events {
        /// Where.
        namespace: NamespaceRef,
        /// From this revision on, inclusive; absent means from now, and answers no events but where to go on.
        from_revision: Option<Revision>,
        /// Only events with a claim that is this path, below it or above it; the empty path lets all pass, also those
        /// without claims.
        prefix: Path,
        /// At most so many.
        limit: u32,
    },
    /// Answers `Usage`.
    Usage {
        /// Where.
        namespace: NamespaceRef,
    },
    /// A sign of life of a session, which its leader notes. Answers `Session`. Refused: `SessionNotFound`,
    /// `Superseded`.
    KeepAlive {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        session_id: String,
        /// That of the connection; absent for a call that is not part of a connection.
        epoch: Option<u64>,
    },
    /// What a session lost of what its client believes to hold. Changes nothing. Answers `Reconciled`, in which nothing
    /// ended. Refused: `SessionNotFound`.
    ReconcileHolds {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        session_id: String,
        /// The holds that the client believes it has.
        held: Vec<ReportedHold>,
    },
    /// A waiting request as it stands now. Answers `Acquired` with `Enqueued`. Refused: `NotWaiting`.
    WaitStatus {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        wait: WaitId,
    },
    /// Answers `KeyUsageReporter`, of those keys that were used, in order of key id. Refused: `AccountNotFound`.
    KeyUse {
        /// Whose.
        account: AccountId,
    },
    /// Answers `AuditRecords`. Any shard answers this.
    Audit {
        /// Whose; absent for all.
        account: Option<AccountId>,
        /// Records before this one; absent for the latest.
        before: Option<AuditCursor>,
        /// At most so many.
        limit: u32,
    },
    /// Answers `AccountUsage`, of a locks shard.
    AccountUsage {
        /// Whose.
        account: AccountId,
    },
    /// Answers `Queue`: waiting requests with what each waits for, in the order in which they began to wait.
    Queue {
        /// Where.
        namespace: NamespaceRef,
        /// After this one.
        after: Option<WaitId>,
        /// At most so many.
        limit: u32,
    },
    /// Answers `Holds`.
    Holds {
        /// Where.
        namespace: NamespaceRef,
        /// Who.
        owner: Owner,
        /// The paths, each in its mode.
        claims: Vec<Claim>,
    },
    /// Answers `AccountState`, of a locks shard.
    AccountState {
        /// Whose.
        account: AccountId,
    },
}
