//! Stored metadata.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Metadata;

/// Metadata as one byte string that the holds of a request share. It is rarely read, and a separate allocation per pair
/// would take more memory than most pairs need. It has the same encoding as [`Metadata`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedMetadata(Option<Arc<[u8]>>);

impl EncodedMetadata {
    /// Encodes metadata.
    pub fn of(metadata: &Metadata) -> Self {
        if metadata.is_empty() {
            return Self(None);
        }
        let bytes = postcard::to_extend(metadata, Vec::new()).expect("maps of strings have known lengths");
        Self(Some(bytes.into()))
    }

    /// Returns the size in bytes if encoded.
    pub fn encoded_len(metadata: &Metadata) -> usize {
        if metadata.is_empty() {
            return 0;
        }
        postcard::to_extend(metadata, Counter(0)).expect("maps of strings have known lengths").0
    }

    /// Decodes the metadata.
    pub fn get(&self) -> Metadata {
        self.decoded()
    }

    /// Returns whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the size in bytes; 0 without any pair.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |bytes| bytes.len())
    }

    /// Returns a shared copy of `other` if both are equal, otherwise `self`.
    pub fn shared_with(self, other: &Self) -> Self {
        if self == *other { other.clone() } else { self }
    }

    fn decoded<'a, T: Default + Deserialize<'a>>(&'a self) -> T {
        let bytes = self.0.as_deref();
        bytes.map_or_else(T::default, |bytes| postcard::from_bytes(bytes).expect("it was encoded here"))
    }
}

/// Returns the charge of the metadata of one hold or session, by its encoded size in bytes.
pub fn metadata_charge(bytes: usize) -> u64 {
    if bytes == 0 { 0 } else { 128 + bytes as u64 }
}

/// Counts the bytes that it receives.
struct Counter(usize);

impl Extend<u8> for Counter {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0 += bytes.into_iter().count();
    }
}

impl Serialize for EncodedMetadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.decoded::<Vec<(&str, &str)>>())
    }
}

impl<'de> Deserialize<'de> for EncodedMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Metadata::deserialize(deserializer).map(|metadata| Self::of(&metadata))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    #[test]
    fn it_is_written_as_it_was_given() {
        for pairs in [&[][..], &[("k", "v")], &[("", "x"), ("a", ""), ("é", "ü\0")]] {
            let given: Metadata = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let kept = EncodedMetadata::of(&given);
            assert_eq!(kept.get(), given);
            assert_eq!(codec::encode(&kept), codec::encode(&given));
            assert_eq!(codec::decode::<EncodedMetadata>(&codec::encode(&given)).unwrap(), kept);
            assert_eq!(kept.is_empty(), given.is_empty());
            assert_eq!(EncodedMetadata::encoded_len(&given), kept.len());
        }
    }
}
