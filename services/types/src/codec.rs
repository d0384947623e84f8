//! Encodes commands, queries, replies and snapshots as bytes: a version byte, then postcard.

use serde::{Serialize, de::DeserializeOwned};

/// The version that this code writes. It is raised when a released type changes other than by appending.
pub const VERSION: u8 = 1;

/// Initial capacity that suffices for most values, to avoid reallocation.
const TYPICAL_BYTES: usize = 192;

/// The bytes can't be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// There are no bytes.
    #[error("the bytes are empty")]
    Empty,
    /// Another version encoded the bytes.
    #[error("the bytes are of version {0}; this program reads version {VERSION}")]
    Version(u8),
    /// The bytes do not encode the expected type.
    #[error("the bytes are damaged or of another kind: {0}")]
    Damaged(#[from] postcard::Error),
    /// There are more bytes than the value has.
    #[error("{0} bytes are left over")]
    TrailingBytes(usize),
    /// The items of a snapshot can be decoded but do not belong together.
    #[error("the snapshot is incomplete: {0}")]
    Snapshot(&'static str),
}

/// Encodes a value. The types of this crate always encode, because all of their lengths are known in advance.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(TYPICAL_BYTES);
    bytes.push(VERSION);
    postcard::to_extend(value, bytes).expect("types of the wire have known lengths and never fail to encode")
}

/// Returns the encoded size of a value in bytes, without the version byte.
pub fn size<T: Serialize>(value: &T) -> usize {
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
