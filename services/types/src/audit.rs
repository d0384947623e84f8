//! Audit records: changes to accounts, keys and namespaces, and forced releases of locks.

use serde::{Deserialize, Serialize};

use super::{AccountId, Command, Path};

/// A command together with its actor. It has the same effect as the plain command and, unless it is rejected, is
/// recorded in the shard's audit log in the same step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    /// The actor.
    pub actor: Actor,
    /// The id of the call at the gateway.
    pub request_id: String,
    /// The command. It must not be audited itself; decoding rejects that.
    #[serde(deserialize_with = "super::flat::command")]
    pub command: Box<Command>,
}

/// The actor of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Actor {
    /// A caller with the operator token.
    Operator,
    /// A caller with that API key, or a token made with it.
    ApiKey {
        /// The account of the key.
        account: AccountId,
        /// The id of the key.
        key_id: String,
    },
    /// A caller that is trusted to name its account.
    Account(AccountId),
}

/// A recorded action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditAction {
    /// An account was created.
    AccountCreated,
    /// An account was changed; the detail names the fields.
    AccountUpdated,
    /// An account was deleted.
    AccountDeleted,
    /// A key was created.
    ApiKeyCreated,
    /// A key was revoked.
    ApiKeyDeleted,
    /// A namespace was created.
    NamespaceCreated,
    /// A namespace was changed.
    NamespaceUpdated,
    /// A namespace was deleted.
    NamespaceDeleted,
    /// A lock was forced open.
    LockDeleted,
    /// A namespace was reset.
    NamespaceReset,
    /// A semaphore was configured.
    SemaphoreConfigured,
    /// A semaphore was deleted.
    SemaphoreDeleted,
    /// A pool was configured, or some of its members were changed.
    PoolConfigured,
    /// A pool was deleted.
    PoolDeleted,
    /// Owners were asked with force to release what they hold.
    ReleaseForced,
    /// A barrier was configured.
    BarrierConfigured,
    /// A barrier was deleted.
    BarrierDeleted,
}

impl AuditAction {
    /// Every action, for tables and tests.
    pub const ALL: [Self; 17] = [
        Self::AccountCreated,
        Self::AccountUpdated,
        Self::AccountDeleted,
        Self::ApiKeyCreated,
        Self::ApiKeyDeleted,
        Self::NamespaceCreated,
        Self::NamespaceUpdated,
        Self::NamespaceDeleted,
        Self::LockDeleted,
        Self::NamespaceReset,
        Self::SemaphoreConfigured,
        Self::SemaphoreDeleted,
        Self::PoolConfigured,
        Self::PoolDeleted,
        Self::ReleaseForced,
        Self::BarrierConfigured,
        Self::BarrierDeleted,
    ];

    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AccountCreated => "ACCOUNT_CREATED",
            Self::AccountUpdated => "ACCOUNT_UPDATED",
            Self::AccountDeleted => "ACCOUNT_DELETED",
            Self::ApiKeyCreated => "API_KEY_CREATED",
            Self::ApiKeyDeleted => "API_KEY_DELETED",
            Self::NamespaceCreated => "NAMESPACE_CREATED",
            Self::NamespaceUpdated => "NAMESPACE_UPDATED",
            Self::NamespaceDeleted => "NAMESPACE_DELETED",
            Self::LockDeleted => "LOCK_DELETED",
            Self::NamespaceReset => "NAMESPACE_RESET",
            Self::SemaphoreConfigured => "SEMAPHORE_CONFIGURED",
            Self::SemaphoreDeleted => "SEMAPHORE_DELETED",
            Self::PoolConfigured => "POOL_CONFIGURED",
            Self::PoolDeleted => "POOL_DELETED",
            Self::ReleaseForced => "RELEASE_FORCED",
            Self::BarrierConfigured => "BARRIER_CONFIGURED",
            Self::BarrierDeleted => "BARRIER_DELETED",
        }
    }
}

/// One recorded action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Rises within its shard.
    pub number: u64,
    /// Wall clock in milliseconds since 1970; never falls within its shard.
    pub at_ms: u64,
    /// The account that the action affected.
    pub account: AccountId,
    /// The actor.
    pub actor: Actor,
    /// The id of the call at the gateway.
    pub request_id: String,
    /// The action.
    pub action: AuditAction,
    /// The affected key.
    pub key_id: Option<String>,
    /// The affected namespace.
    pub namespace: Option<String>,
    /// The affected lock, semaphore or pool.
    pub path: Option<Path>,
    /// Further details, for people.
    pub detail: String,
}

/// Where a page of an audit log begins: with the records before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AuditCursor {
    /// The time of the record.
    pub at_ms: u64,
    /// The number of the record.
    pub number: u64,
}
