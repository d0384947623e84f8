//! What an item of a table takes, in bytes.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use crate::Path;
use crate::metadata::metadata_charge;

/// Bytes of an item. They follow from the state alone, so that they are the same on every replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemBytes {
    /// Its charge: an upper bound of the memory that it takes.
    pub charged: u64,
    /// What counts against the limit of the tables of a namespace: its texts, and some bytes for each item.
    pub counted: u64,
}

impl ItemBytes {
    /// Returns what metadata takes, given its encoded length.
    pub fn of_metadata(bytes: usize) -> Self {
        Self { charged: metadata_charge(bytes), counted: bytes as u64 }
    }

    /// Returns what the texts of a thing take: its path, which is in the table and in an index, its description and its
    /// metadata, given the lengths of both.
    pub(crate) fn of_texts(path: &Path, description: usize, metadata: usize) -> Self {
        let text: usize = path.0.iter().map(String::len).sum();
        let path = Self { charged: 2 * path_charge(path), counted: text as u64 };
        path + Self::from(description as u64) + Self::of_metadata(metadata)
    }

    /// Returns what it takes more than another one.
    pub fn saturating_sub(self, other: Self) -> Self {
        let charged = self.charged.saturating_sub(other.charged);
        Self { charged, counted: self.counted.saturating_sub(other.counted) }
    }
}

/// Bytes that count as they are charged.
impl From<u64> for ItemBytes {
    fn from(bytes: u64) -> Self {
        Self { charged: bytes, counted: bytes }
    }
}

impl Add for ItemBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { charged: self.charged + other.charged, counted: self.counted + other.counted }
    }
}

impl AddAssign for ItemBytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for ItemBytes {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { charged: self.charged - other.charged, counted: self.counted - other.counted }
    }
}

impl SubAssign for ItemBytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for ItemBytes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// Returns the charge of a path that two indexes share.
fn path_charge(path: &Path) -> u64 {
    path.0.iter().map(|segment| 40 + segment.len() as u64).sum()
}
