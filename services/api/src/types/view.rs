//! Responses of operations on accounts, keys and namespaces. Each view serializes as its JSON form in the contract.

use holdfast_types::{Account, AccountStatus, ApiKey, Durability, Limits, Namespace, TableState};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{DurabilityName, LimitsSchema, StatusName, TableStateName};
use crate::Timestamp;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// The token of the next page; absent on the last.
    pub next_page_token: Option<String>,
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Account)]
pub struct AccountView {
    /// 16 lower-case hex digits.
    pub id: String,
    /// Trimmed and lower-cased.
    pub email: String,
    /// As given.
    pub full_name: String,
    /// The maximum number of namespaces.
    pub max_number_of_namespaces: u32,
    /// Its limits.
    #[schema(value_type = LimitsSchema)]
    pub limits: Limits,
    /// Whether it may make calls.
    #[serde(serialize_with = "status_as_name")]
    #[schema(value_type = StatusName)]
    pub status: AccountStatus,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl From<Account> for AccountView {
    fn from(account: Account) -> Self {
        Self {
            id: account.id.to_string(),
            email: account.email,
            full_name: account.full_name,
            max_number_of_namespaces: account.max_number_of_namespaces,
            limits: account.limits,
            status: account.status,
            created_at: Timestamp(account.created_at_ms),
            updated_at: Timestamp(account.updated_at_ms),
        }
    }
}

/// An API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ApiKey)]
pub struct ApiKeyView {
    /// The public half.
    pub key_id: String,
    /// Its account: 16 lower-case hex digits.
    pub account_id: String,
    /// As given.
    pub description: String,
    /// Public names of its scopes.
    #[schema(value_type = Vec<String>)]
    pub scopes: Vec<&'static str>,
    /// The namespaces that it covers; absent for all.
    pub namespaces: Option<Vec<String>>,
    /// The key is rejected from then on.
    pub expires_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// The last call with it or with one of its tokens, accurate to a minute; absent when there was none.
    pub last_used_at: Option<Timestamp>,
}

impl From<ApiKey> for ApiKeyView {
    fn from(key: ApiKey) -> Self {
        Self {
            key_id: key.key_id,
            account_id: key.account.to_string(),
            description: key.description,
            scopes: key.scopes.names(),
            namespaces: key.namespaces,
            expires_at: key.expires_at_ms.map(Timestamp),
            created_at: Timestamp(key.created_at_ms),
            last_used_at: None,
        }
    }
}

/// A new key. No other response contains a secret.
#[derive(Clone, Serialize, ToSchema)]
pub struct CreatedApiKey {
    /// The whole key, `hf_<key id>_<secret>`.
    pub api_key: String,
    /// The other fields.
    #[serde(flatten)]
    pub key: ApiKeyView,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Namespace)]
pub struct NamespaceView {
    /// Its incarnation: 16 lower-case hex digits, never reused.
    pub id: String,
    /// Unique in the account.
    pub name: String,
    /// As given.
    pub description: String,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Where its lock table is kept.
    #[serde(serialize_with = "durability_as_name")]
    #[schema(value_type = DurabilityName)]
    pub durability: Durability,
    /// How far its lock table is. Only in an answer about one namespace whose durability is SESSION, if its leader could
    /// be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<TableView>,
}

/// The state of a table that grants locks.
pub const TABLE_READY: &str = "READY";
/// The state of a table whose leader waits for the end of sessions of before its time.
pub const TABLE_REBUILDING: &str = "REBUILDING";

/// How far a lock table in its leader's memory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = LockTable)]
pub struct TableView {
    /// READY, or REBUILDING while the leader waits for the end of sessions of before its time.
    #[schema(value_type = TableStateName)]
    pub state: &'static str,
    /// Rises with each leader.
    pub epoch: u64,
    /// The beginning of the epoch; null if the leader has not begun it.
    pub since: Option<Timestamp>,
    /// Open sessions.
    pub sessions: u64,
    /// Sessions of before that may still hold something.
    pub missing: u64,
    /// Ids of open ones among them, at most 16.
    pub waiting_for: Vec<String>,
}

impl From<TableState> for TableView {
    fn from(state: TableState) -> Self {
        Self {
            state: if state.is_ready() { TABLE_READY } else { TABLE_REBUILDING },
            epoch: state.epoch,
            since: state.has_begun.then_some(Timestamp(state.since_ms)),
            sessions: state.sessions,
            missing: state.missing,
            waiting_for: state.waiting_for,
        }
    }
}

impl From<Namespace> for NamespaceView {
    fn from(namespace: Namespace) -> Self {
        Self {
            id: namespace.incarnation.to_string(),
            name: namespace.name,
            description: namespace.description,
            created_at: Timestamp(namespace.created_at_ms),
            updated_at: Timestamp(namespace.updated_at_ms),
            durability: namespace.durability,
            table: None,
        }
    }
}

/// Returns the public name of an account's status.
pub fn status_name(status: AccountStatus) -> &'static str {
    match status {
        AccountStatus::Active => "ACTIVE",
        AccountStatus::Suspended => "SUSPENDED",
    }
}

/// Returns the status of a public name.
pub fn parse_status(name: &str) -> Option<AccountStatus> {
    match name {
        "ACTIVE" => Some(AccountStatus::Active),
        "SUSPENDED" => Some(AccountStatus::Suspended),
        _ => None,
    }
}

fn durability_as_name<S: Serializer>(durability: &Durability, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(durability.name())
}

fn status_as_name<S: Serializer>(status: &AccountStatus, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(status_name(*status))
}
