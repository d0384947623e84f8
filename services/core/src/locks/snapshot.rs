//! Snapshots of a locks shard. They omit everything that can be recomputed, and do not depend on how the state was
//! reached.

mod chunks;

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};
use holdfast_primitives::barriers::FrozenBarriers;
use holdfast_primitives::latches::FrozenLatches;
use holdfast_primitives::permits::FrozenPermits;

use super::LocksState;
use super::conditions::{Await, AwaitItem, CameFrom, PastItem, SignalAnswer};
use super::history::History;
use super::hold::{Hold, HoldExtras};
use super::jobs::JobCursors;
use super::namespace::Namespace;
use super::owner::{OwnerId, OwnerName};
use super::path_table::PathTable;
use super::queue::QueuePosition;
use super::report::Report;
use super::session_end::EndingSession;
use super::sessions::{GrantedRequest, SessionFacts};
use super::slab::Slab;
use super::snapshot_items::{
    BlockedOnItem, EndingSessionItem, GrantedItem, HoldItem, OwnerItem, SessionItem, WaitItem,
};
use super::sweep::Sweep;
use super::table_log::TableLog;
use super::tree::{Node, NodeId};
use super::waiting::{BlockedOn, WaitingRequest};
use crate::shard_common::ShardCommon;
use crate::{
    AccountId, Durability, FencingToken, Limits, NamespaceRef, Path, Revision, SessionEnd, SessionNumber, TableEpoch,
    UsageTotals, WaitId,
};

/// The state at one entry, unaffected by later changes: large parts are shared in pages that the shard copies when it
/// changes them. Freezing costs one reference count for each page of 64 paths, owners or events, each session and each
/// waiting request.
#[derive(Debug)]
pub(crate) struct FrozenLocks {
    common: ShardCommon,
    ended_usage: BTreeMap<AccountId, UsageTotals>,
    quarantined: BTreeMap<NamespaceRef, u64>,
    table_epoch: TableEpoch,
    namespaces: Vec<FrozenNamespace>,
    job_cursors: Option<JobCursors>,
}

#[derive(Debug)]
struct FrozenNamespace {
    id: Arc<NamespaceRef>,
    limits: Limits,
    durability: Durability,
    table_log: Arc<TableLog>,
    paths: PathTable,
    owners: Slab<OwnerName>,
    sessions: Vec<(Arc<str>, Arc<SessionFacts>)>,
    /// By the number of the session.
    reports: BTreeMap<SessionNumber, Arc<Report>>,
    ending_sessions: Vec<FrozenEndingSession>,
    sweeps: BTreeMap<Revision, Sweep>,
    granted: Slab<GrantedRequest>,
    waits: Vec<(QueuePosition, Arc<WaitingRequest>)>,
    history: History,
    latches: FrozenLatches,
    permits: FrozenPermits,
    barriers: FrozenBarriers,
    awaits: Vec<(WaitId, Arc<Await>)>,
    usage: UsageTotals,
    /// Whether blockers matter, because visits are limited.
    has_slices: bool,
    /// The requests to evaluate, if grants are pending.
    pending_grants: Option<Vec<QueuePosition>>,
}

#[derive(Debug)]
struct FrozenEndingSession {
    session_id: Arc<str>,
    facts: Arc<SessionFacts>,
    reason: SessionEnd,
    since_ms: u64,
    after_wait: Option<QueuePosition>,
    after_path: Option<Path>,
}

impl LocksState {
    pub(crate) fn freeze(&self) -> FrozenLocks {
        let namespaces = self.slots.values().map(|slot| self.namespaces.get(*slot).freeze());
        FrozenLocks {
            common: self.common.clone(),
            ended_usage: self.ended_usage.clone(),
            quarantined: self.quarantined.clone(),
            table_epoch: self.table_epoch,
            namespaces: namespaces.collect(),
            job_cursors: self.jobs.cursors(),
        }
    }
}

