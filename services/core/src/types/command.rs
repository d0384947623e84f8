//! Commands (logged), queries (not logged) and their answers, for all three kinds of shard.
//!
//! They travel and are logged as bytes (see [`crate::codec`]). The encoding goes by position: variants are only ever
//! added at the end and fields are never added to a variant; a change makes a new variant.

use serde::{Deserialize, Serialize};

use super::{
    Account, AccountChange, AccountId, AccountStatus, ApiKey, Claim, FencingToken, Incarnation, Limits, LockView,
    Metadata, Namespace, NamespaceRef, NotGranted, Owner, Path, Refusal, RequestId, Revision,
};

/// What is written to a shard's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// For the accounts shard.
    Accounts(AccountsCommand),
    /// For a namespaces shard.
    Namespaces(NamespacesCommand),
    /// For a locks shard.
    Locks(LocksCommand),
    /// The receivers confirmed these messages of the shard's outbox.
    OutboxConfirm {
        /// Their numbers.
        numbers: Vec<u64>,
    },
}

/// Commands of the accounts shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccountsCommand {
    /// Answers `Account`. Refused: `EmailTaken`, `IdTaken`. Repeats of `request_id` answer as the first did.
    Create {
        /// Names this creation.
        request_id: RequestId,
        /// Drawn by the gateway.
        id: AccountId,
        /// Trimmed and lower-cased by the core.
        email: String,
        /// As given.
        full_name: String,
        /// How many namespaces it may have.
        max_number_of_namespaces: u32,
        /// Its limits.
        limits: Limits,
    },
    /// Changes what is given. Answers `Account`. Refused: `AccountNotFound`.
    Update {
        /// Which.
        id: AccountId,
        /// New name.
        full_name: Option<String>,
        /// New status.
        status: Option<AccountStatus>,
        /// New number of namespaces; below what exists refuses only new ones.
        max_number_of_namespaces: Option<u32>,
        /// New limits.
        limits: Option<Limits>,
    },
    /// Ends the account, its keys, namespaces and locks. Answers `Done`. Refused: `AccountNotFound`.
    Delete {
        /// Which.
        id: AccountId,
    },
    /// Answers `ApiKey`. Refused: `AccountNotFound`, `QuotaExceeded`, `IdTaken`. A repeat with the same key id, account and
    /// hash answers as the first did.
    CreateApiKey {
        /// The key; `created_at_ms` is set by the core.
        key: ApiKey,
    },
    /// Answers `Done`. Refused: `ApiKeyNotFound` (also for another account's key).
    DeleteApiKey {
        /// Whose.
        account: AccountId,
        /// Which.
        key_id: String,
    },
}

/// Commands of a namespaces shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespacesCommand {
    /// A message from the outbox of the accounts shard. Answers `Done`, also when it was seen before.
    Deliver {
        /// The sending shard's id.
        source: String,
        /// Its number in that shard's outbox.
        number: u64,
        /// What it says.
        message: AccountMessage,
    },
    /// Answers `Namespace`. Refused: `AccountNotFound`, `NamespaceTaken`, `QuotaExceeded`. Repeats of `request_id` answer as
    /// the first did.
    Create {
        /// Names this creation.
        request_id: RequestId,
        /// Whose.
        account: AccountId,
        /// Its name.
        name: String,
        /// As given.
        description: String,
    },
    /// Answers `Namespace`. Refused: `NamespaceNotFound`.
    Update {
        /// Whose.
        account: AccountId,
        /// Which.
        name: String,
        /// New description, when given.
        description: Option<String>,
    },
    /// Answers `Done`. Refused: `NamespaceNotFound`, also when `incarnation` is given and another is there.
    Delete {
        /// Whose.
        account: AccountId,
        /// Which.
        name: String,
        /// Only that life of it.
        incarnation: Option<Incarnation>,
    },
}

