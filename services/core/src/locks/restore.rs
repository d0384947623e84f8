//! Restores a locks shard from a snapshot. Damaged bytes are rejected or result in a consistent state.

use std::sync::Arc;

use holdfast_primitives::ask::AskRecord;
use holdfast_primitives::attempts::Attempts;
use holdfast_primitives::metadata::EncodedMetadata;

use super::conditions::{CameFrom, SignalAnswer};
use super::hold::{Hold, HoldExtras, NO_REQUEST};
use super::jobs::JobCursors;
use super::named_requests::LiveClaims;
use super::namespace::Namespace;
use super::owner::{OwnerId, OwnerKey, OwnerName, SessionOwner};
use super::queue::QueuePosition;
use super::sessions::{GrantedRequest, NamedRequest, Session, SessionFacts};
use super::snapshot_items::{GrantedItem, HoldItem, Item, OwnerItem, SessionItem};
use super::tree::NodeId;
use super::{LocksState, NamespaceKey};
use crate::Application;
use crate::codec::DecodeError;
use crate::shard_common::{CommonItem, ShardCommon, restore_items};
use crate::{EntryContext, Limits, NamespaceRef, Path, Phase, Revision, Rules, SessionNumber, WaitId};

pub(super) type RestoreResult = Result<(), DecodeError>;

/// Restoring emits no effects, and no time passes.
pub(super) const RESTORE_CONTEXT: EntryContext = EntryContext { now_ms: 0, wall_ms: 0, rules: Rules::LOWEST };

pub(super) fn ensure(fits: bool, otherwise: &'static str) -> RestoreResult {
    if fits { Ok(()) } else { Err(DecodeError::Snapshot(otherwise)) }
}

impl LocksState {
    pub(crate) fn restore(
        state: ShardCommon,
        chunks: impl IntoIterator<Item: AsRef<[u8]>>,
    ) -> Result<Self, DecodeError> {
        Self::restore_numbered(state, chunks, None)
    }

    /// Restores with randomly numbered paths, owners and requests if a seed is given. For tests.
    pub(super) fn restore_numbered(
        state: ShardCommon,
        chunks: impl IntoIterator<Item: AsRef<[u8]>>,
        seed: Option<u64>,
    ) -> Result<Self, DecodeError> {
        let mut restoring = Restorer {
            core: Self::new(state),
            slot: None,
            lock: None,
            seed,
            attempts_target: None,
            blocked_wait: None,
            job_cursors: None,
            last_metadata: EncodedMetadata::default(),
            last_ask: None,
            past: None,
        };
        if let Some(seed) = seed {
            restoring.core.namespaces.shuffle(seed);
        }
        restore_items(&mut restoring, chunks, Item::common, Restorer::restore_item, |it| &it.core.common)?;
        restoring.finish_namespace()?;
        if let Some(turns) = restoring.job_cursors {
            restoring.core.jobs.restore(turns);
        }
        Ok(restoring.core)
    }
}

pub(super) struct Restorer {
    pub(super) core: LocksState,
    pub(super) slot: Option<u32>,
    /// The lock of the holds that follow.
    lock: Option<(NodeId, Revision)>,
    /// The seed for numbering.
    seed: Option<u64>,
    /// The item that attempts belong to, if they follow next.
    pub(super) attempts_target: Option<AttemptsTarget>,
    /// The wait whose blocker may follow.
    pub(super) blocked_wait: Option<QueuePosition>,
    job_cursors: Option<JobCursors>,
    /// The metadata of the previous hold.
    last_metadata: EncodedMetadata,
    /// The request to release the previous hold that has one.
    pub(super) last_ask: Option<Arc<AskRecord>>,
    /// What the next hold or wait came from.
    pub(super) past: Option<(Vec<CameFrom>, Vec<SignalAnswer>)>,
}

/// An item with attempts.
#[derive(Clone, Copy)]
pub(super) enum AttemptsTarget {
    Hold(NodeId, OwnerId),
    Granted(u32),
    Wait(QueuePosition),
    Await(WaitId),
}

