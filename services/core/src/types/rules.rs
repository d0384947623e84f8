//! By which rules an entry is applied.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A version of what commands mean, of the bounds they keep, and of which commands there are. Every entry is applied by
/// the rules that it was written under, on every replica and by every later release, so that replicas of two releases
/// come to the same state. A number is fixed by the release that first has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rules(pub u16);

impl Rules {
    /// As before there were versions. Of the calls that wait for one request, or were granted it, only the newest
    /// counts: whoever gives that one up ends the place or the hold of all.
    pub const ONE: Self = Self(1);
    /// Every call whose caller may still count on the place or the hold counts: it ends with the last of them. E-mails are
    /// kept as gateways send them.
    pub const TWO: Self = Self(2);

    /// The oldest rules that this build can apply.
    pub const LOWEST: Self = Self::ONE;
    /// The newest rules that this build can apply.
    #[cfg(not(feature = "extra-command"))]
    pub const HIGHEST: Self = Self::TWO;
    /// The newest rules that this build can apply: one more than others, with one command more, to be tested beside them.
    #[cfg(feature = "extra-command")]
    pub const HIGHEST: Self = Self(3);

    /// Whether this build can apply entries of these rules.
    pub fn are_supported(self) -> bool {
        (Self::LOWEST..=Self::HIGHEST).contains(&self)
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
