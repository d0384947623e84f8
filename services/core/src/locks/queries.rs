//! Queries of a locks shard.

use std::ops::Bound;

use holdfast_primitives::page::{self, PageBudget, VISITS_PER_PAGE};
use holdfast_primitives::reply_size::ByteBudget;

use super::LocksState;
use super::acquire::distinct_claims;
use super::detached::{DetachedLock, DetachedLocks};
use super::durability::absent;
use super::history::{EventPage, HistoryRange};
use super::namespace::Namespace;
use super::owner::NO_OWNER;
use super::queue::QueuePosition;
use super::reply_size::{MAX_GET_BYTES, MAX_READERS_IN_GET, truncated};
use super::sessions::{NamedRequest, Session};
use super::tree::NodeId;
use crate::{
    Acquire, AcquireOutcome, Claim, CommandError, Enqueued, FencingToken, KeepAliveOutcome, Kinds, NamespaceRef, Owner,
    Path, Query, ReportedHold, ReportedPermits, Response, Revision, SessionKeepAlive, SessionNumber, SessionRecord,
    WaitId, WaitRecord, codec,
};

/// What a query has taken from the state. Its response is made when the state is no longer needed.
#[derive(Debug)]
pub(crate) enum BegunQuery {
    Events(ExaminedEvents),
    Lock(Box<DetachedLock>),
    Locks(DetachedLocks),
}

impl BegunQuery {
    pub(crate) fn response(self) -> Response {
        match self {
            Self::Events(events) => events.response(),
            Self::Lock(lock) => Response::Lock(lock.view(&mut ByteBudget::new(MAX_GET_BYTES))),
            Self::Locks(locks) => locks.response(),
        }
    }
}

/// The events that a query examines.
#[derive(Debug)]
pub(crate) struct ExaminedEvents {
    range: HistoryRange,
    prefix: Path,
    kinds: Kinds,
    limit: u32,
}

impl ExaminedEvents {
    fn response(&self) -> Response {
        let EventPage { events, next_revision, more } = self.range.page(&self.prefix, self.kinds, self.limit);
        Response::Events { events, next_revision, more }
    }
}

impl LocksState {
    /// Begins a query whose response takes long to make; `None` for any other.
    pub(crate) fn begin_query(&self, query: &Query) -> Option<Result<BegunQuery, CommandError>> {
        let revision = self.common.revision;
        Some(match query {
            Query::Events { namespace, from_revision, prefix, kinds, limit } => {
                let range = self.find(namespace).and_then(|open| open.history.range(*from_revision, revision));
                let (prefix, kinds, limit) = (prefix.clone(), *kinds, *limit);
                range.map(|range| BegunQuery::Events(ExaminedEvents { range, prefix, kinds, limit }))
            }
            Query::Lock { namespace, path } => self
                .find_table(namespace, absent::ELSEWHERE)
                .map(|open| BegunQuery::Lock(Box::new(open.detached(path, MAX_READERS_IN_GET, revision)))),
            Query::Locks { namespace, prefix, after, limit } => self
                .find_table(namespace, absent::ELSEWHERE)
                .map(|open| BegunQuery::Locks(open.page_of_locks(prefix, after.as_ref(), *limit, revision))),
            _ => return None,
        })
    }

