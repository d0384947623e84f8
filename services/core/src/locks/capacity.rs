//! Whether there is room for what is new in what the shard keeps for the account.

use std::collections::BTreeSet;

use super::acquire::distinct;
use super::charge;
use super::evaluate::{ClaimKind, Evaluation};
use super::namespace::Namespace;
use super::owner::NOBODY;
use super::quota::exceeded;
use super::tree::Tree;
use super::txn::NamespaceTxn;
use super::{LocksCore, NamespaceKey};
use crate::{AccountId, Acquire, Claim, LocksCommand, OpenSession, Owner, Reattach, Refusal, Rules};

/// What an account is charged with in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Whose it is.
    pub account: AccountId,
    /// How much that is, in bytes.
    pub bytes: u64,
    /// The account's limit for one shard; 0 when it has no namespace there any more.
    pub max: u64,
}

impl LocksCore {
    /// Takes over what the namespaces that were worked in are charged with now.
    pub(super) fn settle(&mut self) {
        while let Some(slot) = self.touched.pop() {
            if self.namespaces.find(slot).is_some() {
                let namespace = self.namespaces.get_mut(slot);
                let now = namespace.state_bytes().total();
                if now != namespace.settled {
                    self.recharged.insert(namespace.id.account);
                }
                let total = self.charged.entry(namespace.id.account).or_default();
                *total = *total - namespace.settled + now;
                namespace.settled = now;
                if *total <= namespace.limits.max_state_bytes {
                    continue;
                }
                self.to_shrink.insert(NamespaceKey::of(&namespace.id));
            }
        }
    }

    /// The same at the end of what was done. An account that is beyond its limit loses the oldest events there.
    pub(super) fn settle_for_good(&mut self) {
        self.settle();
        for key in std::mem::take(&mut self.to_shrink) {
            let (Some(slot), Some(total)) = (self.slots.get(&key), self.charged.get(&key.account)) else { continue };
            let namespace = self.namespaces.get(*slot);
            let (max, kept) = (namespace.limits.max_state_bytes, namespace.bounds.events_kept_bytes);
            if self.rules >= Rules::TWO && *total > max {
                let excess = *total - max;
                self.namespaces.get_mut(*slot).history.give_way(excess, kept);
                self.touched.push(*slot);
                self.settle();
            }
        }
        self.to_shrink.clear();
    }

    /// What is kept for an account that is gone is nothing.
    pub(super) fn settle_purge(&mut self, namespace: &Namespace) {
        let account = namespace.id.account;
        self.recharged.insert(account);
        if let Some(total) = self.charged.get_mut(&account) {
            *total -= namespace.settled;
            if *total == 0 {
                self.charged.remove(&account);
            }
        }
    }

    /// Before something new is refused the account's oldest events give way, those of the same namespace first.
    pub(super) fn evict_events(&mut self, command: &LocksCommand) {
        let (wanted, most) = match command {
            LocksCommand::Acquire(acquire) | LocksCommand::Reattach(Reattach { acquire, .. }) => {
                (&acquire.namespace, charge::most_of_acquire(acquire))
            }
            LocksCommand::OpenSession(open) => (&open.namespace, charge::most_of_opening(open)),
            _ => return,
        };
        let Ok(first) = self.slot(wanted) else { return };
        self.settle();
        let total = self.charged.get(&wanted.account).copied().unwrap_or_default();
        let max = self.namespaces.get(first).limits.max_state_bytes;
        if self.rules < Rules::TWO || total.saturating_add(most) <= max {
            return;
        }
        let mut excess = total.saturating_add(most) - max;
        for slot in
            std::iter::once(first).chain(self.slots_of(wanted.account).into_iter().filter(|slot| *slot != first))
        {
            let namespace = self.namespaces.get_mut(slot);
            excess = excess.saturating_sub(namespace.history.give_way(excess, namespace.bounds.events_kept_bytes));
            self.touched.push(slot);
            if excess == 0 {
                break;
            }
        }
        self.settle();
    }

    /// What accounts are charged with whose charge has changed since this was asked last.
    pub(crate) fn take_recharged(&mut self) -> Vec<Charge> {
        let recharged = std::mem::take(&mut self.recharged);
        recharged.into_iter().map(|account| self.charge_of(account)).collect()
    }

    /// What an account is charged with here, and what it may be.
    fn charge_of(&self, account: AccountId) -> Charge {
        let slot = self.slots_of(account).first().copied();
        let max = slot.map_or(0, |slot| self.namespaces.get(slot).limits.max_state_bytes);
        Charge { account, bytes: self.charged.get(&account).copied().unwrap_or_default(), max }
    }

    /// Whether a command would make something that is not there: a repeat or an extension does not.
    pub(crate) fn makes_something(&self, command: &LocksCommand) -> bool {
        match (command, command.as_acquire()) {
            (_, Some((acquire, _))) => self.find(&acquire.namespace).is_ok_and(|namespace| namespace.is_new(acquire)),
            (LocksCommand::OpenSession(open), None) => {
                self.find(&open.namespace).is_ok_and(|namespace| !namespace.sessions.contains_key(&*open.session_id))
            }
            _ => false,
        }
    }

