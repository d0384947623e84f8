//! The keys of locks shards where an account had namespaces: one for each 256th of all keys. So an account that creates
//! and deletes many namespaces has few of them, and every shard that owns at least such a part is among them.

use std::collections::BTreeMap;

use crate::{AccountId, Application, shard_key};

/// Keys by their highest byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EndedKeys(BTreeMap<u8, u32>);

impl EndedKeys {
    /// Adds the key of a namespace. The first of each part stays.
    pub(super) fn insert(&mut self, account: AccountId, namespace: &str) {
        self.insert_key(shard_key(Application::Locks, account.0, namespace));
    }

    pub(super) fn insert_key(&mut self, key: u32) {
        let [part, ..] = key.to_be_bytes();
        self.0.entry(part).or_insert(key);
    }

    /// Iterates over the keys in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.values().copied()
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
        assert_eq!(keys.iter().count(), 256);
        assert!(keys.iter().is_sorted());
    }
}
