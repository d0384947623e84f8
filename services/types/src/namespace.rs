//! Namespaces, and the reference to a namespace in lock commands.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{AccountId, Incarnation, ParseIdError, Response};

/// Where the lock table of a namespace is kept. It never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Durability {
    /// In the log.
    #[default]
    Full,
    /// In the memory of its shard's leader. The log has its sessions.
    Session,
}

impl Durability {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Session => "SESSION",
        }
    }

    /// Returns the durability of a public name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Full, Self::Session].into_iter().find(|durability| durability.name() == name)
    }
}

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
    /// Where its lock table is kept. Encoded beside the namespace, unless it is [`Durability::Full`].
    #[serde(skip)]
    pub durability: Durability,
}

impl Response {
    /// Returns the response with one namespace.
    pub fn of_namespace(namespace: Namespace) -> Self {
        match namespace.durability {
            Durability::Full => Self::Namespace(namespace),
            durability => Self::DurableNamespace(namespace, durability),
        }
    }

    /// Returns the response with a page of namespaces, and whether more follow.
    pub fn of_namespaces(namespaces: Vec<Namespace>, more: bool) -> Self {
        if namespaces.iter().all(|namespace| namespace.durability == Durability::Full) {
            return Self::Namespaces { namespaces, more };
        }
        let namespaces = namespaces.into_iter().map(|namespace| {
            let durability = namespace.durability;
            (namespace, durability)
        });
        Self::DurableNamespaces { namespaces: namespaces.collect(), more }
    }

    /// Returns the namespace of a response.
    ///
    /// # Errors
    /// The response, if it is another one.
    #[expect(clippy::result_large_err, reason = "it is what the caller has")]
    pub fn into_namespace(self) -> Result<Namespace, Self> {
        match self {
            Self::Namespace(namespace) => Ok(namespace),
            Self::DurableNamespace(namespace, durability) => Ok(Namespace { durability, ..namespace }),
            other => Err(other),
        }
    }

    /// Returns the page of namespaces of a response, and whether more follow.
    ///
    /// # Errors
    /// The response, if it is another one.
    #[expect(clippy::result_large_err, reason = "it is what the caller has")]
    pub fn into_namespaces(self) -> Result<(Vec<Namespace>, bool), Self> {
        match self {
            Self::Namespaces { namespaces, more } => Ok((namespaces, more)),
            Self::DurableNamespaces { namespaces, more } => {
                let of = |(namespace, durability)| Namespace { durability, ..namespace };
                Ok((namespaces.into_iter().map(of).collect(), more))
            }
            other => Err(other),
        }
    }
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
