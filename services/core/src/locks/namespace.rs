//! The state of one open namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_primitives::barriers::Barriers;
use holdfast_primitives::latches::Latches;
use holdfast_primitives::permits::PermitTable;

use super::awaited_holds::AwaitedCache;
use super::blocked_index::BlockedIndex;
use super::charge::ChargedBytes;
use super::closure::Closure;
use super::conditions::Conditions;
use super::expire::{DueIndex, FirstDue};
use super::history::History;
use super::hold::Hold;
use super::owner::{NO_OWNER, OwnerId, OwnerKey, OwnerName, OwnerWaits, Owners, SessionOwner, WaitKey};
use super::phase::ClockCell;
use super::queue::QueuePosition;
use super::session_end::EndingSession;
use super::sessions::{GrantedRequest, NamedRequest, Session};
use super::slab::Slab;
use super::sweep::Sweep;
use super::table_log::TableLog;
use super::tree::{NodeId, Tree};
use super::units::Units;
use super::waiting::{BlockedOn, ClaimSet, WaitingRequest, claim_set_of};
use crate::{Bounds, Claim, Durability, Limits, NamespaceRef, Owner, Revision, SessionNumber, UsageTotals};

/// One incarnation of a namespace, from its open to its purge.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub(super) id: Arc<NamespaceRef>,
    pub(super) limits: Limits,
    /// Where its lock table is kept. It never changes.
    pub(super) durability: Durability,
    /// What the log has of a lock table that is not in it. Shared with snapshots in progress.
    pub(super) table_log: Arc<TableLog>,
    /// The bounds of the shard.
    pub(super) bounds: Arc<Bounds>,
    pub(super) tree: Tree,
    pub(super) owners: Owners,
    /// The number of holds.
    pub(super) hold_count: u64,
    /// The queue.
    pub(super) waits: BTreeMap<QueuePosition, Arc<WaitingRequest>>,
    /// The number of claims of all waiting requests.
    pub(super) claims_waiting: u64,
    /// The blockers of waiting requests, and the requests to evaluate. Between commands there are none, unless more
    /// grants were possible than a slice allows.
    pub(super) blocked_index: BlockedIndex,
    /// Whether grants are left for the next entry. They precede any later request.
    pub(super) has_pending_grants: bool,
    /// Whether the requests that waited at an earlier leader are being queued. None is granted before all are.
    pub(super) is_requeueing: bool,
    /// The deadlines of holds and waits.
    pub(super) due: DueIndex,
    /// The deadline that the shard's index contains.
    pub(super) first_due: Option<FirstDue>,
    /// The visible shard clock: the clock of the previous entry while an entry expires items. Not part of the state;
    /// set before every access.
    pub(super) now_ms: ClockCell,
    /// The waiting requests by claim set.
    pub(super) by_claim_set: BTreeMap<ClaimSet, BTreeSet<QueuePosition>>,
    /// All tangled owners, and some that only wait.
    pub(super) tangled: BTreeSet<OwnerId>,
    /// Owners that wait and hold something, and the number of their holds.
    pub(super) waiting_holders: BTreeSet<OwnerId>,
    pub(super) holds_of_waiting: u64,
    /// The latest closure of the wait-for graph, and whether the graph may have changed since.
    pub(super) closure: Arc<Closure>,
    pub(super) closure_is_stale: bool,
    /// The awaited holds of tangled owners.
    pub(super) awaited: AwaitedCache,
    pub(super) sessions: BTreeMap<Arc<str>, Session>,
    /// Ended sessions that had more state than a slice ends.
    pub(super) ending_sessions: BTreeMap<SessionNumber, EndingSession>,
    /// Other long-running ends that commands started, by the revision at which they began.
    pub(super) sweeps: BTreeMap<Revision, Sweep>,
    pub(super) granted_requests: Slab<GrantedRequest>,
    pub(super) history: History,
    /// Of a namespace in a lock table in memory: the revision of the log up to which its events are here. The log also
    /// has the events of its sessions.
    pub(super) copied_to: Option<Revision>,
    pub(super) latches: Latches,
    pub(super) permits: PermitTable,
    pub(super) barriers: Barriers,
    pub(super) conditions: Conditions,
    /// The charges that are counted incrementally.
    pub(super) charged: ChargedBytes,
    /// The total charge as last reported to the shard.
    pub(super) accounted_bytes: u64,
    /// The number of evaluations of waiting requests since the process started. Not part of the state.
    pub(super) examined: u64,
    /// The number of lock views in responses to commands since the process started. Not part of the state.
    pub(super) views_built: u64,
    /// The units spent since the process started. Not part of the state.
    pub(super) units: Units,
    /// Usage counters and peaks of this namespace.
    pub(super) usage: UsageTotals,
}

