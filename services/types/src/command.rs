//! Commands that are logged, for all three kinds of shard. Those of locks shards are in `lock_command`.
//!
//! Commands are sent and logged as bytes (see [`crate::codec`]). The encoding is positional: variants are only ever
//! added at the end, and fields are never added to a variant; a change needs a new variant.

use serde::{Deserialize, Serialize};

use super::limit::{self, Limit};
use super::{
    AccountId, AccountStatus, Actor, ApiKey, Audited, Durability, Incarnation, Limits, LocksCommand, NamespaceRef,
    RequestId, Rules, first_limits,
};

/// A command in a shard's log.
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
        /// The message numbers.
        numbers: Vec<u64>,
    },
    /// Any of these commands with its actor. Returns the response of the inner command.
    Audited(Audited),
    /// Raises the revision and the numbers of messages far above all that can have been assigned, and sends what other
    /// shards must know again. Logged where replicas go back to a state that lacks what was done since. Returns `Done`.
    AdvanceNumbers,
    /// Raises the revision. Exists only in a build that is tested beside one that does not know it. Returns `Done`.
    #[cfg(feature = "extra-command")]
    Extra,
}

impl Command {
    /// Returns the command without its actor.
    pub fn inner(&self) -> &Self {
        match self {
            Self::Audited(audited) => audited.command.inner(),
            command => command,
        }
    }

    /// Returns whether an encoded command has an actor, without decoding it.
    pub fn is_audited(encoded: &[u8]) -> bool {
        matches!(encoded, [_, 4, ..])
    }

    /// Returns the account whose changes of keys or namespaces the command counts among, and their limit. `None` for
    /// all other commands, and for those of the operator.
    pub fn rated_change(&self) -> Option<(AccountId, &'static Limit)> {
        let Self::Audited(audited) = self else { return None };
        if audited.actor == Actor::Operator {
            return None;
        }
        Some(match self.inner() {
            Self::Accounts(AccountsCommand::CreateApiKey { key }) => (key.account, &limit::KEY_CHANGES),
            Self::Accounts(AccountsCommand::DeleteApiKey { account, .. }) => (*account, &limit::KEY_CHANGES),
            Self::Namespaces(
                NamespacesCommand::Create { account, .. }
                | NamespacesCommand::Create2 { account, .. }
                | NamespacesCommand::Update { account, .. }
                | NamespacesCommand::Delete { account, .. },
            ) => (*account, &limit::NAMESPACE_CHANGES),
            _ => return None,
        })
    }

    /// Returns the first rules by which the command can be applied. A program that applies lower rules may not know it,
    /// or interpret it differently.
    pub fn min_rules(&self) -> Rules {
        match self.inner() {
            Self::Locks(command) => command.min_rules(),
            Self::Accounts(AccountsCommand::Update2 { .. })
            | Self::Namespaces(
                NamespacesCommand::Deliver { message: AccountMessage::Open2 { .. }, .. }
                | NamespacesCommand::Create2 { .. },
            ) => Rules::TWO,
            // Every program that an operator can have rebuild a shard knows the last one.
            Self::Accounts(_) | Self::Namespaces(_) | Self::OutboxConfirm { .. } | Self::AdvanceNumbers => Rules::ONE,
            // The inner command is never audited.
            Self::Audited(_) => Rules::ONE,
            #[cfg(feature = "extra-command")]
            Self::Extra => Rules::HIGHEST,
        }
    }
}

/// Commands of the accounts shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccountsCommand {
    /// Returns `Account`. Errors: `EmailTaken`, `IdTaken`. Repeats of `request_id` return the first response.
    Create {
        /// Identifies this creation.
        request_id: RequestId,
        /// Drawn by the gateway.
        id: AccountId,
        /// Trimmed and lower-cased by the gateway; by the first rules also by the core.
        email: String,
        /// As given by the caller.
        full_name: String,
        /// The maximum number of namespaces.
        max_number_of_namespaces: u32,
        /// The first limits; the later ones have their defaults.
        #[serde(with = "first_limits")]
        limits: Limits,
    },
    /// Changes the given fields. Returns `Account`. Errors: `AccountNotFound`.
    Update {
        /// The account.
        id: AccountId,
        /// New name.
        full_name: Option<String>,
        /// New status.
        status: Option<AccountStatus>,
        /// New maximum number of namespaces. If more exist, only new ones are rejected.
        max_number_of_namespaces: Option<u32>,
        /// New first limits; the later ones stay.
        #[serde(with = "first_limits::option")]
        limits: Option<Limits>,
    },
    /// Deletes the account, its keys, namespaces and locks. Returns `Done`. Errors: `AccountNotFound`.
    Delete {
        /// The account.
        id: AccountId,
    },
    /// Returns `ApiKey`. Errors: `AccountNotFound`, `QuotaExceeded`, `IdTaken`. A repeat with the same key id, account
    /// and hash returns the first response.
    CreateApiKey {
        /// The key; the core sets `created_at_ms`.
        key: ApiKey,
    },
    /// Returns `Done`. Errors: `ApiKeyNotFound` (also for another account's key).
    DeleteApiKey {
        /// The account of the key.
        account: AccountId,
        /// The id of the key.
        key_id: String,
    },
    /// Records when keys were last used, unless a later use is known. Returns `Done`, even if keys do not exist any
    /// more.
    RecordKeyUse {
        /// Key ids, and wall clocks in milliseconds since 1970.
        used: Vec<(String, u64)>,
    },
    /// Like `Update`, with all limits. Known from rules 2 on; before, it is rejected with `Malformed`.
    Update2 {
        /// The account.
        id: AccountId,
        /// New name.
        full_name: Option<String>,
        /// New status.
        status: Option<AccountStatus>,
        /// New maximum number of namespaces. If more exist, only new ones are rejected.
        max_number_of_namespaces: Option<u32>,
        /// New limits.
        limits: Limits,
    },
}

