//! Namespaces, and the reference to a namespace in lock commands.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{AccountId, Incarnation, ParseIdError};

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

/// For operators: account, name and incarnation, with slashes in between.
impl fmt::Display for NamespaceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.account, self.name, self.incarnation)
    }
}

impl FromStr for NamespaceRef {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (account, rest) = text.split_once('/').ok_or(ParseIdError)?;
        let (name, incarnation) = rest.rsplit_once('/').ok_or(ParseIdError)?;
        Ok(Self { account: account.parse()?, name: name.to_owned(), incarnation: incarnation.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_as_it_is_shown() {
        for name in ["orders", "a/b", ""] {
            let namespace = NamespaceRef { account: AccountId(7), name: name.to_owned(), incarnation: Incarnation(31) };
            assert_eq!(namespace.to_string().parse(), Ok(namespace));
        }
        for wrong in ["", "orders", "0000000000000007/orders", "7/orders/1", "0000000000000007/orders/x"] {
            assert!(wrong.parse::<NamespaceRef>().is_err(), "{wrong}");
        }
    }
}