impl Namespace {
    pub(super) fn new(id: &NamespaceRef, limits: &Limits, bounds: &Arc<Bounds>, units: &Units) -> Self {
        Self {
            id: Arc::new(id.clone()),
            limits: limits.clone(),
            durability: Durability::Full,
            table_log: Arc::default(),
            bounds: Arc::clone(bounds),
            tree: Tree::new(),
            owners: Owners::default(),
            hold_count: 0,
            waits: BTreeMap::new(),
            claims_waiting: 0,
            blocked_index: BlockedIndex::default(),
            has_pending_grants: false,
            is_requeueing: false,
            due: DueIndex::default(),
            first_due: None,
            now_ms: ClockCell::default(),
            by_claim_set: BTreeMap::new(),
            tangled: BTreeSet::new(),
            waiting_holders: BTreeSet::new(),
            holds_of_waiting: 0,
            closure: Arc::default(),
            closure_is_stale: false,
            awaited: AwaitedCache::default(),
            sessions: BTreeMap::new(),
            ending_sessions: BTreeMap::new(),
            sweeps: BTreeMap::new(),
            granted_requests: Slab::default(),
            history: History::default(),
            copied_to: None,
            latches: Latches::default(),
            permits: PermitTable::default(),
            barriers: Barriers::default(),
            conditions: Conditions::default(),
            charged: ChargedBytes::default(),
            accounted_bytes: 0,
            examined: 0,
            views_built: 0,
            units: units.clone(),
            usage: UsageTotals::default(),
        }
    }

    /// Returns the id of an owner, or [`NO_OWNER`] if it neither holds nor waits.
    pub(super) fn owner_id(&self, owner: &Owner) -> OwnerId {
        let id = match owner {
            Owner::Process(process_id) => self.owners.find(OwnerKey::Process(process_id)),
            Owner::Session { session_id, holder } => {
                self.sessions.get(session_id.as_str()).and_then(|session| match holder {
                    None => Some(session.own),
                    holder => self.owners.find(OwnerKey::Session(session.facts.number, holder.as_deref())),
                })
            }
        };
        id.unwrap_or(NO_OWNER)
    }

    /// Returns the id of an owner and adds the owner if it is new. The session of the owner must exist.
    pub(super) fn intern_owner(&mut self, owner: &Owner) -> OwnerId {
        match owner {
            Owner::Process(process_id) => self.owners.get_or_insert(OwnerName::Process(process_id.as_str().into())),
            Owner::Session { session_id, holder } => {
                let (session_id, session) =
                    self.sessions.get_key_value(session_id.as_str()).expect("the session was just found");
                let name = SessionOwner {
                    number: session.facts.number,
                    session_id: Arc::clone(session_id),
                    process_id: Arc::clone(&session.facts.process_id),
                    holder: holder.as_deref().map(Into::into),
                };
                let id = self.owners.get_or_insert(OwnerName::Session(Box::new(name)));
                if let Some(session) = self.sessions.get_mut(session_id_of(owner)) {
                    session.add_owner(id, holder.is_none());
                }
                id
            }
        }
    }

