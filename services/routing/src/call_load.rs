//! The calls to one node that have not ended: how many each shard and each account has of them. A shard that stands
//! still, or an account that calls too much, leaves the connection to the others, and an account leaves half of each
//! shard's share to the others. Calls that may be held count apart until they are, so that many at once, as after a
//! failover, leave it to the other calls.

use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use holdfast_cluster::Application;
use holdfast_fair_queue::KeyMap;
use holdfast_types::AccountId;
use holdfast_types::limit::{self, Limit, Reached};
use parking_lot::Mutex;

/// Calls to one shard, and calls of one account, that can't be held.
const MAX_SHARE: Usage = Usage { calls: limit::MAX_LINK_CALLS as usize, bytes: 16 << 20 };
/// What only urgent ones may take of it.
const URGENT_SHARE: Usage = Usage { calls: limit::MIN_URGENT_LINK_CALLS as usize, bytes: 4 << 20 };
/// Calls to one node that can't be held.
const MAX_TOTAL: Usage = Usage { calls: 131_072, bytes: 256 << 20 };
/// What only urgent ones may take of it.
const URGENT_TOTAL: Usage = Usage { calls: 32_768, bytes: 64 << 20 };
/// The same for calls that may be held, and are not yet: to one shard, or of one account.
const MAX_WAITING_SHARE: Usage = Usage { calls: MAX_SHARE.calls / 2, bytes: MAX_SHARE.bytes / 2 };
/// Those to one node.
const MAX_WAITING_TOTAL: Usage = Usage { calls: MAX_TOTAL.calls / 2, bytes: MAX_TOTAL.bytes / 2 };
/// Held calls to one node; they take memory, but no capacity from other calls.
const MAX_HELD: usize = limit::MAX_HELD_LINK_CALLS as usize;

/// What kind of call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Ends or keeps a hold, or asks who leads.
    Urgent,
    /// Any other call with one reply.
    Usual,
    /// May be held: an acquire that may wait, or a subscription to the events of a namespace.
    Deferrable,
    /// The subscription of a session: as [`Self::Deferrable`], but held calls are no reason to refuse it. The sessions
    /// bound them.
    Session,
    /// A subscription of this process itself. There are a few to each node, and they are never refused.
    Feed,
}

/// What a call counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadKey {
    /// `None` for calls that ask who leads, and for those about several shards.
    pub(super) shard: Option<ShardKey>,
    /// The account that the call works for; `None` if it is of none, or of several.
    pub(super) account: Option<AccountId>,
    /// Which share it takes from.
    pub(super) kind: CallKind,
}

impl LoadKey {
    /// Of an urgent call that is of no shard and no account.
    pub(super) const URGENT: Self = Self { shard: None, account: None, kind: CallKind::Urgent };
    /// Of a subscription of this process itself.
    pub(super) const FEED: Self = Self { shard: None, account: None, kind: CallKind::Feed };
}

/// A number of calls, and the bytes of their bodies.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    calls: usize,
    bytes: usize,
}

impl Usage {
    /// Returns whether one more call fits.
    fn fits(self, bytes: usize, max: Self) -> bool {
        self.calls < max.calls && self.bytes + bytes <= max.bytes
    }

    /// Returns what one account may have of a shard's share.
    const fn of_account(self) -> Self {
        Self { calls: self.calls / 2, bytes: self.bytes / 2 }
    }

    const fn without(self, reserve: Self) -> Self {
        Self { calls: self.calls - reserve.calls, bytes: self.bytes - reserve.bytes }
    }

