//! A set of page numbers, to find a page with room.

/// Numbers as bits. The lowest is found by a scan from a lower bound, which takes 64 numbers in a step.
#[derive(Clone, Debug, Default)]
pub(super) struct FreePages {
    words: Vec<u64>,
    /// All words before this one are zero.
    first: usize,
}

impl FreePages {
    /// Returns the lowest number.
    pub(super) fn first(&mut self) -> Option<u32> {
        while self.words.get(self.first) == Some(&0) {
            self.first += 1;
        }
        let word = self.words.get(self.first)?;
        u32::try_from(self.first * 64).ok()?.checked_add(word.trailing_zeros())
    }

    pub(super) fn insert(&mut self, number: u32) {
        let (index, bit) = word_and_bit(number);
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        if let Some(word) = self.words.get_mut(index) {
            *word |= bit;
        }
        self.first = self.first.min(index);
    }

    pub(super) fn remove(&mut self, number: u32) {
        let (index, bit) = word_and_bit(number);
        if let Some(word) = self.words.get_mut(index) {
            *word &= !bit;
        }
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        self.first = self.first.min(self.words.len());
    }
}

fn word_and_bit(number: u32) -> (usize, u64) {
    (number as usize / 64, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_lowest_number_is_found_whatever_comes_and_goes() {
        let (mut pages, mut expected) = (FreePages::default(), BTreeSet::new());
        let mut seed = 3_u64;
        for step in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (seed >> 33) as u32 % if step % 5_000 < 2_500 { 1_000 } else { 70 };
            if (seed >> 20).is_multiple_of(3) {
                pages.insert(number);
                expected.insert(number);
            } else {
                pages.remove(number);
                expected.remove(&number);
            }
            assert_eq!(pages.first(), expected.first().copied());
        }
        (0..1_000).for_each(|number| pages.remove(number));
        assert_eq!((pages.first(), pages.words.len()), (None, 0));
    }
}
