//! The leaders of a group: one replica in a term, and one replica at a time with a lease.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a report about leases is valid: a process reports every 5 ms, and is checked as often. So the last report
/// of a process that is gone counts once at most.
const REPORT_VALIDITY: Duration = Duration::from_millis(5);

/// The leaders of all terms that were seen.
#[derive(Default)]
pub(crate) struct LeadersByTerm(BTreeMap<(String, u64), u64>);

impl LeadersByTerm {
    /// A replica leads. Whether that is news.
    ///
    /// # Errors
    /// When another one led in that term.
    pub(crate) fn observe(&mut self, group: &str, term: u64, replica: u64) -> Result<bool, String> {
        match self.0.insert((group.to_owned(), term), replica) {
            None => Ok(true),
            Some(other) if other == replica => Ok(false),
            Some(other) => {
                Err(format!("[one leader per term] {group}: replicas {other} and {replica} both led in term {term}"))
            }
        }
    }
}

/// Pairs of terms of a group whose leases overlapped at the last check. One check may see a current report of one and a
/// late report of the other; two checks in a row may not.
#[derive(Default)]
pub(crate) struct LeaseOverlaps(BTreeSet<(String, u64, u64)>);

impl LeaseOverlaps {
    /// Compares the reports of all nodes about their leases. Returns the violations.
    pub(crate) fn find_overlaps(
        &mut self,
        at: Duration,
        told: impl Iterator<Item = (Duration, Vec<(String, u64)>)>,
    ) -> Vec<String> {
        let mut held: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (group, term) in told.filter(|(when, _)| *when + REPORT_VALIDITY > at).flat_map(|(_, leases)| leases) {
            held.entry(group).or_default().push(term);
        }
        let mut both = BTreeSet::new();
        for (group, mut terms) in held {
            terms.sort_unstable();
            both.extend(terms.windows(2).map(|pair| (group.clone(), pair[0], pair[1])));
        }
        let again: Vec<String> = both
            .intersection(&self.0)
            .map(|(group, one, other)| {
                format!("[one lease at a time] {group}: the leaders of terms {one} and {other} both hold one")
            })
            .collect();
        self.0 = both;
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_leases_at_a_time_are_found_unless_one_look_was_late() {
        let ms = Duration::from_millis;
        let lease = |at, term| (at, vec![("g1".to_owned(), term)]);
        let mut leases = LeaseOverlaps::default();
        assert!(leases.find_overlaps(ms(10), [lease(ms(10), 3), lease(ms(9), 4)].into_iter()).is_empty());
        assert!(leases.find_overlaps(ms(15), [lease(ms(15), 4), (ms(14), Vec::new())].into_iter()).is_empty());
        assert!(
            leases.find_overlaps(ms(40), [lease(ms(15), 3), lease(ms(39), 4)].into_iter()).is_empty(),
            "one is paused"
        );
        assert!(leases.find_overlaps(ms(50), [lease(ms(50), 3), lease(ms(49), 4)].into_iter()).is_empty());
        assert_eq!(leases.find_overlaps(ms(55), [lease(ms(55), 3), lease(ms(54), 4)].into_iter()).len(), 1);
    }

    #[test]
    fn a_second_leader_of_a_term_is_found() {
        let mut leaders = LeadersByTerm::default();
        assert_eq!(leaders.observe("g1", 3, 1), Ok(true));
        assert_eq!(leaders.observe("g1", 3, 1), Ok(false));
        assert_eq!(leaders.observe("g1", 4, 2), Ok(true));
        assert_eq!(leaders.observe("g2", 3, 2), Ok(true));
        assert!(leaders.observe("g1", 3, 2).is_err());
    }
}
