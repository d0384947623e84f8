//! Sets of small numbers.

/// A set of small numbers that only grows.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BitSet(Vec<u64>);

impl BitSet {
    pub(super) fn of(number: usize) -> Self {
        let mut bits = Self::default();
        bits.insert(number);
        bits
    }

    /// Inserts a number. Returns whether it is new.
    pub(super) fn insert(&mut self, number: usize) -> bool {
        let (index, bit) = (number / 64, 1 << (number % 64));
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        let is_new = self.0[index] & bit == 0;
        self.0[index] |= bit;
        is_new
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    /// Adds all numbers of `other`. Returns whether any of them is new.
    pub(super) fn union_with(&mut self, other: &Self) -> bool {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut grew = false;
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            grew |= more & !*word != 0;
            *word |= more;
        }
        grew
    }

    /// Adds the numbers of `other` that are not in `but`.
    pub(super) fn union_difference(&mut self, other: &Self, but: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (index, (word, more)) in self.0.iter_mut().zip(&other.0).enumerate() {
            *word |= more & !but.0.get(index).copied().unwrap_or(0);
        }
    }

    pub(super) fn intersects(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(one, other)| one & other != 0)
    }

    pub(super) fn is_subset(&self, other: &Self) -> bool {
        let word = |index: usize| other.0.get(index).copied().unwrap_or(0);
        self.0.iter().enumerate().all(|(index, own)| own & !word(index) == 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(index * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(numbers: &[usize]) -> BitSet {
        let mut bits = BitSet::default();
        for number in numbers {
            bits.insert(*number);
        }
        bits
    }

    #[test]
    fn sets_of_numbers_do_as_sets() {
        let (few, many) = (bits(&[3, 64]), bits(&[3, 64, 200]));
        assert_eq!(many.iter().collect::<Vec<_>>(), [3, 64, 200]);
        assert!(many.contains(200) && !few.contains(200) && !few.contains(4));
        assert!(few.is_subset(&many) && !many.is_subset(&few) && few.intersects(&many));
        assert!(!bits(&[200]).intersects(&few) && BitSet::default().is_empty() && !few.is_empty());
        let mut sum = few.clone();
        assert!(sum.union_with(&many) && !sum.union_with(&few) && sum == many);
        let mut rest = bits(&[1]);
        rest.union_difference(&many, &few);
        assert_eq!(rest.iter().collect::<Vec<_>>(), [1, 200]);
        assert!(!rest.insert(1) && rest.insert(0));
    }
}
