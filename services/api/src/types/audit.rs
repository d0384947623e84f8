//! Queries for audit records, and the records.

use holdfast_types::{Actor, AuditAction, AuditRecord};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{ActionName, PageRequest};
use crate::Timestamp;

/// Selects audit records.
#[derive(Clone, Debug, Default)]
pub struct ListAudit {
    /// The account: any for the operator, all when absent. Other callers see their own account's.
    pub account: Option<String>,
    /// The page.
    pub page: PageRequest,
}

/// One action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AuditEntry)]
pub struct AuditEntry {
    /// The time of the action.
    pub at: Timestamp,
    /// The account concerned: 16 lower-case hex digits.
    pub account_id: String,
    /// The kind of action.
    #[serde(serialize_with = "action_as_name")]
    #[schema(value_type = ActionName)]
    pub action: AuditAction,
    /// The actor: `OPERATOR`, `API_KEY` (or a token made with one), or `ACCOUNT` where callers are trusted to name it.
    pub actor: &'static str,
    /// The key that the actor used.
    pub actor_key_id: Option<String>,
    /// The id of the call, as in its response and in the log.
    pub request_id: String,
    /// The key concerned.
    pub key_id: Option<String>,
    /// The namespace concerned.
    pub namespace: Option<String>,
    /// The lock concerned.
    pub path: Option<Vec<String>>,
    /// Details, for people.
    pub detail: String,
}

impl From<AuditRecord> for AuditEntry {
    fn from(record: AuditRecord) -> Self {
        let (actor, actor_key_id) = match record.actor {
            Actor::Operator => ("OPERATOR", None),
            Actor::ApiKey { key_id, .. } => ("API_KEY", Some(key_id)),
            Actor::Account(_) => ("ACCOUNT", None),
        };
        Self {
            at: Timestamp(record.at_ms),
            account_id: record.account.to_string(),
            action: record.action,
            actor,
            actor_key_id,
            request_id: record.request_id,
            key_id: record.key_id,
            namespace: record.namespace,
            path: record.path.map(|path| path.0),
            detail: record.detail,
        }
    }
}

fn action_as_name<S: Serializer>(action: &AuditAction, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(action.name())
}