    /// Returns `None` for queries of other applications.
    pub(crate) fn query(&self, query: &Query) -> Option<Result<Response, CommandError>> {
        let revision = self.common.revision;
        Some(match query {
            Query::Lock { .. } | Query::Locks { .. } | Query::Events { .. } => {
                self.begin_query(query)?.map(BegunQuery::response)
            }
            Query::Check { namespace, path, fencing_token } => {
                self.find_table(namespace, absent::ELSEWHERE).map(|open| open.check(path, *fencing_token, revision))
            }
            Query::Session { namespace, session_id } => self.session(namespace, session_id),
            Query::Sessions { namespace, after, limit } => {
                self.find(namespace).map(|open| open.page_of_sessions(after.as_deref(), *limit))
            }
            Query::Waits { namespace, after, limit } => {
                self.find_table(namespace, absent::ELSEWHERE).map(|open| open.page_of_waits(*after, *limit))
            }
            Query::Queue { namespace, after, limit } => {
                self.find_table(namespace, absent::ELSEWHERE).map(|open| open.page_of_queue(*after, *limit))
            }
            Query::Usage { namespace } => self.find(namespace).map(|open| Response::Usage {
                holds: open.hold_count,
                waiting: open.waits.len() as u64,
                sessions: open.sessions.len() as u64,
            }),
            Query::AccountUsage { account } => Ok(self.account_usage(*account)),
            Query::AccountState { account } => Ok(self.account_state(*account)),
            Query::KeepAlive { namespace, session_id, epoch } => {
                let session = self.connected_session(namespace, session_id, *epoch);
                session.and_then(|_| self.session(namespace, session_id))
            }
            Query::KeepAlives { sessions } => {
                Ok(Response::KeptAlive(sessions.iter().map(|session| self.keep_alive_outcome(session)).collect()))
            }
            Query::ReconcileHolds { namespace, session_id, held } => self.reconcile_holds(namespace, session_id, held),
            Query::ReconcilePermits { namespace, session_id, held } => {
                self.reconcile_permits(namespace, session_id, held)
            }
            Query::Holds { namespace, owner, claims } => {
                self.find_table(namespace, absent::ELSEWHERE).map(|open| Response::Holds(open.holds_all(owner, claims)))
            }
            Query::WaitStatus { namespace, wait } => {
                self.find_table(namespace, absent::ELSEWHERE).and_then(|open| open.wait_status(*wait, revision))
            }
            Query::Permit(query) => self.permit_query(query, revision),
            Query::Condition(query) => self
                .find_table(query.namespace(), absent::CONDITIONS)
                .and_then(|open| open.query_conditions(query, revision)),
            Query::Latch(query) => self.find(query.namespace()).and_then(|open| open.latches.query(query)),
            Query::Barrier(query) => self.barrier_query(query),
            Query::TableState { namespace } => self.table_state(namespace),
            _ => return None,
        })
    }

    fn session(&self, namespace: &NamespaceRef, session_id: &str) -> Result<Response, CommandError> {
        let open = self.find(namespace)?;
        Ok(Response::Session(open.view_of_session(session_id, open.session(session_id)?)))
    }

    /// Returns a session, unless another connection superseded the one of this epoch.
    fn connected_session(
        &self,
        namespace: &NamespaceRef,
        session_id: &str,
        epoch: Option<u64>,
    ) -> Result<&Session, CommandError> {
        let session = self.find(namespace)?.session(session_id)?;
        if let Some(epoch) = epoch {
            session.check_epoch(epoch)?;
        }
        Ok(session)
    }

    /// Returns the number and the time to live of the session that a keep-alive is for, in milliseconds.
    pub(crate) fn check_keep_alive(&self, keep_alive: &SessionKeepAlive) -> Result<(SessionNumber, u64), CommandError> {
        let SessionKeepAlive { namespace, session_id, epoch, .. } = keep_alive;
        let session = self.connected_session(namespace, session_id, Some(*epoch))?;
        Ok((session.facts.number, session.facts.ttl_ms))
    }

    /// Returns the outcome as far as the shard itself knows: a live session has its full time.
    fn keep_alive_outcome(&self, keep_alive: &SessionKeepAlive) -> KeepAliveOutcome {
        match self.check_keep_alive(keep_alive) {
            Ok((_, remaining_ms)) => KeepAliveOutcome::Recorded { remaining_ms },
            Err(rejected) => KeepAliveOutcome::Rejected(rejected),
        }
    }

    fn reconcile_holds(
        &self,
        namespace: &NamespaceRef,
        session_id: &str,
        held: &[ReportedHold],
    ) -> Result<Response, CommandError> {
        let open = self.find_table(namespace, absent::ELSEWHERE)?;
        let session = open.session(session_id)?;
        let (lost, asked) = (open.lost_holds_of(session, held), open.asked_holds_of(session, held));
        Ok(Response::reconciled(lost, (0, 0), asked))
    }

    fn reconcile_permits(
        &self,
        namespace: &NamespaceRef,
        session_id: &str,
        held: &[ReportedPermits],
    ) -> Result<Response, CommandError> {
        let open = self.find_table(namespace, absent::PERMITS)?;
        let number = open.session(session_id)?.facts.number;
        let lost = held.iter().filter(|hold| !open.has_reported(number, hold));
        let asked = open.permits.asked_of(number, held);
        Ok(Response::PermitsReconciled { lost: lost.cloned().collect(), asked })
    }