/// Commands of a namespaces shard.
#[expect(clippy::large_enum_variant, reason = "messages with all limits are rare, and passed on once")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespacesCommand {
    /// A message from the outbox of the accounts shard. Returns `Done`, also for a repeat.
    Deliver {
        /// The sending shard's id.
        source: String,
        /// Its number in that shard's outbox.
        number: u64,
        /// The message.
        message: AccountMessage,
    },
    /// Returns `Namespace`. Errors: `AccountNotFound`, `NamespaceTaken`, `QuotaExceeded`. Repeats of `request_id`
    /// return the first response.
    Create {
        /// Identifies this creation.
        request_id: RequestId,
        /// The account of the namespace.
        account: AccountId,
        /// The name of the namespace.
        name: String,
        /// As given by the caller.
        description: String,
    },
    /// Returns `Namespace`. Errors: `NamespaceNotFound`.
    Update {
        /// The account of the namespace.
        account: AccountId,
        /// The name of the namespace.
        name: String,
        /// New description, if given.
        description: Option<String>,
    },
    /// Returns `Done`. Errors: `NamespaceNotFound`, also if `incarnation` is given and another one is open.
    Delete {
        /// The account of the namespace.
        account: AccountId,
        /// The name of the namespace.
        name: String,
        /// The only incarnation to delete.
        incarnation: Option<Incarnation>,
    },
    /// Like `Create`, with a durability. Known from rules 2 on; before, it is rejected with `Malformed`.
    Create2 {
        /// Identifies this creation.
        request_id: RequestId,
        /// The account of the namespace.
        account: AccountId,
        /// The name of the namespace.
        name: String,
        /// As given by the caller.
        description: String,
        /// Where its lock table is kept.
        durability: Durability,
    },
}

impl NamespacesCommand {
    /// Returns the command that creates a namespace: of the plainest variant that says all.
    pub fn create(
        request_id: RequestId,
        account: AccountId,
        name: String,
        description: String,
        durability: Durability,
    ) -> Self {
        match durability {
            Durability::Full => Self::Create { request_id, account, name, description },
            durability => Self::Create2 { request_id, account, name, description, durability },
        }
    }
}

/// Messages of the accounts shard to namespaces shards, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccountMessage {
    /// The account exists with these limits; sent again when they change.
    Open {
        /// The account.
        account: AccountId,
        /// The maximum number of its namespaces.
        max_number_of_namespaces: u32,
        /// Its limits, passed on to its namespaces: the first ones; the later ones have their defaults.
        #[serde(with = "first_limits")]
        limits: Limits,
    },
    /// The account was deleted: delete its namespaces.
    Purge {
        /// The account.
        account: AccountId,
    },
    /// Like `Open`, with all limits. Known from rules 2 on; before, it is rejected with `Malformed`.
    Open2 {
        /// The account.
        account: AccountId,
        /// The maximum number of its namespaces.
        max_number_of_namespaces: u32,
        /// Its limits, passed on to its namespaces.
        limits: Limits,
    },
}

impl AccountMessage {
    /// Returns the message that the account exists with these limits.
    pub fn open(account: AccountId, max_number_of_namespaces: u32, limits: Limits) -> Self {
        if limits.are_first() {
            Self::Open { account, max_number_of_namespaces, limits }
        } else {
            Self::Open2 { account, max_number_of_namespaces, limits }
        }
    }
}

/// Messages of a namespaces shard to locks shards, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMessage {
    /// This incarnation is open with these limits; sent again when they change.
    Open {
        /// The incarnation.
        namespace: NamespaceRef,
        /// The account's limits: the first ones; the later ones have their defaults.
        #[serde(with = "first_limits")]
        limits: Limits,
    },
    /// This incarnation was deleted: end everything in it.
    Purge {
        /// The incarnation.
        namespace: NamespaceRef,
    },
    /// Like `Open`, with all limits. Known from rules 2 on; before, it is rejected with `Malformed`.
    Open2 {
        /// The incarnation.
        namespace: NamespaceRef,
        /// The account's limits.
        limits: Limits,
    },
    /// The account was deleted, after all its namespaces: forget what it used. Known from rules 2 on; before, it is
    /// rejected with `Malformed`.
    PurgeAccount {
        /// The account.
        account: AccountId,
    },
    /// Like `Open2`, with a durability. Known from rules 2 on; before, it is rejected with `Malformed`.
    Open3 {
        /// The incarnation.
        namespace: NamespaceRef,
        /// The account's limits.
        limits: Limits,
        /// Where its lock table is kept.
        durability: Durability,
    },
}

impl NamespaceMessage {
    /// Returns the message that the incarnation is open with these limits.
    pub fn open(namespace: NamespaceRef, limits: Limits) -> Self {
        Self::open_durable(namespace, limits, Durability::Full)
    }

    /// Returns the message that the incarnation is open with these limits and that durability.
    pub fn open_durable(namespace: NamespaceRef, limits: Limits, durability: Durability) -> Self {
        match durability {
            Durability::Full if limits.are_first() => Self::Open { namespace, limits },
            Durability::Full => Self::Open2 { namespace, limits },
            durability => Self::Open3 { namespace, limits, durability },
        }
    }
}