impl Namespace {
    fn freeze(&self) -> FrozenNamespace {
        let sessions = self.sessions.iter().map(|(id, session)| (Arc::clone(id), Arc::clone(&session.facts)));
        let reports = self.sessions.values().filter_map(|it| Some((it.facts.number, Arc::clone(it.report.as_ref()?))));
        FrozenNamespace {
            id: Arc::clone(&self.id),
            limits: self.limits.clone(),
            durability: self.durability,
            table_log: Arc::clone(&self.table_log),
            paths: self.tree.paths().clone(),
            owners: self.owners.names().clone(),
            sessions: sessions.collect(),
            reports: reports.collect(),
            ending_sessions: self
                .ending_sessions
                .values()
                .filter(|_| !is_enabled(Mutation::JobLost))
                .map(EndingSession::freeze)
                .collect(),
            sweeps: if is_enabled(Mutation::JobLost) { BTreeMap::new() } else { self.sweeps.clone() },
            granted: self.granted_requests.clone(),
            waits: self.waits.iter().map(|(position, waiting)| (*position, Arc::clone(waiting))).collect(),
            history: self.history.clone(),
            latches: self.latches.freeze(),
            permits: self.permits.freeze(),
            barriers: self.barriers.freeze(),
            awaits: self.conditions.iter().map(|(wait, awaits)| (wait, Arc::clone(awaits))).collect(),
            usage: self.usage,
            has_slices: self.bounds.limits_visits(),
            pending_grants: self
                .has_pending_grants
                .then(|| self.blocked_index.all_to_reevaluate().into_iter().collect()),
        }
    }
}

impl FrozenNamespace {
    /// Returns the held paths in order of token; paths of one grant share a token and are in path order. Node numbers
    /// differ between replicas.
    fn held_nodes(&self) -> Vec<NodeId> {
        let first = |(node, lock): (NodeId, &Node)| Some((lock.holds.as_slice().first()?.token, node));
        let mut held: Vec<(FencingToken, NodeId)> = self.paths.iter().filter_map(first).collect();
        held.sort_unstable_by(|(token, node), (other_token, other)| {
            let by_path = || self.paths.segments(*node).cmp(&self.paths.segments(*other));
            token.cmp(other_token).then_with(by_path)
        });
        held.into_iter().map(|(_, node)| node).collect()
    }

    /// Returns whether the report of its session lists the hold, and whether a pending request claims it.
    fn reported(&self, node: NodeId, hold: &Hold) -> (bool, bool) {
        if self.reports.is_empty() {
            return (false, false);
        }
        let session = self.owners.get(hold.owner.0).session();
        let report = session.and_then(|session| self.reports.get(&session.number));
        report.map_or((false, false), |report| (report.lists(node, hold.token), report.claims(node, hold.token)))
    }

    /// Returns the id and the number of the session of a granted request.
    fn session_of(&self, granted: &GrantedRequest) -> (&str, SessionNumber) {
        let session = self.owners.get(granted.owner.0).session();
        session.map_or(("", 0), |session| (&session.session_id, session.number))
    }

    /// Returns `None` for a blocker that is gone: then the request is evaluated after a restore.
    fn blocked_on_item(&self, waiting: &WaitingRequest) -> Option<BlockedOnItem> {
        let mut nodes = waiting.nodes.iter().zip(0_u32..);
        match waiting.blocked_on {
            BlockedOn::Unknown => None,
            BlockedOn::Hold(node, owner) => {
                let token = self.paths.find(node)?.holds.of(owner)?.token;
                let above = |(claimed, claim): (&NodeId, u32)| {
                    let above = self.paths.self_and_ancestors(*claimed).position(|above| above == node)?;
                    Some((claim, u32::try_from(above).ok()?))
                };
                let (claim, above) = nodes.find_map(above)?;
                Some(BlockedOnItem::Hold { claim, above, token })
            }
            BlockedOn::Subtree(node, mode) => {
                let (_, claim) = nodes.find(|(claimed, _)| **claimed == node)?;
                Some(BlockedOnItem::Subtree { claim, mode })
            }
            BlockedOn::Request(position) => Some(BlockedOnItem::Request(position.wait().0, position.is_upgrade())),
        }
    }

    fn owner_item(&self, owner: OwnerId) -> OwnerItem<&str> {
        match self.owners.get(owner.0) {
            OwnerName::Process(process_id) => OwnerItem::Process(process_id.as_str()),
            OwnerName::Session(session) => OwnerItem::Session {
                number: session.number,
                session_id: &session.session_id,
                process_id: &session.process_id,
                holder: session.holder.as_deref(),
            },
        }
    }