    /// Removes an owner without holds and waits.
    pub(super) fn remove_if_idle(&mut self, owner: OwnerId) {
        if !self.owners.contains(owner) {
            return;
        }
        let session =
            self.owners.name(owner).session().map(|session| (Arc::clone(&session.session_id), session.number));
        if self.owners.remove_if_idle(owner)
            && let Some((session_id, number)) = session
            && let Some(session) = self.session_numbered_mut(&session_id, number)
        {
            session.remove_owner(owner);
        }
    }

    pub(super) fn hold(&self, node: NodeId, owner: OwnerId) -> Option<&Hold> {
        self.tree.get(node).holds.of(owner)
    }

    /// Returns the session of an owner, open or ending. A hold in transition outlives its session, and another session
    /// may have the same id by then.
    pub(super) fn session_mut(&mut self, owner: OwnerId) -> Option<&mut Session> {
        let Self { owners, ending_sessions, sessions, .. } = self;
        let name = owners.name(owner).session()?;
        match ending_sessions.get_mut(&name.number) {
            Some(ending) => Some(&mut ending.session),
            None => sessions.get_mut(&name.session_id).filter(|session| session.facts.number == name.number),
        }
    }

    /// Returns the session with that number, open or ending.
    pub(super) fn session_numbered_mut(&mut self, session_id: &str, number: SessionNumber) -> Option<&mut Session> {
        match self.ending_sessions.get_mut(&number) {
            Some(ending) => Some(&mut ending.session),
            None => self.sessions.get_mut(session_id).filter(|session| session.facts.number == number),
        }
    }

    pub(super) fn add_hold(&mut self, node: NodeId, hold: Hold) {
        if let Some(session) = self.session_mut(hold.owner) {
            session.holds += 1;
        }
        self.charged.add_hold(hold.charge());
        let owner = hold.owner;
        let record = self.owners.get_mut(owner);
        record.holds.insert(node);
        if record.wait_count() > 0 {
            self.waiting_holders.insert(owner);
            self.holds_of_waiting += 1;
        }
        self.owner_changed(owner);
        self.tree.add_hold(node, hold);
        self.hold_count += 1;
        self.record_hold_peak();
    }

    /// Removes a hold. The path and the owner stay until they are pruned.
    pub(super) fn remove_hold(&mut self, node: NodeId, owner: OwnerId) -> Hold {
        if let Some(session) = self.session_mut(owner) {
            session.holds -= 1;
        }
        let record = self.owners.get_mut(owner);
        record.holds.remove(node);
        if record.wait_count() > 0 {
            self.holds_of_waiting -= 1;
            if record.holds.len() == 0 {
                self.waiting_holders.remove(&owner);
            }
        }
        self.owner_changed(owner);
        self.hold_count -= 1;
        let hold = self.tree.remove_hold(node, owner);
        self.charged.remove_hold(hold.charge());
        hold
    }

    pub(super) fn waiting(&self, position: QueuePosition) -> &WaitingRequest {
        self.waits.get(&position).expect("places are kept only while somebody waits there")
    }

    pub(super) fn waiting_mut(&mut self, position: QueuePosition) -> &mut WaitingRequest {
        Arc::make_mut(self.waits.get_mut(&position).expect("places are kept only while somebody waits there"))
    }

    /// Counts units of work.
    pub(super) fn spend(&self, units: usize) {
        self.units.spend(units);
    }

    /// Invalidates caches when the holds or waits of an owner change.
    pub(super) fn owner_changed(&mut self, owner: OwnerId) {
        self.closure_is_stale |= self.tangled.contains(&owner);
        self.awaited.remove(owner);
    }

