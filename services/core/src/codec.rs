//! Bytes of commands, queries, replies and snapshots: a version byte, then postcard.

use serde::{Serialize, de::DeserializeOwned};

/// The version that this code writes. Raised when a type of the wire changes in any but an appending way.
pub const VERSION: u8 = 1;

/// Room for most values, so that few have to be moved as they are written.
const TYPICAL_BYTES: usize = 192;

/// The bytes can't be read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// No bytes at all.
    #[error("the bytes are empty")]
    Empty,
    /// Written by another version.
    #[error("the bytes are of version {0}; this program reads version {VERSION}")]
    Version(u8),
    /// Not what was expected.
    #[error("the bytes are damaged or of another kind: {0}")]
    Damaged(#[from] postcard::Error),
    /// More bytes than the value has.
    #[error("{0} bytes are left over")]
    TrailingBytes(usize),
    /// The pieces of a snapshot can be read but don't belong together.
    #[error("the snapshot is not whole: {0}")]
    Snapshot(&'static str),
}

/// Encodes a value. The types of this crate always encode: none of them has a length that is not known beforehand.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(TYPICAL_BYTES);
    bytes.push(VERSION);
    postcard::to_extend(value, bytes).expect("types of the wire have known lengths and never fail to encode")
}

/// How many bytes a value has as a part of what is encoded.
pub(crate) fn size<T: Serialize>(value: &T) -> usize {
    let size = postcard::serialize_with_flavor(value, postcard::ser_flavors::Size::default());
    size.expect("types of the wire have known lengths and never fail to encode")
}

/// Decodes a value.
///
/// # Errors
/// When the bytes are empty, of another version, damaged, or too many.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (&version, rest) = bytes.split_first().ok_or(DecodeError::Empty)?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let (value, left) = postcard::take_from_bytes(rest)?;
    if left.is_empty() { Ok(value) } else { Err(DecodeError::TrailingBytes(left.len())) }
}