impl Restorer {
    fn restore_item(&mut self, item: Item<String>) -> RestoreResult {
        self.remove_targets(&item);
        let takes_past = matches!(item, Item::Hold(_) | Item::Wait(_));
        ensure(self.past.is_none() || takes_past, "nothing came from what was given up")?;
        match item {
            Item::Common(item) => self.common(item),
            Item::JobCursors(turns) => {
                self.job_cursors = Some(turns);
                Ok(())
            }
            Item::Namespace { account, name, incarnation, limits, compacted } => {
                self.open(NamespaceRef { account, name, incarnation }, &limits, compacted)
            }
            Item::Limits(limits) => {
                self.namespace()?.limits = *limits;
                Ok(())
            }
            Item::Durability(durability) => self.durability(durability),
            Item::EpochOf(epoch) => self.epoch_of(epoch),
            Item::TableEpoch(epoch) => self.table_epoch(epoch),
            Item::TableSession(number, session) => self.table_session(number, session),
            Item::Session(session) => self.session(session),
            Item::Lock { path, revision } => self.lock(&Path(path), revision),
            Item::Hold(hold) => self.hold(hold),
            Item::Granted(granted) => self.granted(granted, None),
            Item::Latch(item) => {
                let now = self.core.common.revision;
                self.namespace()?.latches.restore(item, now)
            }
            Item::Permits(item) => {
                let now = self.core.common.revision;
                self.namespace()?.permits.restore(item, now)
            }
            Item::Barrier(item) => {
                let now = self.core.common.revision;
                self.namespace()?.barriers.restore(item, now)
            }
            Item::ReportedPermits(number, tokens) => self.reported_permits(number, &tokens),
            Item::GrantedToEnding(number, granted) => self.granted(*granted, Some(number)),
            Item::EndingSession(ending) => self.ending_session(*ending),
            Item::Sweep(began, sweep) => self.sweep(began, *sweep),
            Item::OldProcesses(began, processes) => self.old_processes(began, &processes),
            Item::BlockedOn(item) => self.blocked_on(item),
            Item::Report(number, pending) => self.report(number, &pending),
            Item::HoldMarks(at_least, asks) => self.hold_marks(at_least, asks),
            Item::WaitAtLeast(at_least_ms) => self.wait_at_least(at_least_ms),
            Item::Reported { is_listed, is_claimed } => self.reported(is_listed, is_claimed),
            Item::PendingGrants(woken) => self.pending_grants(&woken),
            Item::Wait(wait) => self.wait(wait),
            Item::Await(item) => self.awaits(item),
            Item::Past(item) => {
                self.past = Some(item.into_past());
                Ok(())
            }
            Item::Event { revision, bytes } => self.event(revision, &bytes),
            Item::Usage(usage) => {
                self.namespace()?.usage = usage;
                Ok(())
            }
            Item::Attempts { lower, as_reader } => self.attempts(lower, &as_reader),
            Item::EndedUsage(account, usage) => {
                let is_new = self.core.ended_usage.insert(account, usage).is_none();
                ensure(is_new, "what an account used comes twice")
            }
            Item::Quarantined(namespace, since_ms) => self.quarantined(namespace, since_ms),
        }
    }

    fn common(&mut self, item: CommonItem) -> RestoreResult {
        self.core.common.restore(Application::Locks, item)?;
        self.core.visible_clock_ms = self.core.common.clock_ms;
        Ok(())
    }

    fn event(&mut self, revision: Revision, bytes: &[u8]) -> RestoreResult {
        let now = self.core.common.revision;
        let max = self.core.common.bounds.retained_events;
        let fits = self.namespace()?.history.restore(revision, bytes, max);
        ensure(fits && revision <= now, "an event is out of order")
    }

    fn quarantined(&mut self, namespace: NamespaceRef, since_ms: u64) -> RestoreResult {
        ensure(since_ms <= self.core.common.clock_ms, "a namespace stands still from the future on")?;
        let is_new = self.core.quarantined.insert(namespace, since_ms).is_none();
        ensure(is_new && self.core.slots.is_empty(), "a namespace is set aside twice, or too late")
    }

    /// Forgets the hold or the wait before an item that does not belong to it.
    fn remove_targets(&mut self, item: &Item<String>) {
        let follows_wait = matches!(item, Item::Attempts { .. } | Item::BlockedOn(_) | Item::WaitAtLeast(_));
        if !follows_wait && !matches!(item, Item::Reported { .. } | Item::HoldMarks(..)) {
            self.attempts_target = None;
        }
        self.blocked_wait = self.blocked_wait.filter(|_| follows_wait);
    }

