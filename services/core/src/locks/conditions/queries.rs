//! Queries about conditions, and what a leader needs to know of awaits.

use std::ops::Bound;
use std::sync::Arc;

use holdfast_primitives::page;
use holdfast_primitives::reply_size::reason_only;

use super::charge::of_await;
use super::{Await, AwaitStage};
use crate::locks::LocksState;
use crate::locks::namespace::Namespace;
use crate::locks::owner::{NO_OWNER, OwnerId};
use crate::locks::queue::QueuePosition;
use crate::locks::reply_size::truncated;
use crate::locks::sessions::NamedRequest;
use crate::{
    AcquireOutcome, AwaitCondition, AwaitRecord, AwaitView, CancelAwait, CommandError, ConditionQuery, ConditionView,
    Enqueued, FencingToken, NamespaceRef, Path, Reason, Refused, Response, Revision, SessionAwait, WaitId,
};

impl LocksState {
    /// Returns the awaits, and the waits for locks that were given up, for a new leader that checks which callers are
    /// still attached.
    pub(crate) fn await_records(&self) -> impl Iterator<Item = AwaitRecord> {
        let namespaces = self.slots.values().map(|slot| self.namespaces.get(*slot));
        let namespaces = namespaces.filter(|namespace| !self.is_quarantined(&namespace.id));
        namespaces.flat_map(Namespace::await_records)
    }

    /// Returns the wait of an await, and the attempts that rely on it and may leave.
    pub(crate) fn queued_await(&self, awaits: &AwaitCondition) -> Option<(WaitId, Vec<u64>)> {
        let namespace = self.find(&awaits.namespace).ok()?;
        let owner = namespace.owner_id(&awaits.owner);
        let (wait, its_owner, attempts) = match namespace.conditions.stage(&awaits.path, awaits.fencing_token)? {
            AwaitStage::Awaiting(wait) => {
                let found = namespace.conditions.get(wait)?;
                (wait, found.owner, &found.attempts)
            }
            AwaitStage::Waiting(position) => {
                let waiting = namespace.waiting(position);
                (position.wait(), waiting.owner, &waiting.attempts)
            }
        };
        (owner != NO_OWNER && its_owner == owner).then(|| (wait, attempts.cancellable().collect()))
    }
}

impl Namespace {
    pub(in crate::locks) fn query_conditions(
        &self,
        query: &ConditionQuery,
        revision: Revision,
    ) -> Result<Response, CommandError> {
        match query {
            ConditionQuery::List { prefix, after, limit, .. } => {
                Ok(self.list_conditions(prefix, after.as_ref(), *limit))
            }
            ConditionQuery::Waits { path, after, limit, .. } => Ok(self.list_awaits(path.as_ref(), *after, *limit)),
            ConditionQuery::WaitStatus { wait, .. } => self.await_status(*wait, revision),
            ConditionQuery::Caller { wait, .. } => {
                self.await_record(*wait).map(Response::AwaitCaller).ok_or(CommandError::NotWaiting)
            }
        }
    }

    fn list_conditions(&self, prefix: &Path, after: Option<&(Path, String)>, limit: u32) -> Response {
        let start = match after {
            Some((path, _)) if path >= prefix => path,
            _ => prefix,
        };
        let locks = self.conditions.by_lock.range::<Path, _>((Bound::Included(start), Bound::Unbounded));
        let locks = locks.take_while(|(path, _)| prefix.is_prefix_of(path));
        // Each lock is a row too, before its conditions: some have none, since whoever awaited one waits for the lock.
        let rows = locks.flat_map(|(path, lock)| {
            let is_after = move |name: &str| after.is_none_or(|(last, from)| **path != *last || *name > **from);
            let queues = lock.queues.iter().filter(move |(name, _)| is_after(name));
            let queues = queues.map(move |(name, queue)| (path, Some((name, queue))));
            std::iter::once((path, None)).chain(queues)
        });
        let (conditions, last) = page::collect_visible(
            rows,
            limit,
            |row| row.1.is_some(),
            |(path, condition)| {
                let oldest = condition.and_then(|(_, queue)| queue.first()).and_then(|wait| self.conditions.get(*wait));
                ConditionView {
                    path: Path::clone(path),
                    condition: condition.map_or_else(String::new, |(name, _)| name.to_string()),
                    awaiting: condition.map_or(0, |(_, queue)| queue.len() as u64),
                    oldest_since_ms: oldest.map_or(0, |oldest| oldest.since_ms),
                }
            },
        );
        let name_of =
            |condition: Option<(&Arc<str>, _)>| condition.map_or_else(String::new, |(name, _)| name.to_string());
        let next = last.map(|(path, condition)| (Path::clone(path), name_of(condition)));
        Response::Conditions { conditions, next }
    }

    fn list_awaits(&self, path: Option<&Path>, after: Option<WaitId>, limit: u32) -> Response {
        let start = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let (waits, more) = match path {
            None => {
                let rows = self.conditions.awaits.range(start);
                page::collect(rows, limit, |(wait, awaits)| self.await_view(*wait, awaits))
            }
            Some(path) => {
                // Of one lock there are few.
                let lock = self.conditions.by_lock.get(path);
                let stages = lock.into_iter().flat_map(|lock| lock.stages.values());
                let waits =
                    stages.filter_map(|stage| if let AwaitStage::Awaiting(wait) = stage { Some(*wait) } else { None });
                let mut waits: Vec<WaitId> = waits.filter(|wait| Some(*wait) > after).collect();
                waits.sort_unstable();
                let rows = waits.into_iter().filter_map(|wait| Some((wait, self.conditions.get(wait)?)));
                page::collect(rows, limit, |(wait, awaits)| self.await_view(wait, awaits))
            }
        };
        Response::Awaits { waits, more }
    }

