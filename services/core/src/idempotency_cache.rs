//! What is remembered so that repeats answer as the first did and bring nothing back.

use std::collections::{BTreeMap, VecDeque};

/// The latest of a kind, by what names them; the oldest is forgotten first. Refusals are not remembered: they changed
/// nothing, so a repeat is judged afresh.
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

    /// Remembers one more, and so many at most.
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

    /// Oldest first.
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