    fn lock(&mut self, path: &Path, revision: Revision) -> RestoreResult {
        let namespace = self.namespace()?;
        let node = namespace.tree.ensure_path(path);
        let is_new = namespace.tree.get(node).holds.is_empty();
        self.lock = Some((node, revision));
        ensure(is_new && revision <= self.core.common.revision, "a lock comes twice or from the future")
    }

    fn open(&mut self, id: NamespaceRef, limits: &Limits, forgotten: Revision) -> RestoreResult {
        self.finish_namespace()?;
        ensure(forgotten <= self.core.common.revision, "an event is from the future")?;
        let key = NamespaceKey::of(&id);
        let is_new = self.core.names.insert((id.account, id.name.clone()), id.incarnation).is_none();
        ensure(is_new && !self.core.slots.contains_key(&key), "a namespace comes twice")?;
        let mut namespace = Namespace::new(&id, limits, &self.core.common.bounds, &self.core.units);
        namespace.history.restore_compacted_revision(forgotten);
        if let Some(seed) = self.seed {
            namespace.shuffle(seed);
        }
        let slot = self.core.namespaces.insert(namespace);
        self.core.slots.insert(key, slot);
        self.slot = Some(slot);
        Ok(())
    }

    pub(super) fn namespace(&mut self) -> Result<&mut Namespace, DecodeError> {
        let slot = self.slot.ok_or(DecodeError::Snapshot("something has no namespace"))?;
        Ok(self.core.namespaces.get_mut(slot))
    }

    fn session(&mut self, item: SessionItem<String>) -> RestoreResult {
        let now = self.core.common.revision;
        ensure(item.epoch <= now && item.number <= item.epoch, "a session is from the future")?;
        let number = item.number;
        ensure(!self.namespace()?.ending_sessions.contains_key(&number), "a session comes twice")?;
        let (session_id, facts) = facts_of(item);
        let namespace = self.namespace()?;
        namespace.charged.sessions += facts.charge(&session_id);
        let is_new = namespace.sessions.insert(Arc::clone(&session_id), Session::new(facts)).is_none();
        let slot = self.slot.ok_or(DecodeError::Snapshot("a session has no namespace"))?;
        let is_only = self.core.sessions.insert(number, (slot, session_id)).is_none();
        ensure(is_new && is_only, "a session comes twice")
    }

    fn hold(&mut self, item: HoldItem<String>) -> RestoreResult {
        let now = self.core.common.revision;
        let (node, revision) = self.lock.ok_or(DecodeError::Snapshot("a hold has no lock"))?;
        let namespace = self.namespace()?;
        let is_of_process = matches!(item.owner, OwnerItem::Process(_));
        let owner = owner_of(namespace, item.owner, item.phase == Phase::Transition)?;
        let ends = item.deadline_ms.is_some();
        ensure(ends == (is_of_process || item.phase == Phase::Transition), "a hold ends never, or at a wrong time")?;
        let last = namespace.tree.get(node).holds.as_slice().last().map(|hold| hold.token);
        ensure(last < Some(item.token) && item.token <= now, "holds are out of order")?;
        ensure(namespace.hold(node, owner).is_none(), "an owner holds a lock twice")?;
        // Holds of one request share their metadata and are consecutive.
        let metadata = item.metadata.shared_with(&self.last_metadata);
        self.last_metadata = metadata.clone();
        let requested_expires_at_ns = item.requested_expires_at_ns;
        let (came_from, signals) = self.past.take().unwrap_or_default();
        let rare = HoldExtras { metadata, requested_expires_at_ns, came_from, signals, ..HoldExtras::default() };
        let hold = Hold {
            owner,
            mode: item.mode,
            phase: item.phase,
            direct: item.direct,
            upgraded: item.upgraded,
            transition_ms: item.transition_ms,
            token: item.token,
            locked_at_ms: item.locked_at_ms,
            deadline_ms: item.deadline_ms,
            attempt: item.attempt,
            request: NO_REQUEST,
            extras: (rare != HoldExtras::default()).then(|| Box::new(rare)),
        };
        self.attempts_target = Some(AttemptsTarget::Hold(node, owner));
        let namespace = self.namespace()?;
        namespace.add_hold(node, hold.clone());
        namespace.tree.set_revision(node, revision);
        let slot = self.slot.ok_or(DecodeError::Snapshot("a hold has no namespace"))?;
        self.core.txn_in(slot, &RESTORE_CONTEXT).add_deadline(hold.deadline(node));
        Ok(())
    }

