//! Requests for tokens, and their responses.

use serde::Serialize;
use utoipa::ToSchema;

use crate::Timestamp;

/// A request for a token.
#[derive(Clone, Debug, Default)]
pub struct CreateToken {
    /// Public names of scopes; the key's own when absent, and never more than those.
    pub scopes: Option<Vec<String>>,
    /// The namespaces that it covers; the key's own list when absent, and never more than that.
    pub namespaces: Option<Vec<String>>,
    /// Its life in milliseconds: a second to an hour; 15 minutes when absent.
    pub ttl_ms: Option<u64>,
}

/// A new token.
#[derive(Clone, Serialize, ToSchema)]
pub struct CreatedToken {
    /// The text after `Bearer `.
    pub token: String,
    /// The token is rejected from then on.
    pub expires_at: Timestamp,
}
