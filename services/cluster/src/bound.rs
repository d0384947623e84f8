//! Encoding of a shard bound in a config: a string of 8 hex digits.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serializer};

/// Writes the bound as 8 lower-case hex digits.
pub(crate) fn serialize<S: Serializer>(bound: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{bound:08x}"))
}

/// Reads exactly 8 hex digits, of either case.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    let malformed = || D::Error::invalid_value(Unexpected::Str(&text), &"8 hex digits, like \"0fffffff\"");
    if text.len() != 8 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(malformed());
    }
    u32::from_str_radix(&text, 16).map_err(|_| malformed())
}
