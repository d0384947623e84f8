//! A limit that was reached, with what it allowed there and then.

use std::fmt;

use super::{ALL, Limit};

/// What stands between the thing that is limited and the number, in every refusal.
const LIMITED_TO: &str = " is limited to ";

/// A limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The limit.
    pub limit: &'static Limit,
    /// How much it allowed.
    pub max: u64,
}

impl Reached {
    /// Returns the limit that the reason of a refusal is about: `WHAT is limited to MAX`, and perhaps more. Nodes send
    /// reasons as texts.
    pub fn of_text(reason: &str) -> Option<Self> {
        let (what, rest) = reason.split_once(LIMITED_TO)?;
        let digits = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
        let max = rest[..digits].parse().ok()?;
        let limit = ALL.iter().copied().find(|limit| limit.what.contains(&what))?;
        Some(Self { limit, max })
    }
}

/// What errors say: `WHAT is limited to MAX`.
impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{LIMITED_TO}{}", self.limit.what.first().unwrap_or(&self.limit.name), self.max)
    }
}
