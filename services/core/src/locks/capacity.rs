//! Limits the bytes of state that a shard keeps for an account.

use holdfast_primitives::ask::asked_charge;
use holdfast_primitives::item_bytes::ItemBytes;
use holdfast_primitives::kit::quota_exceeded;
use holdfast_primitives::metadata::metadata_charge;

use super::acquire::distinct_claims;
use super::charge;
use super::conditions::{max_of_await, max_of_signal};
use super::evaluate::{ClaimKind, Evaluation};
use super::namespace::Namespace;
use super::owner::NO_OWNER;
use super::request::Request;
use super::tree::{PathLookup, Tree};
use super::txn::NamespaceTxn;
use super::{LocksState, NamespaceKey};
use crate::{
    AccountId, Claim, CommandError, ConditionCommand, Durability, LocksCommand, NamespaceRef, OpenSession,
    OpenTableSession, Owner, PermitCommand, Rules, SessionCommand, SessionRequest, TableCommand,
};

/// The state that an account is charged for in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The account.
    pub account: AccountId,
    /// The charge in bytes.
    pub bytes: u64,
    /// The account's limit for one shard; 0 when it has no namespace in the shard any more.
    pub max: u64,
}

impl LocksState {
    /// Updates the charges of the namespaces that were changed.
    pub(super) fn update_charges(&mut self) {
        while let Some(slot) = self.touched.pop() {
            if self.namespaces.find(slot).is_some() {
                let namespace = self.namespaces.get_mut(slot);
                let now = namespace.state_bytes().total();
                if now != namespace.accounted_bytes {
                    self.changed_charges.insert(namespace.id.account);
                }
                let total = self.charged.entry(namespace.id.account).or_default();
                *total = *total - namespace.accounted_bytes + now;
                namespace.accounted_bytes = now;
                if *total <= namespace.limits.max_state_bytes {
                    continue;
                }
                self.to_shrink.insert(NamespaceKey::of(&namespace.id));
            }
        }
    }

    /// Updates the charges after a command. If an account exceeds its limit, evicts its oldest events in the changed
    /// namespaces.
    pub(super) fn enforce_byte_limits(&mut self) {
        self.update_charges();
        for key in std::mem::take(&mut self.to_shrink) {
            let (Some(slot), Some(total)) = (self.slots.get(&key), self.charged.get(&key.account)) else { continue };
            let namespace = self.namespaces.get(*slot);
            let (max, kept) = (namespace.limits.max_state_bytes, namespace.bounds.min_event_bytes);
            if self.rules >= Rules::TWO && *total > max {
                let excess = *total - max;
                self.namespaces.get_mut(*slot).history.evict(excess, kept);
                self.touched.push(*slot);
                self.update_charges();
            }
        }
        self.to_shrink.clear();
    }

    /// Releases the charge of a namespace that is gone.
    pub(super) fn release_charges(&mut self, namespace: &Namespace) {
        let account = namespace.id.account;
        self.changed_charges.insert(account);
        if let Some(total) = self.charged.get_mut(&account) {
            *total -= namespace.accounted_bytes;
            if *total == 0 {
                self.charged.remove(&account);
            }
        }
    }