    fn granted(&mut self, item: GrantedItem<String>, ending: Option<SessionNumber>) -> RestoreResult {
        let namespace = self.namespace()?;
        let session = namespace.sessions.get(item.session_id.as_str());
        let number = ending.or(session.map(|session| session.facts.number));
        let number = number.ok_or(DecodeError::Snapshot("a request has no session"))?;
        let owner = namespace.owners.find(OwnerKey::Session(number, item.holder.as_deref()));
        let owner = owner.ok_or(DecodeError::Snapshot("a granted request has no holds"))?;
        let mut live = LiveClaims::None;
        for (path, mode) in item.live {
            let node = namespace.tree.find(&Path(path)).filter(|node| namespace.hold(*node, owner).is_some());
            live.insert(node.ok_or(DecodeError::Snapshot("a granted request has no holds"))?, mode);
        }
        ensure(!live.is_empty() && live.len() <= item.claimed as usize, "a granted request has no holds")?;
        let nodes: Vec<NodeId> = live.nodes().collect();
        let granted = GrantedRequest {
            request_id: item.request_id.as_str().into(),
            owner,
            claimed: item.claimed,
            token: item.token,
            attempts: Attempts::of(item.attempt),
            live,
        };
        namespace.charged.requests += granted.charge();
        let request = namespace.granted_requests.insert(granted);
        nodes.into_iter().for_each(|node| namespace.tree.change_hold(node, owner, |hold| hold.claim_by(request)));
        let is_new = !namespace.has_request(owner, &item.request_id);
        if let Some(session) = namespace.session_numbered_mut(&item.session_id, number) {
            session.requests.insert(&item.request_id, NamedRequest::Granted(request));
        }
        self.attempts_target = Some(AttemptsTarget::Granted(request));
        ensure(is_new, "a request comes twice")
    }

    fn attempts(&mut self, lower: Vec<u64>, as_reader: &[u64]) -> RestoreResult {
        let of = self.attempts_target.take().ok_or(DecodeError::Snapshot("attempts are of nothing"))?;
        let namespace = self.namespace()?;
        let highest = match of {
            AttemptsTarget::Hold(node, owner) => namespace.hold(node, owner).map_or(0, |hold| hold.attempt),
            AttemptsTarget::Granted(request) => namespace.granted_requests.get(request).attempts.highest(),
            AttemptsTarget::Wait(position) => namespace.waiting(position).attempts.highest(),
            AttemptsTarget::Await(wait) => namespace.conditions.get(wait).map_or(0, |it| it.attempts.highest()),
        };
        let damaged = || DecodeError::Snapshot("attempts are out of order");
        let attempts = Attempts::restored(highest, lower).ok_or_else(damaged)?;
        match of {
            AttemptsTarget::Hold(node, owner) => {
                let mut fits = false;
                namespace.tree.change_hold(node, owner, |hold| fits = hold.restore_attempts(attempts, as_reader));
                ensure(fits, "attempts are out of order")
            }
            _ if !as_reader.is_empty() => Err(damaged()),
            AttemptsTarget::Granted(request) => {
                namespace.granted_requests.get_mut(request).attempts = attempts;
                Ok(())
            }
            AttemptsTarget::Wait(position) => {
                namespace.waiting_mut(position).attempts = attempts;
                Ok(())
            }
            AttemptsTarget::Await(wait) => {
                namespace.conditions.change_attempts(wait, |all| *all = attempts);
                Ok(())
            }
        }
    }

