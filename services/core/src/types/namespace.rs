//! Namespaces, and how a lock command names one.

use serde::{Deserialize, Serialize};

use super::{AccountId, Incarnation};

/// A namespace. Instants are wall-clock milliseconds since 1970, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its present life.
    pub incarnation: Incarnation,
    /// Whose.
    pub account: AccountId,
    /// Unique in the account.
    pub name: String,
    /// As given.
    pub description: String,
    /// Creation.
    pub created_at_ms: u64,
    /// Last change.
    pub updated_at_ms: u64,
}

/// The namespace that a lock command is about, in the incarnation that the gateway believes in. Any but the open one
/// is refused as not found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespaceRef {
    /// Whose.
    pub account: AccountId,
    /// Its name.
    pub name: String,
    /// Which life of it.
    pub incarnation: Incarnation,
}