    /// Evicts the account's oldest events before new state is rejected, starting with events of the same namespace.
    pub(super) fn evict_events(&mut self, command: &LocksCommand) {
        let (first, most) = match command {
            LocksCommand::Acquire(_) | LocksCommand::Reattach(_) | LocksCommand::AcquireAtLeast(_) => {
                let Some((acquire, _)) = command.as_acquire() else { return };
                let request = Request::of(acquire, command.at_least_ms());
                (self.slot(&acquire.namespace).ok(), charge::max_of_acquire(&request))
            }
            LocksCommand::Session(command @ SessionCommand { request: SessionRequest::Await(awaits), .. }) => {
                let Ok((slot, session_id)) = self.session_of(command) else { return };
                let most = self.namespaces.get(slot).most_added_by_await(session_id, awaits);
                (Some(slot), most)
            }
            LocksCommand::Session(command @ SessionCommand { request: SessionRequest::Signal(signal), .. }) => {
                let Ok((slot, _)) = self.session_of(command) else { return };
                (Some(slot), max_of_signal(signal.signal_id.as_deref()))
            }
            LocksCommand::Session(command) => {
                let Some((acquire, terms)) = command.as_acquire() else { return };
                let Ok((slot, session_id)) = self.session_of(command) else { return };
                (Some(slot), charge::max_of_session_acquire((acquire, terms), session_id))
            }
            LocksCommand::OpenSession(open) => (self.slot(&open.namespace).ok(), charge::max_of_opening(open)),
            LocksCommand::Table(TableCommand::OpenSession(OpenTableSession { open, .. })) => {
                (self.slot(&open.namespace).ok(), charge::max_of_opening(open) + charge::TABLE_SESSION)
            }
            LocksCommand::Condition(ConditionCommand::Await(awaits)) => self
                .most_added_to_tables(&awaits.namespace, |namespace| {
                    max_of_await(awaits, namespace.limits.max_metadata_bytes.into())
                }),
            LocksCommand::Condition(ConditionCommand::Signal(signal)) => {
                (self.slot(&signal.namespace).ok(), max_of_signal(signal.signal_id.as_deref()))
            }
            LocksCommand::Latch(command) => self.most_added_to_tables(command.namespace(), |namespace| {
                namespace.latches.most_added(command, &namespace.limits)
            }),
            LocksCommand::Permit(command) => {
                self.most_added_to_tables(command.namespace(), |namespace| namespace.permits.most_added(command))
            }
            LocksCommand::Barrier(command) => {
                self.most_added_to_tables(command.namespace(), |namespace| namespace.barriers.most_added(command))
            }
            _ => return,
        };
        let Some(first) = first else { return };
        self.update_charges();
        let account = self.namespaces.get(first).id.account;
        let total = self.charged.get(&account).copied().unwrap_or_default();
        let max = self.namespaces.get(first).limits.max_state_bytes;
        if self.rules < Rules::TWO || total.saturating_add(most) <= max {
            return;
        }
        let excess = total.saturating_add(most) - max;
        let mut others = self.slots_of(account);
        others.retain(|slot| *slot != first && !self.is_quarantined(&self.namespaces.get(*slot).id));
        let slots: Vec<u32> = std::iter::once(first).chain(others).collect();
        // What a latch or a pool needs is known, and may be much: no events go for one that is refused all the same.
        let is_known = matches!(
            command,
            LocksCommand::Latch(_)
                | LocksCommand::Permit(PermitCommand::ConfigurePool(_) | PermitCommand::ChangePool(_))
        );
        if is_known && excess > self.evictable(&slots) {
            return;
        }
        self.evict_from(slots, excess);
        self.update_charges();
    }

    /// Evicts events of so many bytes, from one namespace after the other.
    pub(super) fn evict_from(&mut self, slots: Vec<u32>, mut excess: u64) {
        for slot in slots {
            let namespace = self.namespaces.get_mut(slot);
            excess = excess.saturating_sub(namespace.history.evict(excess, namespace.bounds.min_event_bytes));
            self.touched.push(slot);
            if excess == 0 {
                break;
            }
        }
    }

    /// Returns the charge of the events that may be evicted.
    fn evictable(&self, slots: &[u32]) -> u64 {
        let namespaces = slots.iter().map(|slot| self.namespaces.get(*slot));
        namespaces.map(|namespace| namespace.history.bytes().saturating_sub(namespace.bounds.min_event_bytes)).sum()
    }

    /// Returns the slot of a namespace and what its tables grow by at most: nothing if they have no room for it.
    fn most_added_to_tables<B: Into<ItemBytes>>(
        &self,
        id: &NamespaceRef,
        most: impl FnOnce(&Namespace) -> B,
    ) -> (Option<u32>, u64) {
        let Ok(slot) = self.slot(id) else { return (None, 0) };
        let namespace = self.namespaces.get(slot);
        let most: ItemBytes = most(namespace).into();
        (Some(slot), if most.counted > namespace.free_bytes(0).of_tables { 0 } else { most.charged })
    }

    /// Returns the charges of the accounts whose charge changed since the last call.
    pub(crate) fn take_changed_charges(&mut self) -> Vec<Charge> {
        let recharged = std::mem::take(&mut self.changed_charges);
        recharged.into_iter().map(|account| self.charge_of(account)).collect()
    }

    /// Returns the charge and the limit of an account in this shard.
    fn charge_of(&self, account: AccountId) -> Charge {
        let slot = self.slots_of(account).first().copied();
        let max = slot.map_or(0, |slot| self.namespaces.get(slot).limits.max_state_bytes);
        Charge { account, bytes: self.charged.get(&account).copied().unwrap_or_default(), max }
    }