    /// Checks conditions that require the complete namespace, and computes the blocker of every waiting request.
    fn finish_namespace(&mut self) -> RestoreResult {
        self.lock = None;
        let Some(slot) = self.slot.take() else { return Ok(()) };
        let id = Arc::clone(&self.core.namespaces.get(slot).id);
        let (is_quarantined, clock_ms) = (self.core.is_quarantined(&id), self.core.clock_of(&id));
        let namespace = self.core.namespaces.get_mut(slot);
        namespace.now_ms.set(clock_ms);
        let locks: Vec<NodeId> = namespace.paths_under(&Path::default(), None).collect();
        for node in locks {
            let spot = namespace.tree.lookup_node(node);
            for hold in namespace.tree.get(node).holds.as_slice() {
                let conflict = namespace.conflict_reason(hold.owner, hold.mode, &spot);
                ensure(conflict.is_none(), "two holds conflict")?;
                let is_claimed = hold.direct || !hold.requests().is_empty() || !hold.is_held();
                ensure(is_claimed, "a hold is claimed by nobody")?;
                let ending = namespace.ending_session_of(hold.owner).filter(|_| hold.is_held());
                let after = ending.and_then(|ending| ending.after_path.as_ref());
                let is_ahead = after.is_none_or(|after| namespace.tree.path_of(node) > *after);
                ensure(is_ahead, "a hold should have ended")?;
            }
        }
        let bare: Vec<NodeId> = namespace.tree.iter().map(|(node, _)| node).collect();
        for node in bare {
            ensure(!namespace.tree.is_unused(node), "a lock has no holds")?;
        }
        namespace.mark_all_tangled();
        namespace.refresh();
        for position in namespace.waits.keys().copied().collect::<Vec<QueuePosition>>() {
            let ending = namespace.ending_session_of(namespace.waiting(position).owner);
            let is_ahead = ending.is_none_or(|ending| ending.after_wait < Some(position));
            ensure(is_ahead, "a wait should have ended")?;
        }
        namespace.latches.finish_restore()?;
        namespace.finish_permits()?;
        namespace.finish_barriers()?;
        // Before the blockers: a hold that a sweep covers counts as over.
        namespace.sweeps.values_mut().for_each(|sweep| sweep.find_node(&namespace.tree));
        namespace.repair_blocked_on(true);
        namespace.has_pending_grants |= namespace.blocked_index.first_to_reevaluate().is_some();
        let mut work = self.core.txn_in(slot, &RESTORE_CONTEXT);
        work.update_first_due();
        work.update_jobs();
        self.core.update_charges();
        // No command ran: events are evicted only in namespaces that a command changed.
        self.core.to_shrink.clear();
        if is_quarantined {
            self.core.suspend(slot);
        }
        Ok(())
    }
}

pub(super) fn facts_of(item: SessionItem<String>) -> (Arc<str>, SessionFacts) {
    let facts = SessionFacts {
        number: item.number,
        epoch: item.epoch,
        seq: item.seq,
        opening: item.opening,
        process_id: item.process_id.into(),
        ttl_ms: item.ttl_ms,
        metadata: item.metadata,
        opened_at_ms: item.opened_at_ms,
    };
    (item.session_id.into(), facts)
}

/// Returns the owner of a hold or a wait. Only a hold in transition outlives its session.
pub(super) fn owner_of(
    namespace: &mut Namespace,
    item: OwnerItem<String>,
    may_be_gone: bool,
) -> Result<OwnerId, DecodeError> {
    let name = match item {
        OwnerItem::Process(process_id) => OwnerName::Process(process_id.as_str().into()),
        OwnerItem::Session { number, session_id, process_id, holder } => OwnerName::Session(Box::new(SessionOwner {
            number,
            session_id: session_id.into(),
            process_id: process_id.into(),
            holder: holder.map(Into::into),
        })),
    };
    let is_own = name.session().map(|owner| owner.holder.is_none());
    let id = namespace.owners.get_or_insert(name);
    if let Some(is_own) = is_own {
        match namespace.session_mut(id) {
            Some(session) => session.add_owner(id, is_own),
            None => ensure(may_be_gone, "an owner has no session")?,
        }
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use crate::Mode;

    #[test]
    fn a_claim_is_written_as_it_is_read() {
        let claim = (vec!["a"], Mode::Read);
        let read = (vec!["a".to_owned()], Mode::Read);
        assert_eq!(crate::codec::encode(&claim), crate::codec::encode(&read));
    }
}
