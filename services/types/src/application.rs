//! The three kinds of state that shards hold.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The kind of state of a shard. Every cluster has shards of all three kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Application {
    /// Accounts and their API keys.
    Accounts,
    /// The namespaces of accounts, hashed by account.
    Namespaces,
    /// The locks of namespaces, hashed by account and namespace.
    Locks,
}

impl Application {
    /// All applications, in the order of cluster configs.
    pub const ALL: [Self; 3] = [Self::Accounts, Self::Namespaces, Self::Locks];

    /// Returns the name in a cluster config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accounts => "Accounts",
            Self::Namespaces => "Namespaces",
            Self::Locks => "Locks",
        }
    }
}

impl fmt::Display for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no application.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no application {0:?}; it is one of Accounts, Namespaces, Locks")]
pub struct UnknownApplication(pub String);

impl FromStr for Application {
    type Err = UnknownApplication;

    fn from_str(text: &str) -> Result<Self, UnknownApplication> {
        Self::ALL
            .into_iter()
            .find(|application| application.name() == text)
            .ok_or_else(|| UnknownApplication(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_application_reads_back_what_it_shows() {
        for application in Application::ALL {
            assert_eq!(application.to_string().parse(), Ok(application));
            assert_eq!(serde_json::to_string(&application).unwrap(), format!("\"{application}\""));
        }
    }

    #[test]
    fn another_name_is_refused_with_the_known_ones() {
        let error = "locks".parse::<Application>().unwrap_err();
        assert_eq!(error.to_string(), "there is no application \"locks\"; it is one of Accounts, Namespaces, Locks");
    }
}
