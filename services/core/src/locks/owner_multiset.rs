//! Counts the holds below a path, and determines whether one owner has them all.

use super::owner::OwnerId;

/// A multiset of owners. It determines whether it contains any owner besides a given one without storing its elements:
/// the squared distances of all elements from that owner add up to zero exactly if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerMultiset {
    count: u32,
    sum: u64,
    squares: u128,
}

impl OwnerMultiset {
    pub(super) fn add(&mut self, owner: OwnerId) {
        self.count += 1;
        self.sum += u64::from(owner.0);
        self.squares += u128::from(owner.0) * u128::from(owner.0);
    }

    pub(super) fn remove(&mut self, owner: OwnerId) {
        self.count -= 1;
        self.sum -= u64::from(owner.0);
        self.squares -= u128::from(owner.0) * u128::from(owner.0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the only owner in it, if there is exactly one.
    pub(super) fn only(&self) -> Option<OwnerId> {
        let first = self.sum.checked_div(u64::from(self.count))?;
        let owner = OwnerId(u32::try_from(first).ok()?);
        (!self.contains_other_than(owner)).then_some(owner)
    }

    /// Returns whether it contains any other owner.
    pub(super) fn contains_other_than(&self, owner: OwnerId) -> bool {
        let own = u128::from(owner.0);
        self.squares + own * own * u128::from(self.count) != 2 * own * u128::from(self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_knows_whether_anybody_else_is_in_it() {
        let mut crowd = OwnerMultiset::default();
        let (a, b, c) = (OwnerId(0), OwnerId(7), OwnerId(u32::MAX));
        assert!(!crowd.contains_other_than(a));
        crowd.add(b);
        crowd.add(b);
        assert!(!crowd.contains_other_than(b));
        assert!(crowd.contains_other_than(a) && crowd.contains_other_than(c));
        assert_eq!(crowd.only(), Some(b));
        crowd.add(a);
        crowd.add(c);
        assert!(crowd.contains_other_than(b) && crowd.only().is_none());
        crowd.remove(c);
        crowd.remove(a);
        assert!(!crowd.contains_other_than(b));
        crowd.remove(b);
        crowd.remove(b);
        assert!(crowd.is_empty() && crowd == OwnerMultiset::default() && crowd.only().is_none());
    }

    #[test]
    fn owners_on_both_sides_do_not_cancel_out() {
        let mut crowd = OwnerMultiset::default();
        for owner in [4, 6] {
            crowd.add(OwnerId(owner));
        }
        assert!(crowd.contains_other_than(OwnerId(5)) && crowd.only().is_none());
    }
}
