//! Memory usage of a node's shards per account, and the accounts that must not grow.
//!
//! A shard keeps its accounts within their limits by itself, identically on every replica. An account may reach that
//! limit in every shard, though, and many accounts together may exceed the machine's memory. Only leaders check this,
//! before they propose: entries in the log are always applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_core::limit::{self, MAX_SHARD_BYTES, Reached};
use holdfast_core::locks::Charge;
use holdfast_core::{AccountId, CommandError, Limits};
use holdfast_fair_queue::KeyMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The memory usage of a node. Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct NodeMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Limit in bytes for all accounts together.
    limit: u64,
    /// Returns why nothing new fits, by the limit.
    full: fn(u64) -> CommandError,
    usage: Mutex<MemoryUsage>,
    /// True if a request may be rejected; checked first because it is mostly false.
    is_under_pressure: AtomicBool,
    /// True while there is little memory left, for whatever account.
    is_scarce: AtomicBool,
    /// Notifies all shards when that becomes true.
    became_scarce: Notify,
}

#[derive(Debug, Default)]
struct MemoryUsage {
    accounts: KeyMap<AccountId, AccountUsage>,
    total: u64,
    /// Accounts over their limit.
    beyond: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct AccountUsage {
    bytes: u64,
    /// Limit for one shard.
    max: u64,
}

impl NodeMemory {
    /// Creates a node's memory with this limit in bytes for all accounts together.
    pub(crate) fn new(limit: u64) -> Self {
        Self::with_refusal(limit, |max| CommandError::Full(Reached { limit: &limit::MEMORY, max }.to_string()))
    }

    /// Creates the memory for the lock tables of a node that are in no log, with this limit in bytes.
    pub(crate) fn of_tables(limit: u64) -> Self {
        Self::with_refusal(limit, |max| CommandError::QuotaExceeded {
            what: "the bytes of lock tables in the memory of a node".into(),
            max,
            hint: "release locks, close sessions, or have --soft-memory raised".into(),
        })
    }

    fn with_refusal(limit: u64, full: fn(u64) -> CommandError) -> Self {
        let (is_under_pressure, is_scarce) = (AtomicBool::new(false), AtomicBool::new(false));
        let (usage, became_scarce) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { limit, full, usage, is_under_pressure, is_scarce, became_scarce }))
    }

    /// Usage above which large accounts get nothing new.
    fn high_watermark(&self) -> u64 {
        self.0.limit / 5 * 4
    }

    /// Usage below which memory is not scarce any more. It is lower, so that one lock more or less makes no difference.
    fn low_watermark(&self) -> u64 {
        self.0.limit / 4 * 3
    }

    /// Notifies waiters when memory becomes scarce.
    pub(crate) fn became_scarce(&self) -> &Notify {
        &self.0.became_scarce
    }

    /// Checks whether an account may grow.
    pub(crate) fn check(&self, account: AccountId) -> Result<(), CommandError> {
        let (limit, kept) = (self.0.limit, self.0.usage.lock());
        let own = kept.accounts.get(&account).copied().unwrap_or_default();
        if own.is_over_limit() {
            let max = own.max_bytes();
            let what = "the state of the account in this node, in bytes,".into();
            let hint = "release locks, close sessions, send less metadata or have the limit raised".into();
            return Err(CommandError::QuotaExceeded { what, max, hint });
        }
        let share = limit / kept.accounts.len().max(1) as u64;
        let is_large = own.bytes >= share;
        if kept.total >= limit || (is_large && kept.total >= self.high_watermark()) {
            return Err((self.0.full)(limit));
        }
        Ok(())
    }
}

/// One shard's part of the node's memory; it ends with the shard's state.
#[derive(Debug)]
pub(crate) struct ShardMemory {
    node: NodeMemory,
    usage: Mutex<MemoryUsage>,
    is_full: AtomicBool,
}

impl ShardMemory {
    pub(crate) fn new(node: NodeMemory) -> Self {
        Self { node, usage: Mutex::default(), is_full: AtomicBool::new(false) }
    }

