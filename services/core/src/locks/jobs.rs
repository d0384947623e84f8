//! Going on with what takes more than one slice.
//!
//! What is long is begun by one command and goes on at the beginning of each entry, one slice at a time, until it is
//! finished. While something is left the leader proposes entries without commands, one after the other. Accounts take
//! turns.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::namespace::Namespace;
use super::work::Work;
use super::{LocksCore, NamespaceKey};
use crate::{AccountId, Context, Incarnation};

/// Namespaces in which something was begun and is not finished.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy {
    namespaces: BTreeSet<NamespaceKey>,
    /// Whose turn it was last, since there were any.
    pub(super) turn: Option<AccountId>,
}

impl Busy {
    pub(super) fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    pub(super) fn contains(&self, key: &NamespaceKey) -> bool {
        self.namespaces.contains(key)
    }

    pub(super) fn insert(&mut self, key: NamespaceKey) {
        if self.is_empty() {
            self.turn = None;
        }
        self.namespaces.insert(key);
    }

    pub(super) fn remove(&mut self, key: &NamespaceKey) {
        self.namespaces.remove(key);
    }

    /// Where the account goes on whose turn it is now.
    fn next(&mut self) -> Option<NamespaceKey> {
        let last = |account: AccountId| NamespaceKey { account, incarnation: Incarnation(u64::MAX) };
        let after = self.turn.map_or(Bound::Unbounded, |account| Bound::Excluded(last(account)));
        let next = self.namespaces.range((after, Bound::Unbounded)).next().or(self.namespaces.first()).copied()?;
        self.turn = Some(next.account);
        Some(next)
    }
}

impl LocksCore {
    /// One slice of what was begun and is not finished.
    pub(super) fn go_on(&mut self, context: &Context) {
        while self.budget.grants > 0 && self.budget.ends > 0 && self.budget.looks > 0 {
            let Some(key) = self.busy.next() else { return };
            self.work_in(self.slots[&key], context).go_on();
        }
    }
}

impl Work<'_> {
    /// Grants come first: what ends later lets in those who come later.
    fn go_on(&mut self) {
        self.ns.behind = false;
        self.run();
        while !self.ns.behind
            && self.budget.ends > 0
            && self.budget.looks > 0
            && let Some(number) = self.ns.ending.first_key_value().map(|(number, _)| *number)
        {
            self.end_more_of(number);
            self.run();
        }
    }

    /// Keeps in step whether there is something to go on with.
    pub(super) fn note_busy(&mut self) {
        let key = NamespaceKey::of(&self.ns.id);
        if self.ns.is_busy() {
            self.busy.insert(key);
        } else {
            self.busy.remove(&key);
        }
    }
}

impl Namespace {
    /// Whether something was begun here and is not finished.
    pub(super) fn is_busy(&self) -> bool {
        self.behind || !self.ending.is_empty()
    }
}
