//! The jobs of a latch that are done.

use holdfast_mutations::{Mutation, is_enabled};

use super::charge;
use super::name_set::NameSet;
use crate::{Jobs, LatchIds};

const WORD_BITS: u64 = 64;

/// Jobs that are done, each once.
#[derive(Clone, Debug)]
pub(super) enum DoneJobs {
    /// By id.
    Named(NameSet),
    /// By number.
    Indexed(IndexSet),
}

/// A set of numbers that only grows. Bits are set by words, so a range of a million costs some microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct IndexSet {
    words: Vec<u64>,
    len: u64,
}

impl DoneJobs {
    pub(super) fn new(ids: LatchIds) -> Self {
        match ids {
            LatchIds::Named => Self::Named(NameSet::default()),
            LatchIds::Indexed => Self::Indexed(IndexSet::default()),
        }
    }

    /// Returns the number of jobs that are done.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Named(names) => names.len(),
            Self::Indexed(numbers) => numbers.len,
        }
    }

    /// Returns the bytes of the ids; those of numbers count with the total.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Named(names) => names.len() * charge::of_id("") + names.text_bytes(),
            Self::Indexed(_) => 0,
        }
    }

    /// Returns what the new ones among some jobs take at most.
    pub(super) fn bytes_of_new(&self, jobs: &Jobs) -> u64 {
        match (self, jobs) {
            (Self::Named(names), Jobs::Named(ids)) => {
                ids.iter().filter(|id| !names.contains(id)).map(|id| charge::of_id(id)).sum()
            }
            _ => 0,
        }
    }

    /// Adds jobs until `total` are done. Returns how many were new.
    pub(super) fn add(&mut self, jobs: &Jobs, total: u64) -> u64 {
        let before = self.len();
        match (&mut *self, jobs) {
            (Self::Named(names), Jobs::Named(ids)) => {
                for id in ids {
                    if names.len() < total && !names.insert(id) && is_enabled(Mutation::LatchDoubleCount) {
                        names.insert(&format!("{id} again"));
                    }
                }
            }
            (Self::Indexed(numbers), Jobs::Indexed(ranges)) => {
                ranges.iter().for_each(|(from, to)| numbers.insert_range(*from, *to));
            }
            // Checked before.
            (Self::Named(_), _) | (Self::Indexed(_), _) => {}
        }
        self.len() - before
    }
}

impl IndexSet {
    /// Inserts all numbers of a range; both ends are part of it.
    fn insert_range(&mut self, from: u64, to: u64) {
        let index = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
        let (first, last) = (from / WORD_BITS, to / WORD_BITS);
        if let Some(more) = (index(last) + 1).checked_sub(self.words.len()) {
            self.words.reserve_exact(more);
            self.words.resize(index(last) + 1, 0);
        }
        for word in first..=last {
            let low = if word == first { from % WORD_BITS } else { 0 };
            let high = if word == last { to % WORD_BITS } else { WORD_BITS - 1 };
            let bits = (u64::MAX << low) & (u64::MAX >> (WORD_BITS - 1 - high));
            self.insert_bits(index(word), bits);
        }
    }

    fn insert_bits(&mut self, index: usize, bits: u64) {
        if let Some(word) = self.words.get_mut(index) {
            self.len += u64::from((bits & !*word).count_ones());
            *word |= bits;
        }
    }

    /// Returns the words up to the last one that is not 0.
    pub(super) fn words(&self) -> &[u64] {
        let used = self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.words.get(..used).unwrap_or_default()
    }

    /// Adds words of a snapshot after those that are there.
    pub(super) fn restore(&mut self, words: &[u64]) {
        for word in words {
            self.words.push(0);
            self.insert_bits(self.words.len() - 1, *word);
        }
    }

    /// Iterates over the ranges of numbers after another, in order.
    pub(super) fn ranges_from(&self, from: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut next = Some(from);
        std::iter::from_fn(move || {
            let first = self.next(next?, true)?;
            let end = self.next(first, false);
            next = end;
            let last = end.unwrap_or(self.words.len() as u64 * WORD_BITS) - 1;
            Some((first, last))
        })
    }

    /// Returns the first number from one on that is in the set, or that is not. None beyond the words.
    fn next(&self, from: u64, is_in: bool) -> Option<u64> {
        let start = usize::try_from(from / WORD_BITS).ok()?;
        let mut mask = u64::MAX << (from % WORD_BITS);
        for (index, word) in self.words.iter().enumerate().skip(start) {
            let wanted = if is_in { *word } else { !*word } & mask;
            if wanted != 0 {
                return Some(index as u64 * WORD_BITS + u64::from(wanted.trailing_zeros()));
            }
            mask = u64::MAX;
        }
        None
    }

    pub(super) fn last(&self) -> Option<u64> {
        let words = self.words();
        let last = words.last()?;
        Some(words.len() as u64 * WORD_BITS - 1 - u64::from(last.leading_zeros()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_are_in_the_set_once_and_read_as_ranges() {
        let (mut set, mut expected) = (IndexSet::default(), BTreeSet::new());
        for (from, to) in [(3, 3), (60, 70), (64, 127), (0, 1), (200, 333), (128, 128), (319, 320), (61, 62)] {
            set.insert_range(from, to);
            expected.extend(from..=to);
            assert_eq!(set.len, expected.len() as u64);
            assert_eq!(set.last(), expected.last().copied());
            for start in [0, 1, 61, 127, 128, 400] {
                let read: Vec<u64> = set.ranges_from(start).flat_map(|(from, to)| from..=to).collect();
                assert!(read.iter().copied().eq(expected.range(start..).copied()), "from {start}: {read:?}");
            }
        }
        let mut restored = IndexSet::default();
        set.words().chunks(2).for_each(|words| restored.restore(words));
        assert_eq!((restored.words(), restored.len), (set.words(), set.len));
    }

    #[test]
    fn no_more_than_the_total_are_kept() {
        let mut done = DoneJobs::new(LatchIds::Named);
        let jobs = |ids: &[&str]| Jobs::Named(ids.iter().map(|id| (*id).to_owned()).collect());
        assert_eq!(done.add(&jobs(&["a", "b", "a"]), 3), 2);
        assert_eq!(done.add(&jobs(&["b", "c", "d"]), 3), 1);
        assert_eq!(done.add(&jobs(&["d"]), 3), 0);
    }
}