    /// Returns whether a command would create state. Repeats and extensions do not.
    pub(crate) fn creates_state(&self, command: &LocksCommand) -> bool {
        match (command, command.as_acquire()) {
            (LocksCommand::Session(command), _) => self.is_new_session_request(command),
            (_, Some((acquire, _))) => {
                let request = Request::of(acquire, command.at_least_ms());
                self.find(&acquire.namespace).is_ok_and(|namespace| namespace.is_new_request(&request))
            }
            (LocksCommand::AskRelease(ask), None) => !ask.force,
            (
                LocksCommand::OpenSession(open)
                | LocksCommand::Table(TableCommand::OpenSession(OpenTableSession { open, .. })),
                None,
            ) => self.find(&open.namespace).is_ok_and(|namespace| !namespace.sessions.contains_key(&*open.session_id)),
            (LocksCommand::Latch(command), None) => {
                self.find(command.namespace()).is_ok_and(|namespace| namespace.latches.creates_state(command))
            }
            (LocksCommand::Condition(ConditionCommand::Await(awaits)), None) => {
                self.find(&awaits.namespace).is_ok_and(|namespace| namespace.is_new_await(awaits))
            }
            (LocksCommand::Permit(command), None) => {
                self.find(command.namespace()).is_ok_and(|namespace| namespace.creates_permits(command))
            }
            (LocksCommand::Barrier(command), None) => {
                self.find(command.namespace()).is_ok_and(|namespace| namespace.creates_barriers(command))
            }
            _ => false,
        }
    }

    fn is_new_session_request(&self, command: &SessionCommand) -> bool {
        let Ok((slot, session_id)) = self.session_of(command) else { return false };
        if let SessionRequest::Await(awaits) = &command.request {
            return self.namespaces.get(slot).is_new_session_await(session_id, awaits);
        }
        let Some((acquire, terms)) = command.as_acquire() else { return false };
        let owner = Owner::Session { session_id: session_id.to_string(), holder: acquire.holder.clone() };
        let request = Request::of_session((acquire, terms), &owner, command.message);
        self.namespaces.get(slot).is_new_request(&request)
    }

    /// Returns the account's namespaces in order of incarnation.
    pub(super) fn slots_of(&self, account: AccountId) -> Vec<u32> {
        let key = |incarnation| NamespaceKey { account, incarnation: crate::Incarnation(incarnation) };
        self.slots.range(key(0)..=key(u64::MAX)).map(|(_, slot)| *slot).collect()
    }
}

impl Namespace {
    /// Returns whether a request is neither known nor a mere extension of its owner's holds.
    fn is_new_request(&self, request: &Request<'_>) -> bool {
        let claims = distinct_claims(request.claims);
        if !matches!(self.named_request(request.owner, request.request_id, &claims), Ok(None)) {
            return false;
        }
        let owner = self.owner_id(request.owner);
        let hold = |claim: &Claim| self.tree.find(&claim.path).and_then(|node| self.hold(node, owner));
        let holds = |claim: &Claim| hold(claim).is_some_and(|hold| !hold.is_kept());
        owner == NO_OWNER || !claims.iter().all(holds)
    }
}

