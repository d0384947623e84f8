//! Commands: what is logged, for all three kinds of shard. Those of locks shards are in `lock_command`.
//!
//! They travel and are logged as bytes (see [`crate::codec`]). The encoding goes by position: variants are only ever
//! added at the end and fields are never added to a variant; a change makes a new variant.

use serde::{Deserialize, Serialize};

use super::{
    AccountId, AccountStatus, ApiKey, Audited, Incarnation, Limits, LocksCommand, NamespaceRef, RequestId, Rules,
    first_limits,
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
    /// Any of these, with who gave it. Answers as that one.
    Audited(Audited),
    /// Raises the revision. Only in a build that is tested beside one that does not know it. Answers `Done`.
    #[cfg(feature = "extra-command")]
    Extra,
}

impl Command {
    /// The command itself, whoever gave it.
    pub fn inner(&self) -> &Self {
        match self {
            Self::Audited(audited) => audited.command.inner(),
            command => command,
        }
    }

    /// The first rules by which it can be applied. By lower ones some program may not know it, or mean something else.
    pub fn min_rules(&self) -> Rules {
        match self.inner() {
            Self::Locks(command) => command.min_rules(),
            Self::Accounts(AccountsCommand::Update2 { .. })
            | Self::Namespaces(NamespacesCommand::Deliver { message: AccountMessage::Open2 { .. }, .. }) => Rules::TWO,
            Self::Accounts(_) | Self::Namespaces(_) | Self::OutboxConfirm { .. } => Rules::ONE,
            // What is inside is no such one.
            Self::Audited(_) => Rules::ONE,
            #[cfg(feature = "extra-command")]
            Self::Extra => Rules::HIGHEST,
        }
    }
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
        /// Trimmed and lower-cased by the gateway; by the first rules also by the core.
        email: String,
        /// As given.
        full_name: String,
        /// How many namespaces it may have.
        max_number_of_namespaces: u32,
        /// Its limits, the first ones; the later ones are as by default.
        #[serde(with = "first_limits")]
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
        /// New limits, the first ones; the later ones stay.
        #[serde(with = "first_limits::option")]
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
    /// Notes when keys were last used, unless it is known to be later. Answers `Done`, also when keys are gone.
    RecordKeyUse {
        /// Key ids, and wall clocks in milliseconds since 1970.
        used: Vec<(String, u64)>,
    },
    /// As `Update`, with all limits. Known from rules 2 on; refused with `Malformed` before.
    Update2 {
        /// Which.
        id: AccountId,
        /// New name.
        full_name: Option<String>,
        /// New status.
        status: Option<AccountStatus>,
        /// New number of namespaces; below what exists refuses only new ones.
        max_number_of_namespaces: Option<u32>,
        /// New limits.
        limits: Limits,
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
        /// Its limits, passed on to its namespaces: the first ones; the later ones are as by default.
        #[serde(with = "first_limits")]
        limits: Limits,
    },
    /// The account is gone: delete its namespaces.
    Purge {
        /// Which.
        account: AccountId,
    },
    /// As `Open`, with all limits. Known from rules 2 on; refused with `Malformed` before.
    Open2 {
        /// Which.
        account: AccountId,
        /// How many namespaces it may have.
        max_number_of_namespaces: u32,
        /// Its limits, passed on to its namespaces.
        limits: Limits,
    },
}

impl AccountMessage {
    /// Says that the account exists with these figures.
    pub fn open(account: AccountId, max_number_of_namespaces: u32, limits: Limits) -> Self {
        if limits.are_first() {
            Self::Open { account, max_number_of_namespaces, limits }
        } else {
            Self::Open2 { account, max_number_of_namespaces, limits }
        }
    }
}

/// What a namespaces shard tells locks shards, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMessage {
    /// This incarnation is open with these limits; sent again when they change.
    Open {
        /// Which.
        namespace: NamespaceRef,
        /// The account's limits, the first ones; the later ones are as by default.
        #[serde(with = "first_limits")]
        limits: Limits,
    },
    /// This incarnation is gone: end everything in it.
    Purge {
        /// Which.
        namespace: NamespaceRef,
    },
    /// As `Open`, with all limits. Known from rules 2 on; refused with `Malformed` before.
    Open2 {
        /// Which.
        namespace: NamespaceRef,
        /// The account's limits.
        limits: Limits,
    },
}

impl NamespaceMessage {
    /// Says that the incarnation is open with these limits.
    pub fn open(namespace: NamespaceRef, limits: Limits) -> Self {
        if limits.are_first() { Self::Open { namespace, limits } } else { Self::Open2 { namespace, limits } }
    }
}
