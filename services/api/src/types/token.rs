//! Tokens: what is asked for, and what is answered.

use serde::Serialize;
use utoipa::ToSchema;

use crate::Timestamp;

/// A token that is asked for.
#[derive(Clone, Debug, Default)]
pub struct CreateToken {
    /// Public names of scopes; the key's own when absent, and never more than those.
    pub scopes: Option<Vec<String>>,
    /// The namespaces it may be used for; the key's own list when absent, and never more than that.
    pub namespaces: Option<Vec<String>>,
    /// How long it is good, in milliseconds: a second to an hour; 15 minutes when absent.
    pub ttl_ms: Option<u64>,
}

/// A token that was just made.
#[derive(Clone, Serialize, ToSchema)]
pub struct CreatedToken {
    /// What follows `Bearer `.
    pub token: String,
    /// Refused from then on.
    pub expires_at: Timestamp,
}