impl NamespaceTxn<'_> {
    /// Returns whether the account may use `more` additional bytes.
    pub(super) fn has_capacity(&self, more: u64) -> bool {
        let now = self.other_namespaces_bytes.saturating_add(self.ns.state_bytes().total());
        more == 0 || now.saturating_add(more) <= self.since_rules_two(self.ns.limits.max_state_bytes)
    }

    pub(super) fn check_capacity(&self, more: impl Fn(bool) -> u64) -> Result<(), CommandError> {
        // The quick estimate may be too high, but usually suffices.
        if self.has_capacity(more(false)) || self.has_capacity(more(true)) {
            return Ok(());
        }
        let max = self.ns.limits.max_state_bytes;
        Err(quota_exceeded(
            "the state of the account in this shard, in bytes,",
            max,
            "release locks, close sessions, send less metadata or have the limit raised",
        ))
    }

    /// Checks the capacity for the state that granting a request creates. A request that only extends holds needs none:
    /// if its metadata does not fit, the hold keeps its old metadata. Returns whether it must.
    pub(super) fn check_capacity_to_hold(
        &self,
        request: &Request<'_>,
        asked: &Evaluation<'_>,
        kept: usize,
    ) -> Result<bool, CommandError> {
        let by_id = request.request_id.filter(|_| matches!(request.owner, Owner::Session { .. }));
        let has_deadline = request.ttl_ms.is_some();
        let (mut new, mut before, mut after) = (false, 0, 0);
        for (index, spot) in asked.lookups.iter().enumerate() {
            let kind = self.ns.claim_kind(asked, index);
            new |= matches!(kind, ClaimKind::New | ClaimKind::Retakes);
            after += charge::hold(has_deadline) + metadata_charge(kept);
            let at_least = charge::at_least(charge::at_least_of(request.at_least_ms));
            let Some(hold) = spot.node().and_then(|node| self.ns.hold(node, asked.owner)) else {
                after += at_least;
                continue;
            };
            // How long it is kept from others stays, and so do requests to release it, unless it is taken anew.
            after += if hold.at_least().is_some() { charge::AT_LEAST } else { at_least };
            after += asked_charge(hold.asks().filter(|_| kind != ClaimKind::Retakes));
            after += if kind == ClaimKind::Retakes { 0 } else { hold.charge_of_past() };
            let (hold, metadata) = hold.charge();
            before += hold + metadata;
        }
        let holds = u64::saturating_sub(after, before);
        if !new && by_id.is_none() {
            return Ok(!self.has_capacity(holds));
        }
        let claims = asked.claims.len() as u64;
        let by_id = by_id.map_or(0, |request_id| charge::granted(request_id.len(), claims));
        let more = |exact| {
            holds
                + by_id
                + self.charge_of_new_owner(request, asked)
                + self.ns.tree.charge_of_new_paths(asked, false, exact)
        };
        self.check_capacity(more).map(|()| false)
    }

    /// Checks the capacity for a queued request.
    pub(super) fn check_capacity_to_wait(
        &self,
        request: &Request<'_>,
        asked: &Evaluation<'_>,
        kept: usize,
    ) -> Result<(), CommandError> {
        let at_least_ms = charge::at_least_of(request.at_least_ms);
        let waiting = charge::waiting(request.request_id, asked.claims, kept, at_least_ms);
        let owner = self.charge_of_new_owner(request, asked);
        self.check_capacity(|exact| waiting + owner + self.ns.tree.charge_of_new_paths(asked, true, exact))
    }

    fn charge_of_new_owner(&self, request: &Request<'_>, asked: &Evaluation<'_>) -> u64 {
        if asked.owner == NO_OWNER { charge::owner(charge::name_bytes(request.owner)) } else { 0 }
    }

    pub(super) fn check_capacity_for_session(&self, open: &OpenSession) -> Result<(), CommandError> {
        let in_table = if self.ns.durability == Durability::Session { charge::TABLE_SESSION } else { 0 };
        self.check_capacity(|_| charge::max_of_opening(open) + in_table)
    }
}

impl Tree {
    /// Returns the charge of missing paths, and of the extras that these paths and their ancestors get. Unless `exact`,
    /// parts shared by several claims count for each.
    fn charge_of_new_paths(&self, asked: &Evaluation<'_>, queues: bool, exact: bool) -> u64 {
        let paths = asked.claims.iter().map(|claim| claim.path.0.as_slice());
        let mut spots: Vec<(&[String], &PathLookup)> = paths.zip(&asked.lookups).collect();
        if exact {
            spots.sort_unstable_by_key(|(segments, _)| *segments);
        }
        let (mut total, mut previous) = (0, None);
        for (segments, spot) in spots {
            // In order of path, the claim before this one has counted all that both begin with.
            let shared = previous.map(|previous: &[String]| (shared_prefix(previous, segments), previous.len()));
            let is_counted = |depth: usize| shared.is_some_and(|(shared, _)| depth <= shared);
            let has_side = |depth: usize| {
                is_counted(depth) && shared.is_some_and(|(_, of_previous)| depth < of_previous || queues)
            };
            let known = spot.ancestry.len() - 1;
            for depth in known..segments.len() + usize::from(queues) {
                let has_one = spot.ancestry.get(depth).is_some_and(|node| self.has_extra(*node));
                if !has_one && !has_side(depth) {
                    total += charge::NODE_EXTRA;
                }
            }
            let new = segments.iter().enumerate().skip(known).filter(|(depth, _)| !is_counted(depth + 1));
            total += new.map(|(_, segment)| charge::path(segment.len())).sum::<u64>();
            previous = Some(segments).filter(|_| exact);
        }
        total
    }
}

/// Returns the number of segments that two paths begin with.
fn shared_prefix(one: &[String], other: &[String]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
