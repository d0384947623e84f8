//! The versions of the rules that entries are applied by.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A version of the rules: the meaning of commands, the bounds, and the set of commands. Every replica and every later
/// release applies an entry by the rules that it was written under. So replicas of two releases reach the same state.
/// The first release with a number fixes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rules(pub u16);

impl Rules {
    /// The rules before versions existed. Of the calls that wait for one request, or were granted it, only the newest
    /// counts: if it is cancelled, the queued request or the hold ends for all.
    pub const ONE: Self = Self(1);
    /// Every call counts whose caller may still rely on the queued request or the hold: it ends with the last of them.
    /// E-mails are stored as gateways send them.
    pub const TWO: Self = Self(2);

    /// The oldest rules that this build can apply.
    pub const LOWEST: Self = Self::ONE;
    /// The newest rules that this build can apply.
    #[cfg(not(feature = "extra-command"))]
    pub const HIGHEST: Self = Self::TWO;
    /// The newest rules that this build can apply: one version and one command more than other builds, to be tested
    /// beside them.
    #[cfg(feature = "extra-command")]
    pub const HIGHEST: Self = Self(3);
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