    /// Adds a request to the queue, without a blocker yet.
    pub(super) fn add_waiting(&mut self, position: QueuePosition, mut waiting: WaitingRequest) {
        self.owner_changed(waiting.owner);
        // A request at the end changes nothing for the earlier ones.
        self.closure_is_stale |= self.waits.last_key_value().is_some_and(|(last, _)| *last > position);
        let session = self.session_mut(waiting.owner);
        // The session stores the request ids of its owners.
        let is_named_there = session.is_some() && waiting.request_id.is_some();
        if let Some(session) = session {
            session.waiting += 1;
            if let Some(request_id) = &waiting.request_id {
                session.requests.insert(request_id, NamedRequest::Waiting(position));
            }
        }
        let record = self.owners.get_mut(waiting.owner);
        if record.wait_count() == 0 && record.holds.len() > 0 {
            self.waiting_holders.insert(waiting.owner);
            self.holds_of_waiting += record.holds.len() as u64;
        }
        if let Some((kind, _)) = self.by_claim_set.get_key_value(&waiting.claim_set) {
            waiting.claim_set = Arc::clone(kind);
        }
        let awaits = record.waits.get_or_insert_default();
        awaits.positions.insert(position);
        awaits.claims.extend(waiting.nodes.iter().map(|node| (*node, position)));
        match (&waiting.came_from, waiting.claims.first()) {
            // A repeat finds it by the token that was given up.
            (Some(came_from), Some(claim)) => self.conditions.insert_position(&claim.path, came_from.token, position),
            _ if is_named_there => {}
            _ => _ = awaits.by_key.insert(waiting.key(), position),
        }
        for (node, claim) in waiting.nodes.iter().zip(&waiting.claims) {
            self.invalidate_awaited(*node, claim.mode, position);
            self.tree.add_claim(*node, claim.mode, position, waiting.owner);
        }
        let positions = self.by_claim_set.entry(Arc::clone(&waiting.claim_set)).or_default();
        let first = positions.first().copied();
        positions.insert(position);
        if first.is_none_or(|first| position < first) {
            self.mark_first_of_set(&waiting.claim_set, first, Some(position));
        }
        self.claims_waiting += waiting.claims.len() as u64;
        self.charged.waiting += waiting.charge();
        self.blocked_index.insert(waiting.blocked_on, position);
        self.waits.insert(position, Arc::new(waiting));
    }

    /// Counts a grant, of locks or of permits.
    pub(super) fn count_grant(&mut self) {
        self.usage.grants = self.usage.grants.saturating_add(1);
        self.record_hold_peak();
    }

    /// Notes how many holds there are, of locks and of semaphores.
    fn record_hold_peak(&mut self) {
        let holds = self.hold_count.saturating_add(self.permits.holds());
        self.usage.peak_holds = self.usage.peak_holds.max(holds);
    }

    /// Counts a request that remains in the queue, for locks or for permits.
    pub(super) fn count_wait(&mut self) {
        self.usage.waits = self.usage.waits.saturating_add(1);
        let waiting = self.waiting_count();
        self.usage.peak_waiting = self.usage.peak_waiting.max(waiting);
    }

    /// Returns the number of requests that wait: for locks, for permits, and for conditions.
    pub(super) fn waiting_count(&self) -> u64 {
        let of_locks = self.waits.len().saturating_add(self.conditions.len()) as u64;
        of_locks.saturating_add(self.permits.waiting())
    }