    /// Applies changed charges.
    pub(crate) fn update(&self, changed: &[Charge]) {
        if changed.is_empty() {
            return;
        }
        let (mut usage_of_shard, mut kept) = (self.usage.lock(), self.node.0.usage.lock());
        for charge in changed {
            let before = usage_of_shard.set(charge.account, charge.bytes, charge.max);
            kept.change(charge, before);
        }
        self.is_full.store(usage_of_shard.total >= MAX_SHARD_BYTES, Ordering::Relaxed);
        let is_tight = kept.beyond > 0 || kept.total >= self.node.high_watermark();
        self.node.0.is_under_pressure.store(is_tight, Ordering::Relaxed);
        let was_scarce = self.node.0.is_scarce.load(Ordering::Relaxed);
        let mark = if was_scarce { self.node.low_watermark() } else { self.node.high_watermark() };
        self.node.0.is_scarce.store(kept.total >= mark, Ordering::Relaxed);
        if !was_scarce && kept.total >= mark {
            self.node.0.became_scarce.notify_waiters();
        }
    }

    /// Returns true if some account may be rejected.
    pub(crate) fn is_under_pressure(&self) -> bool {
        self.is_full.load(Ordering::Relaxed) || self.node.0.is_under_pressure.load(Ordering::Relaxed)
    }

    /// Returns true if there is little memory left, for whatever account.
    pub(crate) fn is_scarce(&self) -> bool {
        self.is_full.load(Ordering::Relaxed) || self.node.0.is_scarce.load(Ordering::Relaxed)
    }

    /// Returns true if an account has more than its limit in the node.
    pub(crate) fn is_over_limit(&self, account: AccountId) -> bool {
        self.node.0.usage.lock().accounts.get(&account).is_some_and(|usage| usage.is_over_limit())
    }

    /// Returns the bytes of all accounts.
    pub(crate) fn total(&self) -> u64 {
        self.usage.lock().total
    }

    /// Replaces all charges, after the state was replaced or dropped.
    pub(crate) fn reset(&self, charges: &[Charge]) {
        let gone: Vec<Charge> =
            self.usage.lock().accounts.keys().map(|account| Charge { account: *account, bytes: 0, max: 0 }).collect();
        self.update(&gone);
        self.update(charges);
    }

    /// Replaces all charges with the charges of another state of the shard, which then has none.
    pub(crate) fn take_over(&self, other: &Self) {
        let charge = |(account, usage): (&AccountId, &AccountUsage)| Charge {
            account: *account,
            bytes: usage.bytes,
            max: usage.max,
        };
        let charges: Vec<Charge> = other.usage.lock().accounts.iter().map(charge).collect();
        other.reset(&[]);
        self.reset(&charges);
    }

    /// Checks whether the account may grow in this shard.
    pub(crate) fn check(&self, account: AccountId) -> Result<(), CommandError> {
        if self.usage.lock().total >= MAX_SHARD_BYTES {
            let reached = Reached { limit: &limit::SHARD_BYTES, max: MAX_SHARD_BYTES };
            return Err(CommandError::Full(reached.to_string()));
        }
        self.node.check(account)
    }
}

impl Drop for ShardMemory {
    fn drop(&mut self) {
        self.reset(&[]);
    }
}

impl MemoryUsage {
    /// Sets an account's bytes and returns its earlier charge.
    fn set(&mut self, account: AccountId, bytes: u64, max: u64) -> u64 {
        let before = match bytes {
            0 => self.accounts.remove(&account),
            _ => self.accounts.insert(account, AccountUsage { bytes, max }),
        };
        let before = before.map_or(0, |account| account.bytes);
        self.total = self.total - before + bytes;
        before
    }

    /// Applies the change of one shard's charge.
    fn change(&mut self, charge: &Charge, before: u64) {
        let account = self.accounts.entry(charge.account).or_default();
        self.beyond -= usize::from(account.is_over_limit());
        account.bytes = account.bytes - before + charge.bytes;
        if charge.max > 0 {
            account.max = charge.max;
        }
        self.beyond += usize::from(account.is_over_limit());
        if account.bytes == 0 {
            self.accounts.remove(&charge.account);
        }
        self.total = self.total - before + charge.bytes;
    }
}

impl AccountUsage {
    /// Returns the bytes that the account may use in all shards of a node.
    fn max_bytes(self) -> u64 {
        self.max.saturating_mul(Limits::STATE_SHARES_PER_NODE)
    }

