//! Cached results of creations. A repeat of a creation returns the first result and does not recreate what was deleted
//! since.

use std::collections::{BTreeMap, VecDeque};

/// The latest results by the id of their request; evicts the oldest first. Errors are not cached: they changed nothing,
/// so a repeat is evaluated again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyCache<K, T> {
    order: VecDeque<K>,
    results: BTreeMap<K, T>,
}

impl<K, T> Default for IdempotencyCache<K, T> {
    fn default() -> Self {
        Self { order: VecDeque::new(), results: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, T> IdempotencyCache<K, T> {
    pub(crate) fn get(&self, id: &K) -> Option<&T> {
        self.results.get(id)
    }

    /// Adds a result, keeping at most `max`.
    pub(crate) fn insert(&mut self, id: K, answer: T, max: usize) {
        if self.results.insert(id.clone(), answer).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > max {
            if let Some(oldest) = self.order.pop_front() {
                self.results.remove(&oldest);
            }
        }
        assert_eq!(self.order.len(), self.results.len(), "every remembered creation has its place in the order");
    }

    /// Iterates from the oldest to the newest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &T)> {
        self.order.iter().filter_map(|id| self.results.get(id).map(|answer| (id, answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestId;

    fn id(number: usize) -> RequestId {
        RequestId((number as u128).to_be_bytes())
    }

    #[test]
    fn the_oldest_creation_is_forgotten_first() {
        let mut remembered = IdempotencyCache::default();
        for number in 0..=3 {
            remembered.insert(id(number), number, 3);
        }
        assert_eq!(remembered.get(&id(0)), None);
        assert_eq!(remembered.get(&id(1)), Some(&1));
        assert_eq!(remembered.iter().count(), 3);
    }
}