    /// Removes a request from the queue. Its owner stays until it is pruned.
    pub(super) fn remove_waiting(&mut self, position: QueuePosition) -> WaitingRequest {
        let waiting = self.waits.remove(&position).expect("places are kept only while somebody waits there");
        self.blocked_index.remove(waiting.blocked_on, position);
        self.owner_changed(waiting.owner);
        self.closure_is_stale |= self.closure.has_boundary_at(&waiting.claim_set, position);
        self.remove_from_claim_set(&waiting.claim_set, position);
        self.claims_waiting -= waiting.claims.len() as u64;
        self.charged.waiting -= waiting.charge();
        let session = self.session_mut(waiting.owner);
        let is_named_there = session.is_some() && waiting.request_id.is_some();
        if let Some(session) = session {
            session.waiting -= 1;
            if let Some(request_id) = &waiting.request_id {
                session.requests.remove(request_id, NamedRequest::Waiting(position));
            }
        }
        let record = self.owners.get_mut(waiting.owner);
        let awaits = record.waits.as_mut().expect("an owner knows what it waits for");
        awaits.positions.remove(&position);
        for node in &waiting.nodes {
            awaits.claims.remove(&(*node, position));
        }
        match (&waiting.came_from, waiting.claims.first()) {
            (Some(came_from), Some(claim)) => self.conditions.remove_position(&claim.path, came_from.token),
            _ if is_named_there => {}
            _ => _ = awaits.by_key.remove(&waiting.key()),
        }
        if awaits.positions.is_empty() {
            if awaits.awaits.is_empty() {
                record.waits = None;
            }
            self.tangled.remove(&waiting.owner);
            if self.waiting_holders.remove(&waiting.owner) {
                self.holds_of_waiting -= record.holds.len() as u64;
            }
        }
        for (node, claim) in waiting.nodes.iter().zip(&waiting.claims) {
            self.invalidate_awaited(*node, claim.mode, position);
            self.tree.remove_claim(*node, claim.mode, position);
        }
        Arc::unwrap_or_clone(waiting)
    }

    fn remove_from_claim_set(&mut self, kind: &ClaimSet, position: QueuePosition) {
        let Some(positions) = self.by_claim_set.get_mut(kind) else { return };
        let was_first = positions.first() == Some(&position);
        positions.remove(&position);
        let next = positions.first().copied();
        if next.is_none() {
            self.by_claim_set.remove(kind);
        }
        if was_first {
            self.mark_first_of_set(kind, Some(position), next);
        }
    }

    /// Marks another request as the first with this claim set, in each of its queues.
    fn mark_first_of_set(&mut self, kind: &ClaimSet, before: Option<QueuePosition>, after: Option<QueuePosition>) {
        for (node, mode) in kind.iter() {
            for (position, is_first) in
                before.map(|position| (position, false)).into_iter().chain(after.map(|it| (it, true)))
            {
                self.tree.mark_first_of_set(*node, *mode, position, is_first);
            }
        }
    }

    pub(super) fn set_blocked_on(&mut self, position: QueuePosition, watch: BlockedOn) {
        let before = std::mem::replace(&mut self.waiting_mut(position).blocked_on, watch);
        self.blocked_index.remove(before, position);
        self.blocked_index.insert(watch, position);
    }

    /// Returns the waiting request that a repeat refers to.
    pub(super) fn find_wait(&self, owner: OwnerId, key: &WaitKey) -> Option<QueuePosition> {
        if owner == NO_OWNER {
            return None;
        }
        let awaits: &OwnerWaits = self.owners.get(owner).waits.as_deref()?;
        awaits.by_key.get(key).copied()
    }

    /// Returns the key of a request without an id, if all of its paths exist.
    pub(super) fn claims_key(&self, claims: &[Claim]) -> Option<WaitKey> {
        let nodes = claims.iter().map(|claim| Some((self.tree.find(&claim.path)?, claim.mode)));
        Some(WaitKey::Claims(claim_set_of(nodes.collect::<Option<Vec<_>>>()?.into_iter())))
    }
}

impl WaitingRequest {
    fn key(&self) -> WaitKey {
        match &self.request_id {
            Some(request_id) => WaitKey::Named(request_id.clone()),
            None => WaitKey::Claims(Arc::clone(&self.claim_set)),
        }
    }
}

fn session_id_of(owner: &Owner) -> &str {
    match owner {
        Owner::Process(_) => "",
        Owner::Session { session_id, .. } => session_id,
    }
}
