//! The keys of locks shards where an account had namespaces: the first and the last one of each 256th of all keys. So an
//! account that creates and deletes many namespaces has few of them. Wherever the bounds of the shards are, every shard
//! that owns at least such a part and had a namespace is among them.

use std::collections::BTreeMap;
use std::iter;

use crate::{AccountId, Application, shard_key};

/// The first and the last key by their highest byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EndedKeys(BTreeMap<u8, (u32, u32)>);

impl EndedKeys {
    /// Adds the key of a namespace.
    pub(super) fn insert(&mut self, account: AccountId, namespace: &str) {
        self.insert_key(shard_key(Application::Locks, account.0, namespace));
    }

    pub(super) fn insert_key(&mut self, key: u32) {
        let [part, ..] = key.to_be_bytes();
        let (first, last) = self.0.entry(part).or_insert((key, key));
        *first = key.min(*first);
        *last = key.max(*last);
    }

    /// Iterates over the keys in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.values().flat_map(|&(first, last)| iter::once(first).chain((first < last).then_some(last)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_namespaces_an_account_had_its_keys_are_few() {
        let mut keys = EndedKeys::default();
        for number in 0..10_000 {
            keys.insert(AccountId(7), &format!("n{number}"));
        }
        assert_eq!(keys.iter().count(), 512);
        assert!(keys.iter().is_sorted());
    }

    #[test]
    fn a_shard_whose_bound_is_inside_a_part_is_among_them() {
        let mut keys = EndedKeys::default();
        let inserted = [0x1200_0200, 0x1200_0100, 0x1200_0300, 0x3400_0000];
        inserted.into_iter().for_each(|key| keys.insert_key(key));
        assert_eq!(keys.iter().collect::<Vec<_>>(), [0x1200_0100, 0x1200_0300, 0x3400_0000]);
    }
}