    fn is_over_limit(self) -> bool {
        self.bytes > self.max_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(account: u64, bytes: u64) -> Charge {
        Charge { account: AccountId(account), bytes, max: 100 }
    }

    #[test]
    fn an_account_has_a_limit_for_all_shards_of_a_node_and_another_its_own() {
        let node = NodeMemory::new(1_000_000);
        let shards = [0; 3].map(|_| ShardMemory::new(node.clone()));
        for shard in &shards {
            shard.update(&[charge(1, 90), charge(2, 10)]);
        }
        let refused = node.check(AccountId(1)).expect_err("it has 270 of 200");
        assert_eq!(refused.limit().map(|limit| limit.name), Some("max_node_bytes"));
        assert_eq!(node.check(AccountId(2)), Ok(()));
        shards[0].update(&[charge(1, 0)]);
        assert_eq!(node.check(AccountId(1)), Ok(()));
        drop(shards);
        assert_eq!(node.0.usage.lock().total, 0, "what is gone is not kept");
    }

    #[test]
    fn a_node_that_is_nearly_full_gives_nothing_new_to_those_who_have_much_but_to_others() {
        let node = NodeMemory::new(1_000);
        let shard = ShardMemory::new(node.clone());
        shard.update(&[Charge { max: 10_000, ..charge(1, 790) }, charge(2, 5)]);
        assert_eq!(node.check(AccountId(1)), Ok(()));
        shard.update(&[charge(2, 15)]);
        let refused = node.check(AccountId(1)).expect_err("it has most, and little is left");
        assert_eq!(refused.reached(), Some(Reached { limit: &limit::MEMORY, max: 1_000 }));
        assert_eq!(node.check(AccountId(2)), Ok(()), "it has less than its share");
        shard.update(&[charge(3, 195)]);
        assert!(matches!(node.check(AccountId(2)), Err(CommandError::Full(_))), "there is nothing left");
    }

    #[test]
    fn lock_tables_have_a_memory_of_their_own() {
        let (node, tables) = (NodeMemory::new(1_000), NodeMemory::of_tables(1_000));
        let shard = ShardMemory::new(tables.clone());
        shard.update(&[Charge { max: 10_000, ..charge(1, 900) }, charge(2, 90)]);
        let refused = tables.check(AccountId(1)).expect_err("it has much, and little is left");
        assert_eq!(refused.limit().map(|limit| limit.name), Some("max_table_bytes"));
        assert_eq!(tables.check(AccountId(2)), Ok(()), "it has less than its share");
        assert_eq!(node.check(AccountId(1)), Ok(()), "the log has room");
        shard.update(&[charge(3, 10)]);
        assert!(matches!(tables.check(AccountId(2)), Err(CommandError::QuotaExceeded { max: 1_000, .. })));
        drop(shard);
        assert_eq!(tables.check(AccountId(2)), Ok(()), "it leads no more");
    }

    #[test]
    fn an_account_beyond_its_limit_makes_memory_scarce_for_no_other() {
        let node = NodeMemory::new(1_000);
        let (shard, other) = (ShardMemory::new(node.clone()), ShardMemory::new(node.clone()));
        shard.update(&[charge(1, 201), Charge { max: 10_000, ..charge(2, 10) }]);
        assert!(shard.is_under_pressure() && shard.is_over_limit(AccountId(1)));
        assert!(!shard.is_scarce() && !shard.is_over_limit(AccountId(2)) && !shard.is_over_limit(AccountId(3)));
        let with = |bytes| Charge { max: 10_000, ..charge(2, bytes) };
        for (bytes, is_scarce) in [(598, false), (599, true), (550, true), (549, true), (548, false)] {
            shard.update(&[with(bytes)]);
            assert_eq!((shard.is_scarce(), other.is_scarce()), (is_scarce, is_scarce), "{bytes}");
        }
    }

    #[tokio::test]
    async fn all_shards_hear_that_memory_becomes_scarce() {
        let node = NodeMemory::new(1_000);
        let shard = ShardMemory::new(node.clone());
        let mut heard = std::pin::pin!(node.became_scarce().notified());
        heard.as_mut().enable();
        shard.update(&[Charge { max: 10_000, ..charge(1, 800) }]);
        heard.await;
    }

    #[test]
    fn a_shard_that_is_full_takes_nothing_new_and_another_shard_does() {
        let shard = ShardMemory::new(NodeMemory::new(u64::MAX));
        shard.update(&[Charge { max: u64::MAX / 2, ..charge(1, MAX_SHARD_BYTES) }]);
        let refused = shard.check(AccountId(2)).expect_err("the shard is full");
        assert_eq!(refused.reached(), Some(Reached { limit: &limit::SHARD_BYTES, max: MAX_SHARD_BYTES }));
        let (node, other) = (shard.node.clone(), ShardMemory::new(shard.node.clone()));
        assert_eq!((node.check(AccountId(2)), other.check(AccountId(2))), (Ok(()), Ok(())), "another shard has room");
        shard.reset(&[charge(2, 5)]);
        assert_eq!(shard.check(AccountId(2)), Ok(()));
    }
}
