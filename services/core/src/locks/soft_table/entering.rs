//! Enters the reports once all have arrived: claims, then waiting requests. It enters a slice at a time, and the table
//! is complete after the last slice.
//!
//! Between two slices, sessions may end, release or withdraw claims and requests, entered or not. Nothing is granted
//! before all claims are entered and all requests that had a place are queued: a request may have to let later ones
//! pass, and would not know of them if it were judged earlier.

use std::sync::Arc;

use super::SoftTable;
use super::rebuild::{Rebuild, RequestToQueue};
use crate::locks::namespace::Namespace;
use crate::locks::request::Request;
use crate::locks::{LocksState, NamespaceKey};
use crate::shard::ShardState;
use crate::{CommandError, EntryContext, MessageSeq, Owner, ReportedWait, SessionAcquire, SessionTerms, Wait};

impl SoftTable {
    /// Does what comes before anything about a complete table.
    ///
    /// # Errors
    /// `Busy` while the table is not complete, or something has ended in the log that has not ended here.
    pub(super) fn bring_up_to_date(
        &mut self,
        log: &LocksState,
        context: &EntryContext,
        namespace: &Namespace,
    ) -> Result<(), CommandError> {
        self.apply_ends(log);
        self.settle(context);
        self.rebuild(context, namespace);
        self.check_complete(namespace)?;
        self.advance(context);
        self.check_settled()?;
        self.check_copied()
    }

    /// Goes on with all namespaces where everything is there, for one slice together, as far as there are revisions.
    pub fn rebuild_all(&mut self, log: &ShardState, context: &EntryContext) {
        let Some(log) = log.locks().filter(|log| self.check_epoch(log).is_ok()) else {
            // Another epoch has begun, so this one enters nothing more.
            self.entering.clear();
            return;
        };
        self.apply_ends(log);
        self.settle(context);
        let of_log = |key: &NamespaceKey| log.slots.get(key).map(|slot| log.namespaces.get(*slot));
        let unfinished = self.rebuilds.iter().filter(|(_, rebuild)| !rebuild.has_completed());
        let mut ready: Vec<(NamespaceKey, &Namespace)> = unfinished
            .filter_map(|(key, it)| Some((*key, of_log(key).filter(|of_log| it.can_go_on(of_log))?)))
            .collect();
        // What can't go on waits for the log.
        self.entering.retain(|key| ready.binary_search_by_key(key, |(key, _)| *key).is_ok());
        if ready.is_empty() || !self.begin_step(context) {
            return;
        }
        // A large one does not hold up the others.
        let others = ready.partition_point(|(key, _)| Some(*key) <= self.last_entered);
        ready.rotate_left(others);
        for (_, namespace) in ready {
            if !self.enter_some(context, namespace) && !self.core.budget.has_budget() {
                break;
            }
        }
    }

    /// Goes on with a namespace if everything is there, for a slice, as far as there are revisions.
    pub(super) fn rebuild(&mut self, context: &EntryContext, namespace: &Namespace) {
        let key = NamespaceKey::of(&namespace.id);
        if !self.rebuilds.get(&key).is_some_and(|rebuild| rebuild.can_go_on(namespace)) {
            self.entering.remove(&key);
        } else if self.begin_step(context) {
            self.enter_some(context, namespace);
        }
    }

    /// Enters what there is room for in the slice. Returns whether nothing is left for which a later step has room.
    fn enter_some(&mut self, context: &EntryContext, namespace: &Namespace) -> bool {
        let key = NamespaceKey::of(&namespace.id);
        let Some(mut rebuild) = self.rebuilds.remove(&key) else { return true };
        rebuild.begin_to_enter(namespace);
        let is_done = self.enter_claims(context, namespace, &mut rebuild)
            && (!self.begin_to_queue(namespace, &mut rebuild) || self.queue_waits(context, namespace, &mut rebuild));
        if is_done {
            self.entering.remove(&key);
        } else {
            self.entering.insert(key);
            self.last_entered = Some(key);
        }
        if is_done && rebuild.is_queueing() {
            self.completed = true;
            self.garbage.rebuilds.push(std::mem::replace(&mut rebuild, Rebuild::complete()));
        }
        self.rebuilds.insert(key, rebuild);
        self.core.enforce_byte_limits();
        self.collect_effects();
        is_done
    }