    /// The account's namespaces, in order of incarnation.
    fn slots_of(&self, account: AccountId) -> Vec<u32> {
        let key = |incarnation| NamespaceKey { account, incarnation: crate::Incarnation(incarnation) };
        self.slots.range(key(0)..=key(u64::MAX)).map(|(_, slot)| *slot).collect()
    }
}

impl Namespace {
    /// Whether a request neither is known nor only extends what its owner holds.
    fn is_new(&self, request: &Acquire) -> bool {
        let claims = distinct(&request.claims);
        if !matches!(self.named(&request.owner, request.request_id.as_deref(), &claims), Ok(None)) {
            return false;
        }
        let owner = self.owner_id(&request.owner);
        let holds = |claim: &Claim| self.tree.find(&claim.path).is_some_and(|node| self.hold(node, owner).is_some());
        owner == NOBODY || !claims.iter().all(holds)
    }
}

impl NamespaceTxn<'_> {
    /// Whether the account may have so much more.
    pub(super) fn has_capacity(&self, more: u64) -> bool {
        let now = self.others_bytes.saturating_add(self.ns.state_bytes().total());
        more == 0 || now.saturating_add(more) <= self.limited(self.ns.limits.max_state_bytes)
    }

    fn check_capacity(&self, more: impl Fn(bool) -> u64) -> Result<(), Refusal> {
        // What is found out in a moment may be too much, and mostly is not.
        if self.has_capacity(more(false)) || self.has_capacity(more(true)) {
            return Ok(());
        }
        let max = self.ns.limits.max_state_bytes;
        Err(exceeded(
            "the state of the account in this shard, in bytes,",
            max,
            "release locks, close sessions, send less metadata or have the limit raised",
        ))
    }

    /// Room for what a request that can be granted makes. One that only extends needs none: with metadata that has no
    /// room it keeps what it has. Whether it has to.
    pub(super) fn check_capacity_to_hold(
        &self,
        request: &Acquire,
        asked: &Evaluation<'_>,
        kept: usize,
    ) -> Result<bool, Refusal> {
        let by_id = request.request_id.as_deref().filter(|_| matches!(request.owner, Owner::Session { .. }));
        let has_deadline = request.ttl_ms.is_some();
        let (mut new, mut before, mut after) = (false, 0, 0);
        for (index, spot) in asked.spots.iter().enumerate() {
            after += charge::hold(has_deadline) + charge::metadata(kept);
            if self.ns.claim_kind(asked, index) == ClaimKind::New {
                new = true;
            } else if let Some(hold) = spot.node().and_then(|node| self.ns.hold(node, asked.owner)) {
                let (hold, metadata) = hold.charge();
                before += hold + metadata;
            }
        }
        let holds = u64::saturating_sub(after, before);
        if !new && by_id.is_none() {
            return Ok(!self.has_capacity(holds));
        }
        let by_id = by_id.map_or(0, |request_id| charge::granted(request_id, asked.claims.len()));
        let more =
            |exact| holds + by_id + self.new_owner(request, asked) + self.ns.tree.charge_of_new(asked, false, exact);
        self.check_capacity(more).map(|()| false)
    }

    /// Room for a request in the queue.
    pub(super) fn check_capacity_to_wait(
        &self,
        request: &Acquire,
        asked: &Evaluation<'_>,
        kept: usize,
    ) -> Result<(), Refusal> {
        let waiting = charge::waiting(request.request_id.as_deref(), asked.claims, kept);
        let owner = self.new_owner(request, asked);
        self.check_capacity(|exact| waiting + owner + self.ns.tree.charge_of_new(asked, true, exact))
    }

    fn new_owner(&self, request: &Acquire, asked: &Evaluation<'_>) -> u64 {
        if asked.owner == NOBODY { charge::owner(charge::names_of(&request.owner)) } else { 0 }
    }

    pub(super) fn check_capacity_for_session(&self, open: &OpenSession) -> Result<(), Refusal> {
        self.check_capacity(|_| charge::most_of_opening(open))
    }
}

impl Tree {
    /// What the paths that are missing are charged with, and what they and those above them get beside them. Unless it
    /// has to be exact what several claims need counts for each.
    fn charge_of_new(&self, asked: &Evaluation<'_>, queues: bool, exact: bool) -> u64 {
        let (mut total, mut paths, mut sides) = (0, BTreeSet::new(), BTreeSet::new());
        for (claim, spot) in asked.claims.iter().zip(&asked.spots) {
            let (segments, known) = (claim.path.0.as_slice(), spot.ancestry.len() - 1);
            let mut side = |depth: usize| {
                let has_one = spot.ancestry.get(depth).is_some_and(|node| self.has_side(*node));
                let is_new = !has_one && (!exact || sides.insert(&segments[..depth]));
                total += if is_new { charge::SIDE } else { 0 };
            };
            (known..segments.len()).for_each(&mut side);
            if queues {
                side(segments.len());
            }
            for depth in known..segments.len() {
                let is_new = !exact || paths.insert(&segments[..=depth]);
                total += if is_new { charge::path(&segments[depth]) } else { 0 };
            }
        }
        total
    }
}
