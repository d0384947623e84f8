//! Fingerprints of states: 64 bits that stand for a state among those that were visited.
//!
//! Two states with one fingerprint count as one. Of n states this happens to some pair with a probability of
//! n^2 / 2^65: once in 4,000 searches of 10^8 states.

use std::hash::Hasher;

/// Odd constants without a pattern: the first digits of the fractional parts of the square roots of 2 and 3.
const SEED: u64 = 0x6a09_e667_f3bc_c909;
const FACTOR: u64 = 0xbb67_ae85_84ca_a73b;

/// Collects bytes into words and mixes each word by a multiplication of full width.
#[derive(Debug)]
pub struct Fingerprint {
    mixed: u64,
    word: u64,
    bytes: u32,
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self { mixed: SEED, word: 0, bytes: 0 }
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    let [low, high] = [product & u128::from(u64::MAX), product >> 64];
    u64::try_from(low ^ high).unwrap_or(u64::MAX)
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, byte: u8) {
        self.word = self.word << 8 | u64::from(byte);
        self.bytes += 1;
        if self.bytes.is_multiple_of(8) {
            self.mixed = mix(self.mixed ^ self.word, FACTOR).rotate_left(23);
            self.word = 0;
        }
    }

    fn finish(&self) -> u64 {
        let length = u64::from(self.bytes);
        mix(mix(self.mixed ^ self.word, FACTOR).rotate_left(29) ^ length, SEED | 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::Hasher;

    use super::Fingerprint;

    #[test]
    fn short_inputs_have_fingerprints_of_their_own() {
        let mut seen = BTreeSet::new();
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                let mut fingerprint = Fingerprint::default();
                fingerprint.write(&[first, 0, 0, 0, 0, 0, 0, 0, second]);
                seen.insert(fingerprint.finish());
            }
        }
        assert_eq!(seen.len(), 1 << 16);
    }
}
