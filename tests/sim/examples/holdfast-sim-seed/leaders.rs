//! Who leads a shard in a term: one replica, and no other one ever.

use std::collections::BTreeMap;

/// The leaders of all terms that were seen.
#[derive(Default)]
pub(crate) struct Leaders(BTreeMap<(String, u64), u64>);

impl Leaders {
    /// A replica leads. Whether that is news.
    ///
    /// # Errors
    /// When another one led in that term.
    pub(crate) fn leads(&mut self, shard: &str, term: u64, replica: u64) -> Result<bool, String> {
        match self.0.insert((shard.to_owned(), term), replica) {
            None => Ok(true),
            Some(other) if other == replica => Ok(false),
            Some(other) => {
                Err(format!("[one leader per term] {shard}: replicas {other} and {replica} both led in term {term}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_leader_of_a_term_is_found() {
        let mut leaders = Leaders::default();
        assert_eq!(leaders.leads("locks_00", 3, 1), Ok(true));
        assert_eq!(leaders.leads("locks_00", 3, 1), Ok(false));
        assert_eq!(leaders.leads("locks_00", 4, 2), Ok(true));
        assert_eq!(leaders.leads("locks_01", 3, 2), Ok(true));
        assert!(leaders.leads("locks_00", 3, 2).is_err());
    }
}