    /// Returns all sessions, for a new leader that starts to track their keep-alives. Sessions of namespaces in
    /// quarantine are left out.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionRecord> {
        self.sessions.iter().filter_map(|(number, (slot, session_id))| {
            let namespace = self.namespaces.find(*slot).filter(|namespace| !self.is_quarantined(&namespace.id))?;
            let session = namespace.sessions.get(session_id).filter(|session| session.facts.number == *number)?;
            Some(SessionRecord {
                namespace: NamespaceRef::clone(&namespace.id),
                session_id: session_id.to_string(),
                number: *number,
                epoch: session.facts.epoch,
                ttl_ms: session.facts.ttl_ms,
            })
        })
    }

    /// Returns all waiting requests, for a new leader that checks which callers are still attached. Requests in
    /// namespaces in quarantine are left out.
    pub(crate) fn waits(&self) -> impl Iterator<Item = WaitRecord> {
        let namespaces = self.slots.values().map(|slot| self.namespaces.get(*slot));
        let namespaces = namespaces.filter(|namespace| !self.is_quarantined(&namespace.id));
        namespaces.flat_map(|namespace| {
            // Those that wait for a lock that they gave up are with the awaits.
            let waits = namespace.waits.iter().filter(|(_, waiting)| waiting.came_from.is_none());
            waits.map(|(position, _)| WaitRecord {
                namespace: NamespaceRef::clone(&namespace.id),
                wait: namespace.wait_view(*position),
                attempts: namespace.waiting(*position).attempts.cancellable().collect(),
            })
        })
    }

    /// Returns the wait of an acquire, for a leader that tracks which callers are attached to it.
    pub(crate) fn queued_wait(&self, acquire: &Acquire) -> Option<(WaitId, Vec<u64>)> {
        let namespace = self.find(&acquire.namespace).ok()?;
        let claims = distinct_claims(&acquire.claims);
        match namespace.named_request(&acquire.owner, acquire.request_id.as_deref(), &claims) {
            Ok(Some(NamedRequest::Waiting(position))) => {
                Some((position.wait(), namespace.waiting(position).attempts.cancellable().collect()))
            }
            _ => None,
        }
    }
}

impl Namespace {
    fn session(&self, session_id: &str) -> Result<&Session, CommandError> {
        self.sessions.get(session_id).ok_or_else(|| CommandError::SessionNotFound(session_id.to_owned()))
    }

