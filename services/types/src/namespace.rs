//! Namespaces, and the reference to a namespace in lock commands.

use serde::{Deserialize, Serialize};

use super::{AccountId, Incarnation};

/// A namespace. Times are wall-clock milliseconds since 1970, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its current incarnation.
    pub incarnation: Incarnation,
    /// The account of the namespace.
    pub account: AccountId,
    /// Unique in the account.
    pub name: String,
    /// As given by the caller.
    pub description: String,
    /// The time of creation.
    pub created_at_ms: u64,
    /// The time of the last change.
    pub updated_at_ms: u64,
}

/// The namespace of a lock command, in the incarnation that the gateway assumes. Any but the open one is rejected as
/// not found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespaceRef {
    /// The account of the namespace.
    pub account: AccountId,
    /// The name of the namespace.
    pub name: String,
    /// Its incarnation.
    pub incarnation: Incarnation,
}
