//! Who did what: records of changes to accounts, keys and namespaces, and of locks that were forced open.

use serde::{Deserialize, Serialize};

use super::{AccountId, Command, Path};

/// A command together with who gave it. What it does is done as without, and noted in the shard's audit log in the same
/// step when it was not refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    /// Who.
    pub actor: Actor,
    /// The id of the call at the gateway.
    pub request_id: String,
    /// What; none that is audited itself, which is not read.
    #[serde(deserialize_with = "super::flat::command")]
    pub command: Box<Command>,
}

/// Who gave a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Actor {
    /// Whoever has the operator token.
    Operator,
    /// Whoever has that API key, or a token made with it.
    ApiKey {
        /// Whose.
        account: AccountId,
        /// Which.
        key_id: String,
    },
    /// A caller that is trusted to name its account.
    Account(AccountId),
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditAction {
    /// An account was made.
    AccountCreated,
    /// An account was changed; the detail says what.
    AccountUpdated,
    /// An account was deleted.
    AccountDeleted,
    /// A key was made.
    ApiKeyCreated,
    /// A key was revoked.
    ApiKeyDeleted,
    /// A namespace was made.
    NamespaceCreated,
    /// A namespace was changed.
    NamespaceUpdated,
    /// A namespace was deleted.
    NamespaceDeleted,
    /// A lock was forced open.
    LockDeleted,
    /// A namespace was reset.
    NamespaceReset,
}

impl AuditAction {
    /// Every action, for tables and tests.
    pub const ALL: [Self; 10] = [
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
    ];

    /// The public name.
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
        }
    }
}

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Rises within its shard.
    pub number: u64,
    /// Wall clock in milliseconds since 1970; never falls within its shard.
    pub at_ms: u64,
    /// To whose account.
    pub account: AccountId,
    /// By whom.
    pub actor: Actor,
    /// The id of the call at the gateway.
    pub request_id: String,
    /// What.
    pub action: AuditAction,
    /// The key concerned.
    pub key_id: Option<String>,
    /// The namespace concerned.
    pub namespace: Option<String>,
    /// The lock concerned.
    pub path: Option<Path>,
    /// More, for people.
    pub detail: String,
}

/// Where a page of an audit log begins: with the records before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AuditCursor {
    /// Of the record.
    pub at_ms: u64,
    /// Of the record.
    pub number: u64,
}