    fn hold_item(&self, hold: &Hold) -> HoldItem<&str> {
        let none = HoldExtras::default();
        let rare = hold.extras.as_deref().unwrap_or(&none);
        HoldItem {
            owner: self.owner_item(hold.owner),
            mode: hold.mode,
            phase: hold.phase,
            direct: hold.direct,
            upgraded: hold.upgraded,
            transition_ms: hold.transition_ms,
            token: hold.token,
            locked_at_ms: hold.locked_at_ms,
            deadline_ms: hold.deadline_ms,
            attempt: hold.attempt,
            metadata: rare.metadata.clone(),
            requested_expires_at_ns: rare.requested_expires_at_ns,
        }
    }

    fn granted_item<'a>(&'a self, granted: &'a GrantedRequest) -> GrantedItem<&'a str> {
        let live = granted.live.iter().map(|(node, mode)| (self.paths.segments(node), mode));
        let mut live: Vec<_> = live.collect();
        live.sort_unstable();
        let holder = self.owners.get(granted.owner.0).session().and_then(|session| session.holder.as_deref());
        GrantedItem {
            session_id: self.session_of(granted).0,
            request_id: granted.request_id.as_str(),
            holder,
            token: granted.token,
            attempt: granted.attempts.highest(),
            claimed: granted.claimed,
            live,
        }
    }

    fn wait_item<'a>(&'a self, position: QueuePosition, waiting: &'a WaitingRequest) -> WaitItem<&'a str> {
        let claims = waiting.claims.iter().map(|claim| (segments(&claim.path), claim.mode)).collect();
        WaitItem {
            wait: position.wait().0,
            upgrade: position.is_upgrade(),
            owner: self.owner_item(waiting.owner),
            claims,
            terms: waiting.terms.clone(),
            request_id: waiting.request_id.as_deref(),
            attempt: waiting.attempts.highest(),
            ends_at_ms: waiting.ends_at_ms,
            since_ms: waiting.since_ms,
        }
    }
}

impl FrozenNamespace {
    fn await_item<'a>(&'a self, wait: WaitId, awaits: &'a Await) -> AwaitItem<&'a str> {
        AwaitItem {
            wait,
            owner: self.owner_item(awaits.owner),
            path: segments(&awaits.path),
            condition: &awaits.condition,
            from_token: awaits.from_token,
            terms: awaits.terms.clone(),
            request_id: awaits.request_id.as_deref(),
            attempt: awaits.attempts.highest(),
            ends_at_ms: awaits.ends_at_ms,
            relock_ms: awaits.relock_ms,
            since_ms: awaits.since_ms,
            call: awaits.call.map(|call| (call.at, call.woken, call.passes_on)),
        }
    }

    /// Returns what a hold or a wait came from, if it came from anything.
    fn past_item<'a>(&'a self, came_from: &'a [CameFrom], signals: &'a [SignalAnswer]) -> Option<PastItem<&'a str>> {
        let came_from: Vec<_> = came_from.iter().map(|it| (it.token, it.woken, it.passes_on.as_deref())).collect();
        let signals: Vec<_> = signals.iter().map(|it| (&*it.id, it.signalled, it.awaiting)).collect();
        (!came_from.is_empty() || !signals.is_empty()).then_some(PastItem { came_from, signals })
    }
}

impl EndingSession {
    fn freeze(&self) -> FrozenEndingSession {
        FrozenEndingSession {
            session_id: Arc::clone(&self.session_id),
            facts: Arc::clone(&self.session.facts),
            reason: self.reason,
            since_ms: self.since_ms,
            after_wait: self.after_wait,
            after_path: self.after_path.clone(),
        }
    }
}

impl FrozenEndingSession {
    fn item(&self) -> EndingSessionItem<&str> {
        EndingSessionItem {
            session: session_item(&self.session_id, &self.facts),
            reason: self.reason,
            since_ms: self.since_ms,
            after_wait: self.after_wait.map(|position| (position.wait().0, position.is_upgrade())),
            after_path: self.after_path.as_ref().map(segments),
        }
    }
}

fn segments(path: &Path) -> Vec<&str> {
    path.0.iter().map(String::as_str).collect()
}

fn session_item<'a>(session_id: &'a str, facts: &'a SessionFacts) -> SessionItem<&'a str> {
    SessionItem {
        session_id,
        number: facts.number,
        epoch: facts.epoch,
        seq: facts.seq,
        opening: facts.opening,
        process_id: &facts.process_id,
        ttl_ms: facts.ttl_ms,
        metadata: facts.metadata.clone(),
        opened_at_ms: facts.opened_at_ms,
    }
}
