//! Maps by numbers of the service, like those of accounts and shards.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys are made of such numbers. A call is counted in a dozen of them, and most of the time would go into
/// the hash function of the standard library. That withstands keys that are chosen to collide; nobody can choose these.
pub type KeyMap<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// Hashes the keys of a [`KeyMap`].
#[derive(Debug, Default, Clone, Copy)]
pub struct KeyHasher(u64);

/// 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl KeyHasher {
    fn add(&mut self, number: u64) {
        // Both halves of the product: a map looks at the lowest and the highest bits, and each is to depend on all of
        // the number.
        let product = u128::from(self.0.rotate_left(23) ^ number) * u128::from(FACTOR);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(padded));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    /// Of the variant of an enum.
    fn write_isize(&mut self, number: isize) {
        self.add(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn keys_that_follow_each_other_spread_over_a_map() {
        let hasher = BuildHasherDefault::<KeyHasher>::default();
        let hashes: Vec<u64> =
            (0..4_096_u64).map(|number| hasher.hash_one((number / 64, (number % 64) as u32))).collect();
        // The bits that choose the place, and those that tell the keys in one place apart.
        for shift in [0, 57] {
            let mut counts = [0; 128];
            hashes.iter().for_each(|hash| counts[(hash >> shift) as usize % 128] += 1);
            assert!(counts.iter().all(|count| (8..=64).contains(count)), "{counts:?}");
        }
    }
}