    /// Returns that this much is reached, of that limit.
    fn reached_by(self, limit: &'static Limit) -> Reached {
        Reached { limit, max: self.calls as u64 }
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

impl CallKind {
    /// Returns how many calls there may be once one of this kind is added: to a shard or of an account, and in all.
    const fn max(self) -> (Usage, Usage) {
        match self {
            Self::Urgent | Self::Feed => (MAX_SHARE, MAX_TOTAL),
            Self::Usual => (MAX_SHARE.without(URGENT_SHARE), MAX_TOTAL.without(URGENT_TOTAL)),
            Self::Deferrable | Self::Session => (MAX_WAITING_SHARE, MAX_WAITING_TOTAL),
        }
    }
}

/// A shard: its application, and the first key that it owns.
type ShardKey = (Application, u32);

/// Calls that are not held.
#[derive(Default)]
struct Shares {
    total: Usage,
    shards: KeyMap<ShardKey, Usage>,
    accounts: KeyMap<AccountId, Usage>,
    accounts_at_shards: KeyMap<AccountId, KeyMap<ShardKey, Usage>>,
}

/// What an account has in progress of the calls that can't be held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountCalls {
    /// To the node that has most of them.
    pub to_node: usize,
    /// To the shard that has most of them.
    pub to_shard: usize,
}

impl AccountCalls {
    /// Returns the higher of both numbers.
    pub(super) fn max(self, other: Self) -> Self {
        Self { to_node: self.to_node.max(other.to_node), to_shard: self.to_shard.max(other.to_shard) }
    }
}

#[derive(Default)]
struct Counts {
    usual: Shares,
    waiting: Shares,
    held: usize,
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
    /// Counts a call; `None` for one that never counts.
    ///
    /// # Errors
    /// The limit that is reached, with what it allows calls of this kind.
    pub(super) fn add(self: &Arc<Self>, key: LoadKey, bytes: usize) -> Result<Option<CountedCall>, Reached> {
        if key.kind == CallKind::Feed {
            return Ok(None);
        }
        let mut counts = self.0.lock();
        if key.kind == CallKind::Deferrable && counts.held >= MAX_HELD {
            return Err(Reached { limit: &limit::HELD_CALLS_TO_NODE, max: limit::MAX_HELD_LINK_CALLS });
        }
        counts.shares(key.kind).add(key, bytes)?;
        Ok(Some(CountedCall { load: Arc::clone(self), key, bytes, is_held: false }))
    }

    /// Returns the calls of an account that can't be held.
    pub(super) fn calls_of(&self, account: AccountId) -> AccountCalls {
        let counts = self.0.lock();
        let to_node = counts.usual.accounts.get(&account).map_or(0, |usage| usage.calls);
        let at_shards = counts.usual.accounts_at_shards.get(&account).into_iter().flat_map(KeyMap::values);
        AccountCalls { to_node, to_shard: at_shards.map(|usage| usage.calls).max().unwrap_or(0) }
    }
}

impl Counts {
    fn shares(&mut self, kind: CallKind) -> &mut Shares {
        match kind {
            CallKind::Deferrable | CallKind::Session => &mut self.waiting,
            CallKind::Urgent | CallKind::Usual | CallKind::Feed => &mut self.usual,
        }
    }
}

impl Shares {
    fn add(&mut self, key: LoadKey, bytes: usize) -> Result<(), Reached> {
        let (max_share, max_total) = key.kind.max();
        let of_shard = key.shard.and_then(|shard| self.shards.get(&shard)).copied().unwrap_or_default();
        let of_account = key.account.and_then(|account| self.accounts.get(&account)).copied().unwrap_or_default();
        let max_at_shard = max_share.of_account();
        if !self.of_account_at_shard(key).fits(bytes, max_at_shard) {
            return Err(max_at_shard.reached_by(&limit::CALLS_OF_ACCOUNT_TO_SHARD));
        }
        if !of_shard.fits(bytes, max_share) {
            return Err(max_share.reached_by(&limit::CALLS_TO_SHARD));
        }
        if !of_account.fits(bytes, max_share) {
            return Err(max_share.reached_by(&limit::CALLS_OF_ACCOUNT));
        }
        if !self.total.fits(bytes, max_total) {
            return Err(max_total.reached_by(&limit::CALLS_TO_NODE));
        }
        self.total.add(bytes);
        if let Some(shard) = key.shard {
            self.shards.entry(shard).or_default().add(bytes);
        }
        if let Some(account) = key.account {
            self.accounts.entry(account).or_default().add(bytes);
            if let Some(shard) = key.shard {
                self.accounts_at_shards.entry(account).or_default().entry(shard).or_default().add(bytes);
            }
        }
        Ok(())
    }

    fn of_account_at_shard(&self, key: LoadKey) -> Usage {
        let at_shard = key.account.zip(key.shard);
        let usage = at_shard.and_then(|(account, shard)| self.accounts_at_shards.get(&account)?.get(&shard));
        usage.copied().unwrap_or_default()
    }