    /// Enters claims, in descending order of token. Returns false if more are left than there is room for.
    fn enter_claims(&mut self, context: &EntryContext, namespace: &Namespace, rebuild: &mut Rebuild) -> bool {
        let Some(slot) = self.core.slots.get(&NamespaceKey::of(&namespace.id)).copied() else {
            // No session of it is here that could hold something.
            rebuild.clear_claims();
            return true;
        };
        let mut work = self.core.txn_in(slot, context);
        while rebuild.has_claims() {
            if !work.budget.takes_end() {
                return false;
            }
            let Some(next) = rebuild.next_claim() else { continue };
            let Some(reported) = rebuild.claim(next) else { continue };
            let (number, claim) = (next.0, reported.claim);
            let Some(session_id) = work.sessions.get(&number).map(|(_, session_id)| Arc::clone(session_id)) else {
                continue;
            };
            let transition_ms = namespace.table_log.transition_ms(number).unwrap_or_default();
            let is_forfeit = namespace.table_log.is_forfeit(number, &claim.path, claim.fencing_token);
            if !is_forfeit && work.enter(&session_id, &reported, transition_ms) {
                rebuild.entered(next);
            } else {
                self.conflicts += 1;
                work.lose(&session_id, claim);
            }
        }
        true
    }

    /// Begins to queue requests that wait, once all claims are entered. Returns whether it goes on with that.
    fn begin_to_queue(&mut self, namespace: &Namespace, rebuild: &mut Rebuild) -> bool {
        let has_begun = rebuild.is_queueing();
        let goes_on = rebuild.begin_to_queue(namespace);
        if goes_on
            && !has_begun
            && let Some(slot) = self.core.slot_of(&namespace.id)
        {
            self.core.namespaces.get_mut(slot).is_requeueing = true;
        }
        goes_on
    }

    /// Queues the waiting requests, in order. Grants follow once all requests that had a place are queued; a request
    /// without a place counts as new. Returns false if the slice ended before all were queued.
    fn queue_waits(&mut self, context: &EntryContext, namespace: &Namespace, rebuild: &mut Rebuild) -> bool {
        while rebuild.has_waits() {
            if self.has_sweeps(namespace) || !self.core.takes_end() {
                return false;
            }
            if let Some(waiting) = rebuild.next_waiting() {
                self.queue(context, namespace, &waiting);
            }
        }
        self.begin_to_grant(context, namespace);
        true
    }

    /// Grants free locks, as far as the slice allows. All requests that had a place are queued.
    fn begin_to_grant(&mut self, context: &EntryContext, namespace: &Namespace) {
        let Some(slot) = self.core.slot_of(&namespace.id) else { return };
        let mut work = self.core.txn_in(slot, context);
        if std::mem::take(&mut work.ns.is_requeueing) {
            work.ns.has_pending_grants = false;
            work.run_grant_loop();
        }
    }

    /// Returns true if a release in steps is unfinished. A request that waits for its holds would be refused, and lose
    /// its place.
    fn has_sweeps(&self, namespace: &Namespace) -> bool {
        let slot = self.core.slot_of(&namespace.id);
        slot.is_some_and(|slot| !self.core.namespaces.get(slot).sweeps.is_empty())
    }

    /// Queues a waiting request, as a new one if it had no place. Its session asks again and learns the outcome then.
    fn queue(&mut self, context: &EntryContext, namespace: &Namespace, waiting: &RequestToQueue) {
        let RequestToQueue { session: number, wait } = waiting;
        let ReportedWait { request_id, holder, metadata, claims, ticket } = wait;
        if ticket.is_none() {
            self.begin_to_grant(context, namespace);
        }
        let Some((slot, session_id)) = self.core.sessions.get(number).cloned() else { return };
        let acquire = SessionAcquire {
            holder: holder.clone(),
            claims: claims.clone(),
            transition_ms: namespace.table_log.transition_ms(*number).unwrap_or_default(),
            wait: Wait::Unlimited,
            allow_upgrade: false,
            request_id: request_id.clone(),
        };
        let terms = SessionTerms { at_least_ms: 0, metadata: metadata.clone() };
        let owner = Owner::Session { session_id: session_id.to_string(), holder: holder.clone() };
        let of_session = Request::of_session((&acquire, &terms), &owner, MessageSeq { epoch: 0, seq: 0 });
        let request = Request { message: None, ..of_session };
        self.core.with_views = false;
        let mut work = self.core.txn_in(slot, context);
        match ticket {
            Some(_) => work.requeue(&request),
            // One that is refused is refused again when its session asks again.
            None => _ = work.acquire(&request, &[]),
        }
        self.core.with_views = true;
    }
}
