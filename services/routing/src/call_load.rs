//! The calls to one node that have not ended: how many each shard and each account has of them. A shard that stands
//! still, or an account that calls too much, leaves the connection to the others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use holdfast_cluster::Application;
use holdfast_types::AccountId;
use holdfast_types::limit::{self, Limit};
use parking_lot::Mutex;

/// Calls to one shard, and calls of one account.
const MAX_SHARE: Usage = Usage { calls: limit::MAX_LINK_CALLS as usize, bytes: 16 << 20 };
/// Calls to one node that are not held.
const MAX_TOTAL: Usage = Usage { calls: 131_072, bytes: 256 << 20 };
/// Held calls to one node; they take memory, but no capacity from other calls.
const MAX_HELD: usize = 262_144;

/// What a call counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadKey {
    /// The shard: its application, and the first key that it owns. `None` for calls that ask who leads, and for those
    /// about several shards.
    pub(super) shard: Option<(Application, u32)>,
    /// The account that the call works for; `None` if it is of none, or of several.
    pub(super) account: Option<AccountId>,
}

/// A number of calls, and the bytes of their bodies.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    calls: usize,
    bytes: usize,
}

impl Usage {
    /// Returns whether one more call fits.
    fn has_room(self, bytes: usize, max: Self) -> bool {
        self.calls < max.calls && self.bytes + bytes <= max.bytes
    }

    fn add(&mut self, bytes: usize) {
        self.calls += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.calls -= 1;
        self.bytes -= bytes;
    }
}

#[derive(Default)]
struct Counts {
    total: Usage,
    held: usize,
    shards: HashMap<(Application, u32), Usage>,
    accounts: HashMap<AccountId, Usage>,
}

/// Counts the calls to one node.
#[derive(Default)]
pub(super) struct CallLoad(Mutex<Counts>);

/// A call that is counted until it is dropped.
pub(super) struct CountedCall {
    load: Arc<CallLoad>,
    key: LoadKey,
    bytes: usize,
    is_held: bool,
}

impl CallLoad {
    /// Counts a call.
    ///
    /// # Errors
    /// The limit that is reached. Held calls are only a reason to refuse one that `may_be_held`.
    pub(super) fn add(
        self: &Arc<Self>,
        key: LoadKey,
        bytes: usize,
        may_be_held: bool,
    ) -> Result<CountedCall, &'static Limit> {
        let mut counts = self.0.lock();
        let of_shard = key.shard.and_then(|shard| counts.shards.get(&shard)).copied().unwrap_or_default();
        let of_account = key.account.and_then(|account| counts.accounts.get(&account)).copied().unwrap_or_default();
        if !of_shard.has_room(bytes, MAX_SHARE) {
            return Err(&limit::CALLS_TO_SHARD);
        }
        if !of_account.has_room(bytes, MAX_SHARE) {
            return Err(&limit::CALLS_OF_ACCOUNT);
        }
        if !counts.total.has_room(bytes, MAX_TOTAL) || (may_be_held && counts.held >= MAX_HELD) {
            return Err(&limit::CALLS_TO_NODE);
        }
        counts.total.add(bytes);
        if let Some(shard) = key.shard {
            counts.shards.entry(shard).or_default().add(bytes);
        }
        if let Some(account) = key.account {
            counts.accounts.entry(account).or_default().add(bytes);
        }
        Ok(CountedCall { load: Arc::clone(self), key, bytes, is_held: false })
    }
}

impl Counts {
    fn remove(&mut self, key: LoadKey, bytes: usize) {
        self.total.remove(bytes);
        if let Some(shard) = key.shard {
            remove_from(&mut self.shards, shard, bytes);
        }
        if let Some(account) = key.account {
            remove_from(&mut self.accounts, account, bytes);
        }
    }
}

fn remove_from<K: Eq + Hash>(counts: &mut HashMap<K, Usage>, key: K, bytes: usize) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        count.get_mut().remove(bytes);
        if count.get().calls == 0 {
            count.remove();
        }
    }
}

impl CountedCall {
    /// Notes that the node holds the reply back: from now on the call counts as a held one.
    pub(super) fn hold(&mut self) {
        if !std::mem::replace(&mut self.is_held, true) {
            let mut counts = self.load.0.lock();
            counts.remove(self.key, self.bytes);
            counts.held += 1;
        }
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        let mut counts = self.load.0.lock();
        if self.is_held {
            counts.held -= 1;
        } else {
            counts.remove(self.key, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(shard: u32, account: u64) -> LoadKey {
        LoadKey { shard: Some((Application::Locks, shard)), account: Some(AccountId(account)) }
    }

    /// Adds calls until one is refused.
    fn fill(load: &Arc<CallLoad>, bytes: usize, key: impl Fn(usize) -> LoadKey) -> (Vec<CountedCall>, &'static str) {
        let mut calls = Vec::new();
        loop {
            match load.add(key(calls.len()), bytes, false) {
                Ok(call) => calls.push(call),
                Err(limit) => return (calls, limit.name),
            }
        }
    }

    #[test]
    fn a_shard_that_stands_still_leaves_the_connection_to_the_others() {
        let load = Arc::<CallLoad>::default();
        let (calls, limit) = fill(&load, 100, |call| key(1, call as u64));
        assert_eq!((calls.len(), limit), (MAX_SHARE.calls, "calls_to_shard"));
        load.add(key(2, 0), 100, false).ok().unwrap();
        // Whoever asks who leads the shard is let through.
        load.add(LoadKey::default(), 100, false).ok().unwrap();
        drop(calls);
        load.add(key(1, 0), 100, false).ok().unwrap();
        let counts = load.0.lock();
        assert!(counts.shards.is_empty() && counts.accounts.is_empty() && counts.total == Usage::default());
    }

    #[test]
    fn an_account_has_its_share_in_calls_and_in_bytes() {
        let load = Arc::<CallLoad>::default();
        let (_calls, limit) = fill(&load, 0, |call| key(call as u32, 1));
        assert_eq!((load.0.lock().total.calls, limit), (MAX_SHARE.calls, "calls_of_account"));
        load.add(key(0, 2), 0, false).ok().unwrap();
        let (large, limit) = fill(&load, 1 << 20, |call| key(call as u32, 3));
        assert_eq!((large.len(), limit), (16, "calls_of_account"));
    }

    #[test]
    fn a_node_has_so_many_calls_in_all() {
        let load = Arc::<CallLoad>::default();
        let (calls, limit) = fill(&load, 0, |call| key(call as u32 % 1_000, call as u64 % 1_000));
        assert_eq!((calls.len(), limit), (MAX_TOTAL.calls, "calls_to_node"));
    }

    #[test]
    fn held_calls_are_no_reason_to_refuse_others() {
        let load = Arc::<CallLoad>::default();
        let mut held = Vec::new();
        for _ in 0..MAX_HELD {
            let mut call = load.add(key(1, 1), 1_000, true).ok().unwrap();
            call.hold();
            call.hold();
            held.push(call);
        }
        assert_eq!(load.add(key(1, 1), 0, true).err().map(|limit| limit.name), Some("calls_to_node"));
        load.add(key(1, 1), 0, false).ok().unwrap();
        held.pop();
        load.add(key(1, 1), 0, true).ok().unwrap();
    }
}
