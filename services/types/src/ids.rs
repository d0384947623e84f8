//! Identifiers, and the context of an entry.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Rules;

/// A tenant. A random u64, displayed as 16 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AccountId(pub u64);

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for AccountId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        parse_hex_id(text).map(AccountId)
    }
}

/// Encodes the id of an account in eight bytes: as a random number it would take ten.
pub(super) mod fixed {
    use serde::{Deserializer, Serializer};

    use super::AccountId;

    pub(crate) fn serialize<S: Serializer>(account: &AccountId, serializer: S) -> Result<S::Ok, S::Error> {
        postcard::fixint::le::serialize(&account.0, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<AccountId, D::Error> {
        postcard::fixint::le::deserialize(deserializer).map(AccountId)
    }
}

/// One life of a namespace: new at each creation, never reused within an account. Displayed like an account id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Incarnation {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        parse_hex_id(text).map(Incarnation)
    }
}

/// The text is not an id of 16 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an id is 16 lower-case hex digits, like 9fff3bf7d1f9561d")]
pub struct ParseIdError;

fn parse_hex_id(text: &str) -> Result<u64, ParseIdError> {
    let well_formed = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !well_formed {
        return Err(ParseIdError);
    }
    u64::from_str_radix(text, 16).map_err(|_| ParseIdError)
}

/// Counts every grant and every end of a hold in a shard; below 2^53, never goes back.
pub type Revision = u64;

/// The revision at which a hold was granted.
pub type FencingToken = u64;

/// Identifies one creation, so that repeats return the first response. The gateway draws it, or derives it from the
/// caller's idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub [u8; 16]);

/// The parts of an entry besides its commands, set by the leader that proposed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryContext {
    /// The shard clock in milliseconds. Applying an entry takes the maximum of this and the previous clock.
    pub now_ms: u64,
    /// The leader's wall clock in milliseconds since 1970, stored with grants for display and used for nothing else.
    pub wall_ms: u64,
    /// The rules to apply the entry by. They never go back from one entry to the next.
    pub rules: Rules,
}
