//! Accounts and their API keys.

use serde::{Deserialize, Serialize};

use super::{AccountId, Limits, Revision, first_limits};

/// Whether calls of an account are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccountStatus {
    /// Calls are served.
    Active,
    /// Calls are rejected with `PERMISSION_DENIED`; holds expire.
    Suspended,
}

/// A tenant. Times are wall-clock milliseconds since 1970, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "AccountRow", into = "AccountRow")]
pub struct Account {
    /// The id of the account.
    pub id: AccountId,
    /// Trimmed and lower-cased; unique.
    pub email: String,
    /// As given by the caller.
    pub full_name: String,
    /// The maximum number of its namespaces.
    pub max_number_of_namespaces: u32,
    /// Its limits.
    pub limits: Limits,
    /// Whether its calls are served.
    pub status: AccountStatus,
    /// The time of creation.
    pub created_at_ms: u64,
    /// The time of the last change.
    pub updated_at_ms: u64,
    /// The accounts shard's revision at the last change of the account.
    pub revision: Revision,
}

/// The stored form of an account. An account without later limits has the same encoding as before these limits existed.
#[derive(Serialize, Deserialize)]
struct AccountRow {
    id: AccountId,
    email: String,
    full_name: String,
    max_number_of_namespaces: u32,
    #[serde(with = "first_limits")]
    limits: Limits,
    status: StatusRow,
    created_at_ms: u64,
    updated_at_ms: u64,
    revision: Revision,
}

/// Whether calls are served; and all limits, if the first limits do not suffice.
#[derive(Serialize, Deserialize)]
enum StatusRow {
    Active,
    Suspended,
    ActiveWith(Box<Limits>),
    SuspendedWith(Box<Limits>),
}

impl From<Account> for AccountRow {
    fn from(account: Account) -> Self {
        let all = (!account.limits.are_first()).then(|| Box::new(account.limits.clone()));
        Self {
            id: account.id,
            email: account.email,
            full_name: account.full_name,
            max_number_of_namespaces: account.max_number_of_namespaces,
            limits: account.limits,
            status: match (account.status, all) {
                (AccountStatus::Active, None) => StatusRow::Active,
                (AccountStatus::Suspended, None) => StatusRow::Suspended,
                (AccountStatus::Active, Some(all)) => StatusRow::ActiveWith(all),
                (AccountStatus::Suspended, Some(all)) => StatusRow::SuspendedWith(all),
            },
            created_at_ms: account.created_at_ms,
            updated_at_ms: account.updated_at_ms,
            revision: account.revision,
        }
    }
}

impl From<AccountRow> for Account {
    fn from(row: AccountRow) -> Self {
        let (status, all) = match row.status {
            StatusRow::Active => (AccountStatus::Active, None),
            StatusRow::Suspended => (AccountStatus::Suspended, None),
            StatusRow::ActiveWith(all) => (AccountStatus::Active, Some(all)),
            StatusRow::SuspendedWith(all) => (AccountStatus::Suspended, Some(all)),
        };
        Self {
            id: row.id,
            email: row.email,
            full_name: row.full_name,
            max_number_of_namespaces: row.max_number_of_namespaces,
            limits: all.map_or(row.limits, |all| *all),
            status,
            created_at_ms: row.created_at_ms,
            updated_at_ms: row.updated_at_ms,
            revision: row.revision,
        }
    }
}

/// The permissions of a key: a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scopes(pub u8);

impl Scopes {
    /// No permission.
    pub const NONE: Self = Self(0);
    /// `locks:read`.
    pub const LOCKS_READ: Self = Self(1);
    /// `locks:write`.
    pub const LOCKS_WRITE: Self = Self(2);
    /// `locks:force`: delete and reset.
    pub const LOCKS_FORCE: Self = Self(4);
    /// `namespaces:admin`.
    pub const NAMESPACES_ADMIN: Self = Self(8);
    /// `account:admin`.
    pub const ACCOUNT_ADMIN: Self = Self(16);
    /// Every scope.
    pub const ALL: Self = Self(31);
    /// Every scope with its public name, in listing order.
    pub const NAMES: [(Self, &'static str); 5] = [
        (Self::LOCKS_READ, "locks:read"),
        (Self::LOCKS_WRITE, "locks:write"),
        (Self::LOCKS_FORCE, "locks:force"),
        (Self::NAMESPACES_ADMIN, "namespaces:admin"),
        (Self::ACCOUNT_ADMIN, "account:admin"),
    ];

    /// Returns whether this set contains every scope of `other`.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the scope with that public name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(scope, _)| *scope)
    }

    /// Returns the public names in listing order.
    pub fn names(self) -> Vec<&'static str> {
        Self::NAMES.iter().filter(|(scope, _)| self.contains(*scope)).map(|(_, name)| *name).collect()
    }
}

/// A stored API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// The public half, drawn by the gateway: lower-case letters and digits.
    pub key_id: String,
    /// The account of the key.
    pub account: AccountId,
    /// SHA-256 of the secret half (which is random, so no slow hash is needed).
    pub secret_hash: [u8; 32],
    /// As given by the caller.
    pub description: String,
    /// The permissions of the key.
    pub scopes: Scopes,
    /// The namespaces that the key may be used for; absent for all.
    pub namespaces: Option<Vec<String>>,
    /// Calls with the key are rejected from then on; wall clock in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// The time of creation.
    pub created_at_ms: u64,
}

/// A change in the accounts shard, for gateways that cache accounts and keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccountChange {
    /// The account was created, changed or deleted.
    Account(AccountId),
    /// The key was created or deleted. By rules 1 only.
    ApiKey(String),
    /// The key was created or deleted. From rules 2 on.
    KeyOfAccount {
        /// The account of the key.
        account: AccountId,
        /// The id of the key.
        key_id: String,
    },
}