    fn await_view(&self, wait: WaitId, awaits: &Await) -> AwaitView {
        let owner = self.owners.name(awaits.owner);
        AwaitView {
            wait,
            path: Path::clone(&awaits.path),
            condition: awaits.condition.to_string(),
            owner: owner.to_owner(),
            process_id: owner.process_id().to_owned(),
            request_id: awaits.request_id.as_deref().map(str::to_owned),
            fencing_token: awaits.from_token,
            queue_position: self.position_in_condition(wait, awaits),
            attempt: awaits.attempts.highest(),
            since_ms: awaits.since_ms,
            ends_at_ms: awaits.ends_at_ms,
        }
    }

    /// Returns how many await the condition longer.
    fn position_in_condition(&self, wait: WaitId, awaits: &Await) -> u64 {
        let lock = self.conditions.by_lock.get(&awaits.path);
        let queue = lock.and_then(|lock| lock.queues.get(&awaits.condition));
        queue.map_or(0, |queue| queue.range(..wait).take(self.max_queue_position()).count() as u64)
    }

    /// Returns the place and the blockers of an await that was moved to the queue of its lock, while it waits there. It
    /// is like any other waiting request then.
    pub(in crate::locks) fn status_of_woken(&self, wait: WaitId) -> Option<Refused> {
        let position = QueuePosition::of(wait, false);
        self.waits.contains_key(&position).then(|| truncated(self.queue_status(position, true).0))
    }

    /// Returns the status of an await, or of the wait for a lock that was given up.
    fn await_status(&self, wait: WaitId, revision: Revision) -> Result<Response, CommandError> {
        let position = QueuePosition::of(wait, false);
        let (attempt, not_granted, woken, path) = match self.conditions.get(wait) {
            Some(awaits) => {
                let queue_position = Some(self.position_in_condition(wait, awaits));
                let not_granted = Refused { queue_position, ..reason_only(Reason::Queued) };
                (awaits.attempts.highest(), not_granted, None, Path::clone(&awaits.path))
            }
            None => {
                let waiting = self.waits.get(&position).ok_or(CommandError::NotWaiting)?;
                let came_from = waiting.came_from.as_deref().zip(waiting.claims.first());
                let (came_from, claim) = came_from.ok_or(CommandError::NotWaiting)?;
                let not_granted = truncated(self.queue_status(position, true).0);
                (waiting.attempts.highest(), not_granted, Some(came_from.woken), claim.path.clone())
            }
        };
        let outcome = AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted }));
        Ok(Response::Awaited { outcome, woken, locks: self.views(&[&path], NO_OWNER, revision, true) })
    }

    pub(in crate::locks) fn await_records(&self) -> impl Iterator<Item = AwaitRecord> {
        let awaits = self.conditions.iter().map(|(wait, _)| wait);
        let relocks = self.waits.iter().filter(|(_, waiting)| waiting.came_from.is_some());
        awaits.chain(relocks.map(|(position, _)| position.wait())).filter_map(|wait| self.await_record(wait))
    }

    fn await_record(&self, wait: WaitId) -> Option<AwaitRecord> {
        let record =
            |path: &Path, owner: OwnerId, fencing_token: FencingToken, attempts: &super::Attempts| AwaitRecord {
                wait,
                attempt: attempts.highest(),
                cancel: CancelAwait {
                    namespace: NamespaceRef::clone(&self.id),
                    path: path.clone(),
                    owner: self.owners.name(owner).to_owner(),
                    fencing_token,
                    attempts: attempts.cancellable().collect(),
                },
            };
        if let Some(awaits) = self.conditions.get(wait) {
            return Some(record(&awaits.path, awaits.owner, awaits.from_token, &awaits.attempts));
        }
        let waiting = self.waits.get(&QueuePosition::of(wait, false))?;
        let (came_from, claim) = waiting.came_from.as_deref().zip(waiting.claims.first())?;
        Some(record(&claim.path, waiting.owner, came_from.token, &waiting.attempts))
    }

    /// Returns whether an await is neither known nor of a hold that its owner does not have.
    pub(in crate::locks) fn is_new_await(&self, awaits: &AwaitCondition) -> bool {
        let owner = self.owner_id(&awaits.owner);
        let node = self.tree.find(&awaits.path).filter(|_| owner != NO_OWNER);
        let hold = node.and_then(|node| self.hold(node, owner));
        hold.is_some_and(|hold| hold.token == awaits.fencing_token)
    }

    /// Returns whether an await of a connected session gives a lock up.
    pub(in crate::locks) fn is_new_session_await(&self, session_id: &str, awaits: &SessionAwait) -> bool {
        self.most_added_by_await(session_id, awaits) > 0
    }

    /// Returns the most that an await of a connected session adds.
    pub(in crate::locks) fn most_added_by_await(&self, session_id: &str, awaits: &SessionAwait) -> u64 {
        let session = self.sessions.get(session_id);
        let named = session.and_then(|session| self.request_named(&session.requests, &awaits.request_id));
        let Some(NamedRequest::Granted(granted)) = named else { return 0 };
        let granted = self.granted_requests.get(granted);
        let Some(node) = granted.live.nodes().next() else { return 0 };
        let metadata = self.hold(node, granted.owner).map_or(0, |hold| hold.metadata_bytes());
        let owner_bytes = self.owners.name(granted.owner).name_bytes();
        let path = self.tree.path_of(node);
        of_await((&path, &awaits.condition), owner_bytes, Some(&awaits.request_id), metadata).charged
    }
}