/// What the accounts shard tells namespaces shards, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccountMessage {
    /// The account exists with these figures; sent again when they change.
    Open {
        /// Which.
        account: AccountId,
        /// How many namespaces it may have.
        max_number_of_namespaces: u32,
        /// Its limits, passed on to its namespaces.
        limits: Limits,
    },
    /// The account is gone: delete its namespaces.
    Purge {
        /// Which.
        account: AccountId,
    },
}

/// What a namespaces shard tells locks shards, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMessage {
    /// This incarnation is open with these limits; sent again when they change.
    Open {
        /// Which.
        namespace: NamespaceRef,
        /// The account's limits.
        limits: Limits,
    },
    /// This incarnation is gone: end everything in it.
    Purge {
        /// Which.
        namespace: NamespaceRef,
    },
}

/// Commands of a locks shard. Each is refused with `NamespaceNotFound` for any but the open incarnation.
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
    /// Answers `Acquired`. Refused: `QuotaExceeded`.
    Acquire(Acquire),
    /// Answers `Released`.
    Release(Release),
    /// Ends all holds of a path in any state. Answers `Done`.
    Delete {
        /// Where.
        namespace: NamespaceRef,
        /// Which.
        path: Path,
    },
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
    /// How long each hold is held; absent for holds that live as long as a session.
    pub ttl_ms: Option<u64>,
    /// How long each hold then stays in transition.
    pub transition_ms: u64,
    /// Kept with the holds; a repeat replaces it.
    pub metadata: Metadata,
    /// Only extend the hold of this token.
    pub fencing_token: Option<FencingToken>,
    /// The instant that a dlocks client asked for, in nanoseconds since 1970, for display.
    pub asked_expires_at_ns: Option<i64>,
}

/// Ends holds of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Where.
    pub namespace: NamespaceRef,
    /// Who.
    pub owner: Owner,
    /// What.
    pub paths: Vec<Path>,
    /// Only the hold of this token.
    pub fencing_token: Option<FencingToken>,
}

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
    /// Answers `AccountChanges`. Refused: `ChangesForgotten`.
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
}

/// What a command or query answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing to tell.
    Done,
    /// One account.
    Account(Account),
    /// A page of accounts; `more` when there is another page.
    Accounts {
        /// The page.
        accounts: Vec<Account>,
        /// Whether more follow.
        more: bool,
    },
    /// One key.
    ApiKey(ApiKey),
    /// All keys of an account.
    ApiKeys(Vec<ApiKey>),
    /// What changed since, and up to where.
    AccountChanges {
        /// The changes.
        changes: Vec<AccountChange>,
        /// Ask again after this.
        now: Revision,
    },
    /// One namespace.
    Namespace(Namespace),
    /// A page of namespaces.
    Namespaces {
        /// The page.
        namespaces: Vec<Namespace>,
        /// Whether more follow.
        more: bool,
    },
    /// The outcome of an acquire.
    Acquired {
        /// The token of the new holds (or of the hold found), or why not.
        outcome: Result<FencingToken, NotGranted>,
        /// The locks claimed, as they now are, in order of path.
        locks: Vec<LockView>,
    },
    /// The outcome of a release.
    Released {
        /// Whether a hold ended.
        released: bool,
        /// The locks named, as they now are, in order of path.
        locks: Vec<LockView>,
    },
    /// One lock.
    Lock(LockView),
    /// A page of locks.
    Locks {
        /// The page.
        locks: Vec<LockView>,
        /// Whether more follow.
        more: bool,
    },
    /// Whether the token is current, and the lock.
    Checked {
        /// True exactly while the hold of that token is held.
        current: bool,
        /// The lock.
        lock: LockView,
    },
}

/// What goes back to whoever asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The answer, or why there is none.
    pub outcome: Result<Answer, Refusal>,
    /// The shard clock that the outcome is of, in milliseconds: the running clock for queries. `remaining_ms` is a
    /// deadline minus this.
    pub clock_ms: u64,
    /// The answer may be given once the message of this number has left the shard's outbox.
    pub awaits_outbox: Option<u64>,
}