    fn remove(&mut self, key: LoadKey, bytes: usize) {
        self.total.remove(bytes);
        if let Some(shard) = key.shard {
            remove_from(&mut self.shards, shard, bytes);
        }
        if let Some(account) = key.account {
            remove_from(&mut self.accounts, account, bytes);
            if let Some(shard) = key.shard
                && let Entry::Occupied(mut at_shards) = self.accounts_at_shards.entry(account)
            {
                remove_from(at_shards.get_mut(), shard, bytes);
                if at_shards.get().is_empty() {
                    at_shards.remove();
                }
            }
        }
    }
}

fn remove_from<K: Eq + Hash>(counts: &mut KeyMap<K, Usage>, key: K, bytes: usize) {
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
            counts.shares(self.key.kind).remove(self.key, self.bytes);
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
            counts.shares(self.key.kind).remove(self.key, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL_SHARE: Usage = MAX_SHARE.without(URGENT_SHARE);
    const USUAL_AT_SHARD: Usage = USUAL_SHARE.of_account();

    fn of(kind: CallKind, shard: u32, account: u64) -> LoadKey {
        LoadKey { shard: Some((Application::Locks, shard)), account: Some(AccountId(account)), kind }
    }

    fn key(shard: u32, account: u64) -> LoadKey {
        of(CallKind::Usual, shard, account)
    }

    fn add(load: &Arc<CallLoad>, key: LoadKey) -> CountedCall {
        load.add(key, 0).ok().flatten().unwrap()
    }

    fn refused(load: &Arc<CallLoad>, key: LoadKey) -> Option<&'static str> {
        load.add(key, 0).err().map(|reached| reached.limit.name)
    }

    /// Adds calls until one is refused.
    fn fill(load: &Arc<CallLoad>, bytes: usize, key: impl Fn(usize) -> LoadKey) -> (Vec<CountedCall>, &'static str) {
        let mut calls = Vec::new();
        loop {
            match load.add(key(calls.len()), bytes) {
                Ok(call) => calls.push(call.unwrap()),
                Err(reached) => return (calls, reached.limit.name),
            }
        }
    }

    #[test]
    fn a_shard_that_stands_still_leaves_the_connection_to_the_others() {
        let load = Arc::<CallLoad>::default();
        let (calls, limit) = fill(&load, 100, |call| key(1, call as u64));
        assert_eq!((calls.len(), limit), (USUAL_SHARE.calls, "calls_to_shard"));
        add(&load, key(2, 0));
        // Whoever asks who leads the shard is let through.
        add(&load, LoadKey::URGENT);
        drop(calls);
        add(&load, key(1, 0));
        let counts = load.0.lock();
        let usual = &counts.usual;
        assert!(usual.shards.is_empty() && usual.accounts.is_empty() && usual.total == Usage::default());
        assert!(usual.accounts_at_shards.is_empty());
    }

    #[test]
    fn an_account_leaves_half_of_a_shard_to_the_others() {
        let load = Arc::<CallLoad>::default();
        let (slow, limit) = fill(&load, 0, |_| key(1, 1));
        assert_eq!((slow.len(), limit), (USUAL_AT_SHARD.calls, "calls_of_account_to_shard"));
        let reached = Reached { limit: &limit::CALLS_OF_ACCOUNT_TO_SHARD, max: 1_536 };
        assert_eq!(load.add(key(1, 1), 0).err(), Some(reached));
        assert_eq!(load.calls_of(AccountId(1)), AccountCalls { to_node: 1_536, to_shard: 1_536 });
        let (others, limit) = fill(&load, 0, |_| key(1, 2));
        assert_eq!((others.len(), limit), (USUAL_AT_SHARD.calls, "calls_of_account_to_shard"));
        // It has as much at another shard, and what it needs to release.
        let (elsewhere, limit) = fill(&load, 0, |_| key(2, 1));
        assert_eq!((elsewhere.len(), limit), (USUAL_AT_SHARD.calls, "calls_of_account_to_shard"));
        let (urgent, limit) = fill(&load, 0, |_| of(CallKind::Urgent, 1, 1));
        assert_eq!((urgent.len(), limit), (URGENT_SHARE.of_account().calls, "calls_of_account_to_shard"));
        // Large ones count by their bytes: 6 MiB.
        let (large, limit) = fill(&Arc::default(), 1 << 20, |_| key(1, 1));
        assert_eq!((large.len(), limit), (6, "calls_of_account_to_shard"));
    }

    #[test]
    fn a_shard_that_stands_still_leaves_their_releases_at_others_to_its_accounts() {
        let load = Arc::<CallLoad>::default();
        let (mut calls, limit) = fill(&load, 0, |_| key(1, 1));
        assert_eq!((calls.len(), limit), (USUAL_AT_SHARD.calls, "calls_of_account_to_shard"));
        let (more, _) = fill(&load, 0, |_| key(3, 1));
        assert_eq!(calls.len() + more.len(), USUAL_SHARE.calls);
        assert_eq!(refused(&load, key(2, 1)), Some("calls_of_account"));
        add(&load, of(CallKind::Urgent, 2, 1));
        let (urgent, limit) = fill(&load, 0, |call| of(CallKind::Urgent, 2 + call as u32, 1));
        assert_eq!((urgent.len(), limit), (URGENT_SHARE.calls, "calls_of_account"));
        // Those that are urgent take from the others as well.
        calls.pop();
        assert_eq!(refused(&load, key(2, 1)), Some("calls_of_account"));
    }

    #[test]
    fn an_account_has_its_share_in_calls_and_in_bytes_and_others_have_theirs() {
        let load = Arc::<CallLoad>::default();
        let (_calls, limit) = fill(&load, 0, |call| key(call as u32, 1));
        assert_eq!((load.0.lock().usual.total.calls, limit), (USUAL_SHARE.calls, "calls_of_account"));
        add(&load, key(0, 2));
        let (large, limit) = fill(&load, 1 << 20, |call| key(call as u32, 3));
        assert_eq!((large.len(), limit), (12, "calls_of_account"));
        let (urgent, limit) = fill(&load, 1 << 20, |call| of(CallKind::Urgent, call as u32, 3));
        assert_eq!((urgent.len(), limit), (4, "calls_of_account"));
    }

    #[test]
    fn a_refusal_tells_what_calls_of_its_kind_may_have() {
        let max = |kind, is_of_shard: bool| {
            let load = Arc::<CallLoad>::default();
            let key = |call: usize| if is_of_shard { of(kind, 1, call as u64) } else { of(kind, call as u32, 1) };
            let (calls, limit) = fill(&load, 0, key);
            let reached = load.add(key(calls.len()), 0).err().unwrap();
            assert_eq!((reached.limit.name, reached.max), (limit, calls.len() as u64));
            reached.max
        };
        for is_of_shard in [true, false] {
            let of_kinds = [CallKind::Usual, CallKind::Urgent, CallKind::Deferrable, CallKind::Session];
            assert_eq!(of_kinds.map(|kind| max(kind, is_of_shard)), [3_072, 4_096, 2_048, 2_048]);
        }
    }

    #[test]
    fn a_node_has_so_many_calls_in_all() {
        let load = Arc::<CallLoad>::default();
        let of_many = |kind| move |call: usize| of(kind, call as u32 % 1_000, call as u64 % 1_000);
        let (calls, limit) = fill(&load, 0, of_many(CallKind::Usual));
        assert_eq!((calls.len(), limit), (MAX_TOTAL.calls - URGENT_TOTAL.calls, "calls_to_node"));
        let (urgent, limit) = fill(&load, 0, of_many(CallKind::Urgent));
        assert_eq!((urgent.len(), limit), (URGENT_TOTAL.calls, "calls_to_node"));
        let (waiting, limit) = fill(&load, 0, of_many(CallKind::Deferrable));
        assert_eq!((waiting.len(), limit), (MAX_WAITING_TOTAL.calls, "calls_to_node"));
        // The feeds of this process go on.
        assert!(load.add(LoadKey::FEED, 0).is_ok_and(|call| call.is_none()));
    }

    #[test]
    fn a_full_node_refuses_calls_of_accounts_without_any_but_no_releases_and_other_nodes_go_on() {
        let (full, other_node) = (Arc::<CallLoad>::default(), Arc::<CallLoad>::default());
        let (_calls, limit) = fill(&full, 0, |call| key(call as u32 % 1_000, call as u64 % 1_000));
        assert_eq!(limit, "calls_to_node");
        // An account without any call, in a shard without any.
        assert_eq!(refused(&full, key(5_000, 5_000)), Some("calls_to_node"));
        add(&full, of(CallKind::Urgent, 5_000, 5_000));
        add(&other_node, key(5_000, 5_000));
    }

    #[test]
    fn calls_that_are_to_be_held_leave_their_shard_and_their_account_to_others() {
        let load = Arc::<CallLoad>::default();
        let (mut waiting, limit) = fill(&load, 0, |_| of(CallKind::Deferrable, 1, 1));
        assert_eq!((waiting.len(), limit), (MAX_WAITING_SHARE.of_account().calls, "calls_of_account_to_shard"));
        assert_eq!(refused(&load, of(CallKind::Session, 1, 1)), Some("calls_of_account_to_shard"));
        let (usual, _) = fill(&load, 0, |_| key(1, 1));
        assert_eq!(usual.len(), USUAL_AT_SHARD.calls);
        // One that is held makes room for the next.
        waiting[0].hold();
        add(&load, of(CallKind::Deferrable, 1, 1));
    }

    #[test]
    fn held_calls_are_no_reason_to_refuse_others() {
        let load = Arc::<CallLoad>::default();
        let waits = of(CallKind::Deferrable, 1, 1);
        let mut held = Vec::new();
        for _ in 0..MAX_HELD {
            let mut call = load.add(waits, 1_000).ok().flatten().unwrap();
            call.hold();
            call.hold();
            held.push(call);
        }
        let reached = Reached { limit: &limit::HELD_CALLS_TO_NODE, max: 262_144 };
        assert_eq!(load.add(waits, 0).err(), Some(reached));
        add(&load, key(1, 1));
        add(&load, of(CallKind::Session, 1, 1)).hold();
        assert!(load.add(LoadKey::FEED, 0).is_ok());
        held.pop();
        add(&load, waits);
    }
}