    /// Returns the status of a queued request, including its current position.
    fn wait_status(&self, wait: WaitId, revision: Revision) -> Result<Response, CommandError> {
        let mut positions = [true, false].into_iter().map(|upgrade| QueuePosition::of(wait, upgrade));
        let position = positions.find(|position| self.waits.contains_key(position)).ok_or(CommandError::NotWaiting)?;
        let waiting = self.waiting(position);
        let not_granted = truncated(self.queue_status(position, true).0);
        let attempt = waiting.attempts.highest();
        let outcome = AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted }));
        let mut paths: Vec<&Path> = waiting.claims.iter().map(|claim| &claim.path).collect();
        paths.sort_unstable();
        let locks = self.views(&paths, NO_OWNER, revision, true);
        Ok(Response::Acquired { outcome, locks })
    }

    fn holds_all(&self, owner: &Owner, claims: &[Claim]) -> bool {
        let owner = self.owner_id(owner);
        let holds = |claim: &Claim| {
            let held = self.tree.find(&claim.path).and_then(|node| Some((node, self.hold(node, owner)?)));
            held.is_some_and(|(node, hold)| hold.mode == claim.mode && self.is_current(node, hold))
        };
        claims.iter().all(holds)
    }

    fn check(&self, path: &Path, token: FencingToken, revision: Revision) -> Response {
        let node = self.tree.find(path);
        let held = node.and_then(|node| Some((node, self.tree.get(node).holds.of_token(token)?)));
        let current = held.is_some_and(|(node, hold)| self.is_current(node, hold));
        Response::Checked { current, lock: self.bounded_view(path, revision) }
    }

    fn page_of_sessions(&self, after: Option<&str>, limit: u32) -> Response {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let sessions = self.sessions.range::<str, _>((start, Bound::Unbounded));
        let (sessions, more) = page::collect(sessions, limit, |(id, session)| self.view_of_session(id, session));
        Response::Sessions { sessions, more }
    }

    fn page_of_waits(&self, after: Option<WaitId>, limit: u32) -> Response {
        let (mut budget, mut visits, mut waits) = (PageBudget::of(limit), 0, Vec::new());
        for position in self.in_order_of_arrival(after) {
            if budget.is_full() || visits >= VISITS_PER_PAGE {
                return Response::Waits { waits, more: true };
            }
            let wait = self.wait_view(position);
            if !budget.try_take(codec::size(&wait)) {
                return Response::Waits { waits, more: true };
            }
            visits += 1 + wait.claims.len();
            waits.push(wait);
        }
        Response::Waits { waits, more: false }
    }

    /// Returns the waiting requests in order of arrival. Upgrades are at the head of the queue.
    pub(super) fn in_order_of_arrival(&self, after: Option<WaitId>) -> impl Iterator<Item = QueuePosition> {
        let after = after.unwrap_or(WaitId(0)).min(QueuePosition::AFTER_UPGRADES.wait());
        let start = |upgrade| Bound::Excluded(QueuePosition::of(after, upgrade));
        let upgrades = self.waits.range((start(true), Bound::Included(QueuePosition::AFTER_UPGRADES)));
        let others = self.waits.range((start(false), Bound::Unbounded));
        let mut upgrades = upgrades.map(|(position, _)| *position).peekable();
        let mut others = others.map(|(position, _)| *position).peekable();
        std::iter::from_fn(move || match (upgrades.peek(), others.peek()) {
            (Some(upgrade), Some(other)) if upgrade.wait() > other.wait() => others.next(),
            (Some(_), _) => upgrades.next(),
            (None, _) => others.next(),
        })
    }

    /// Takes a page of held paths at or below the prefix, in path order.
    fn page_of_locks(&self, prefix: &Path, after: Option<&Path>, limit: u32, revision: Revision) -> DetachedLocks {
        let after = after.filter(|after| prefix.is_prefix_of(after) && *after >= prefix);
        let max_readers = self.bounds.max_readers_in_reply;
        // Paths that are only waited for are visited too.
        let take = |node: NodeId| {
            if self.tree.get(node).holds.is_empty() {
                return (None, 1);
            }
            let lock = self.detached(&self.tree.path_of(node), max_readers, revision);
            let visits = lock.visits();
            (Some(lock), visits)
        };
        let (locks, last) = page::gather_visible(self.paths_under(prefix, after), limit, take);
        DetachedLocks { locks, next: last.map(|node| self.tree.path_of(node)), limit }
    }

    /// Returns the paths at or below the prefix after `after`, in order. Skips subtrees whose root shows that they
    /// contain no holds.
    pub(super) fn paths_under<'a>(&'a self, prefix: &Path, after: Option<&'a Path>) -> impl Iterator<Item = NodeId> {
        let depth = prefix.0.len();
        let start = self.tree.find(prefix);
        let mut open: Vec<Box<dyn Iterator<Item = NodeId> + 'a>> = Vec::new();
        match (start, after) {
            (None, _) => {}
            (Some(start), None) => open.push(Box::new(std::iter::once(start))),
            (Some(start), Some(after)) => self.open_after(start, &after.0[depth..], &mut open),
        }
        std::iter::from_fn(move || {
            while let Some(children) = open.last_mut() {
                let Some(node) = children.next() else {
                    open.pop();
                    continue;
                };
                if self.tree.subtree(node).is_some_and(|below| !below.reads.is_empty() || !below.writes.is_empty()) {
                    open.push(Box::new(self.tree.children(node)));
                }
                return Some(node);
            }
            None
        })
    }

    /// Opens the subtrees that remain below a path after the descendant with these segments.
    fn open_after<'a>(
        &'a self,
        start: NodeId,
        segments: &'a [String],
        open: &mut Vec<Box<dyn Iterator<Item = NodeId> + 'a>>,
    ) {
        let mut at = Some(start);
        for segment in segments {
            let Some(node) = at else { return };
            let rest = self.tree.children_from(node, segment);
            open.push(Box::new(rest.filter(move |(name, _)| name != segment).map(|(_, child)| child)));
            at = self.tree.children_from(node, segment).next().filter(|(name, _)| name == segment).map(|(_, it)| it);
        }
        if let Some(node) = at {
            open.push(Box::new(self.tree.children(node)));
        }
    }
}
