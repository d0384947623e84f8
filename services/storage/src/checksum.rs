//! Stored values: the payload and a checksum of key and payload, so that neither a flipped byte nor a value under the
//! wrong key is ever served.

use bytes::Bytes;

const CHECKSUM_BYTES: usize = 4;

/// Returns the bytes to store under `key`: the concatenated parts and their checksum.
pub(crate) fn encode(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut value = Vec::with_capacity(parts.iter().map(|part| part.len()).sum::<usize>() + CHECKSUM_BYTES);
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(key);
    for part in parts {
        checksum.update(part);
        value.extend_from_slice(part);
    }
    value.extend_from_slice(&checksum.finalize().to_le_bytes());
    value
}

/// Returns the payload of a value stored under `key`, or `None` if the checksum does not match.
pub(crate) fn verify<'a>(key: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let (payload, stored) = value.split_last_chunk::<CHECKSUM_BYTES>()?;
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(key);
    checksum.update(payload);
    (checksum.finalize().to_le_bytes() == *stored).then_some(payload)
}

/// Like [`verify`], without a copy.
pub(crate) fn verify_bytes(key: &[u8], mut value: Bytes) -> Option<Bytes> {
    let length = verify(key, &value)?.len();
    value.truncate(length);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_other_key_is_noticed() {
        let sealed = encode(b"key", &[b"pay", b"load"]);
        assert_eq!(verify(b"key", &sealed), Some(&b"payload"[..]));
        assert_eq!(verify(b"kez", &sealed), None);
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(verify(b"key", &damaged), None, "bit {bit}");
        }
        assert_eq!(verify(b"key", &sealed[..sealed.len() - 1]), None);
        assert_eq!(verify(b"key", b""), None);
    }
}
