//! Damages bytes.

use rand::Rng;
use rand::rngs::SmallRng;

/// Longest input that is made.
const MAX_INPUT_BYTES: usize = 64 * 1024;
/// Values at which readers turn.
const INTERESTING_BYTES: [u8; 12] = [0, 1, 2, 0x7f, 0x80, 0x81, 0xfe, 0xff, b'"', b'{', b'[', b'\\'];

/// A few changes of one input, some with parts of another one.
pub fn mutate(random: &mut SmallRng, one: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = one.to_vec();
    for _ in 0..random.random_range(1..=4) {
        mutate_once(random, &mut bytes, other);
    }
    bytes.truncate(MAX_INPUT_BYTES);
    bytes
}

fn mutate_once(random: &mut SmallRng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = random.random_range(0..=bytes.len());
    let until = (at + random.random_range(0..=16)).min(bytes.len());
    match random.random_range(0..9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
        1 if at < bytes.len() => bytes[at] = INTERESTING_BYTES[random.random_range(0..INTERESTING_BYTES.len())],
        2 => bytes.insert(at, INTERESTING_BYTES[random.random_range(0..INTERESTING_BYTES.len())]),
        3 => drop(bytes.drain(at..until)),
        4 => bytes.truncate(at),
        // A number of the greatest length, where a length or an id may be.
        5 => drop(bytes.splice(at..until, [0xff; 9].into_iter().chain([1]))),
        6 => {
            let part = bytes[at..until].to_vec();
            let times = random.random_range(1..=64);
            let position = random.random_range(0..=bytes.len());
            bytes.splice(position..position, part.repeat(times));
        }
        7 if !other.is_empty() => {
            let from = random.random_range(0..other.len());
            bytes.splice(at..until, other[from..].iter().copied());
        }
        _ => bytes.push(random.random()),
    }
}
