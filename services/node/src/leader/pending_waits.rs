//! Waiting requests and the callers attached to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{AcquireOutcome, AdoptedWait, CancelAwait, Effect, NamespaceRef, Reply, Rules, WaitId, codec};
use metrics::histogram;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::pending_wait::{PendingWait, Resolution, WaitNotice};
use super::waiting_call::{Rollback, resolution_of};

/// How long a disconnected caller's request stays queued.
pub(crate) const RECONNECT_GRACE: Duration = Duration::from_secs(5);

/// Expired requests that are taken at a time, under the lock of the state.
const MAX_ORPHANS_TAKEN: usize = 256;

/// Waiting requests whose callers may disconnect, each with its attached callers.
#[derive(Default)]
pub(crate) struct PendingWaits {
    /// Ordered and boxed: a hash table would be built anew in one step, of many megabytes, and keep its size.
    pending: BTreeMap<WaitId, Box<PendingWait>>,
    /// Expiry times of the requests without an attached caller.
    expiries: BTreeSet<(Instant, WaitId)>,
    /// The present waits of requests that calls may know by an earlier wait, because they awaited a condition.
    moved: BTreeMap<WaitId, WaitId>,
    /// Until when callers of the earlier leader may return.
    adopted_until: Option<Instant>,
    /// The wait reaper's next wakeup; `None` while there is nothing to expire.
    scheduled: Option<Instant>,
}

/// Result of attaching a caller.
pub(crate) enum Attachment {
    /// Receives the notice that ends it; the sender is dropped when the leadership ends.
    Pending(oneshot::Receiver<WaitNotice>),
    /// The encoded reply: the wait had already ended.
    Resolved(Bytes),
}

/// A request that has lost all its callers.
pub(crate) struct Orphaned {
    pub(crate) namespace: NamespaceRef,
    pub(crate) wait: WaitId,
    /// Attempts to cancel: at least one.
    pub(crate) attempts: Vec<u64>,
    /// Releases the grant, or cancels an await; `None` if the request waits, or waited when last known.
    pub(crate) rollback: Option<Rollback>,
    pending: Box<PendingWait>,
}

impl PendingWaits {
    /// Adds a waiting request, or a call attached to one: the caller of that attempt is expected. `highest` is the
    /// request's highest attempt.
    pub(crate) fn enqueued(&mut self, namespace: &NamespaceRef, wait: WaitId, attempt: u64, highest: u64) {
        let wait = self.current(wait);
        let now = Instant::now();
        let slot = self.pending.entry(wait).or_insert_with(|| Box::new(PendingWait::new(namespace.clone(), now)));
        slot.highest = slot.highest.max(highest);
        slot.expect_caller(attempt);
        self.schedule_expiry(wait);
    }

    /// Returns the present wait of a request.
    pub(crate) fn current(&self, wait: WaitId) -> WaitId {
        self.moved.get(&wait).copied().unwrap_or(wait)
    }

    /// Records that a request has another wait from now on. Its callers go along.
    pub(crate) fn moved(&mut self, from: WaitId, to: WaitId) {
        let Some(mut slot) = self.pending.remove(&from) else { return };
        if let Some(ends) = slot.expires_at {
            self.expiries.remove(&(ends, from));
            self.expiries.insert((ends, to));
        }
        slot.moved_from = Some(from);
        self.pending.insert(to, slot);
        self.moved.insert(from, to);
    }

    /// Adds a waiting request of which this leader knows only the attempts. Its callers may return from now on, or from
    /// when the leadership begins if that is later.
    pub(crate) fn adopt(&mut self, adopted: AdoptedWait, now: Instant) {
        let AdoptedWait { namespace, wait, attempts, cancel } = adopted;
        let mut slot = Box::new(PendingWait::new(namespace, now));
        slot.cancel = cancel.map(Box::new);
        slot.highest = attempts.last().copied().unwrap_or(0);
        attempts.iter().for_each(|attempt| slot.adopt(*attempt, now + RECONNECT_GRACE));
        self.pending.insert(wait, slot);
        self.set_expiry(wait, now + RECONNECT_GRACE);
    }

    /// Records that the leadership begins: callers of the earlier leader may return.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.adopted_until = Some(now + RECONNECT_GRACE);
    }

    /// Records what cancels an await. It may be moved, or have its lock again, before the cancel is applied.
    pub(crate) fn set_cancel(&mut self, wait: WaitId, cancel: CancelAwait) {
        let wait = self.current(wait);
        if let Some(slot) = self.pending.get_mut(&wait) {
            slot.cancel = Some(Box::new(cancel));
        }
    }

    /// Handles a new call for a queued request; `there` are the attempts that count as far as the core knows. Returns
    /// the attempts that it replaces.
    pub(crate) fn replaced(&mut self, wait: WaitId, there: &[u64]) -> Vec<u64> {
        let wait = self.current(wait);
        self.pending.get_mut(&wait).map_or_else(Vec::new, |slot| slot.replaced(there))
    }

    /// Attaches the caller of an attempt. Returns `None` for an unknown wait, such as one unknown to a leader elected
    /// meanwhile.
    pub(crate) fn attach(&mut self, wait: WaitId, attempt: u64) -> Option<Attachment> {
        let wait = self.current(wait);
        let slot = self.pending.get_mut(&wait)?;
        slot.expected.retain(|one| *one != attempt);
        if let Some(settled) = &slot.resolution {
            let reply = settled.reply.clone();
            if slot.all_notified() {
                self.remove(wait);
            }
            return Some(Attachment::Resolved(reply));
        }
        let told = slot.attach(attempt);
        if let Some(ends) = slot.expires_at.take() {
            self.expiries.remove(&(ends, wait));
        }
        Some(Attachment::Pending(told))
    }

    /// Records that the caller of an attempt left for good. Returns the attempts to cancel, its own first, unless by
    /// the rules other callers keep the request. Call it after the caller's receiver is dropped.
    pub(crate) fn abandon(&mut self, wait: WaitId, attempt: u64, rules: Rules) -> Option<Vec<u64>> {
        let wait = self.current(wait);
        // The wait was resolved meanwhile; its grant must be released.
        let Some(slot) = self.pending.get_mut(&wait) else { return Some(vec![attempt]) };
        let attempts = slot.cancel_attempt(attempt, rules, self.adopted_until);
        self.schedule_expiry(wait);
        attempts
    }

    /// Records that the core has applied the cancel of these attempts.
    pub(crate) fn on_cancelled(&mut self, wait: WaitId, attempts: &[u64]) {
        let wait = self.current(wait);
        let Some(slot) = self.pending.get_mut(&wait) else { return };
        slot.on_cancelled(attempts);
        if slot.resolution.is_some() && slot.all_notified() {
            self.remove(wait);
        }
    }

    /// Records that a caller disconnected; its request is kept for `kept_for`. Call it after the caller's receiver is
    /// dropped.
    pub(crate) fn detach(&mut self, wait: WaitId, attempt: u64, kept_for: Duration) {
        let wait = self.current(wait);
        let Some(slot) = self.pending.get_mut(&wait) else { return };
        slot.detach(attempt, Instant::now() + kept_for);
        self.schedule_expiry(wait);
    }

    /// Ends a wait.
    pub(crate) fn resolve(&mut self, wait: WaitId, effect: Effect, clock_ms: u64, rules: Rules) {
        let now = Instant::now();
        let Some(slot) = self.pending.get_mut(&wait) else { return };
        let Some((outcome, answer)) = resolution_of(&effect) else { return };
        if matches!(effect, Effect::WaitResolved { .. }) {
            histogram!("holdfast_lock_wait_seconds").record((now - slot.since).as_secs_f64());
        }
        let is_granted = matches!(outcome, AcquireOutcome::Granted { .. });
        let reply = Bytes::from(codec::encode(&Reply { outcome: Ok(answer), clock_ms, awaits: None }));
        let mut any_heard = false;
        for (attempt, caller) in std::mem::take(&mut slot.callers) {
            match caller.send(WaitNotice::Resolved(reply.clone())) {
                Ok(()) => any_heard = true,
                // The caller is disconnecting; its task sets the final deadline shortly.
                Err(_) => slot.detach(attempt, now + RECONNECT_GRACE),
            }
        }
        let rollback = if is_granted { Rollback::of_effect(effect) } else { None };
        slot.resolution = Some(Resolution { reply, rollback });
        // By rules 1 there is nothing to release once one caller has received the outcome.
        if slot.all_notified() || (any_heard && rules < Rules::TWO) {
            self.remove(wait);
            return;
        }
        self.schedule_expiry(wait);
    }

    /// Records that a grant could not be delivered to the caller of an attempt: it is released unless a call collects
    /// it soon.
    pub(crate) fn grant_undelivered(&mut self, wait: WaitId, attempt: u64, reply: Bytes, give_back: Rollback) {
        let (wait, now) = (self.current(wait), Instant::now());
        let slot =
            self.pending.entry(wait).or_insert_with(|| Box::new(PendingWait::new(give_back.namespace().clone(), now)));
        slot.detach(attempt, now + RECONNECT_GRACE);
        slot.resolution.get_or_insert(Resolution { reply, rollback: Some(give_back) });
        self.schedule_expiry(wait);
    }

    /// Returns when the next request expires, which is when the wait reaper wakes up.
    pub(crate) fn next_expiry(&mut self) -> Option<Instant> {
        self.scheduled = self.expiries.first().map(|(ends, _)| *ends);
        self.scheduled
    }

    pub(super) fn needs_reschedule(&self) -> bool {
        let first = self.expiries.first().map(|(ends, _)| *ends);
        first.is_some_and(|first| self.scheduled.is_none_or(|planned| first < planned))
    }

    /// Takes requests whose callers did not return in time, the earliest. If more are due, the next expiry has passed.
    pub(crate) fn take_orphaned(&mut self, now: Instant, rules: Rules) -> Vec<Orphaned> {
        let mut orphaned = Vec::new();
        for _ in 0..MAX_ORPHANS_TAKEN {
            let Some((ends, wait)) = self.expiries.first().copied().filter(|(ends, _)| *ends <= now) else { break };
            self.expiries.remove(&(ends, wait));
            if let Some(later) = self.postponed(wait, ends).filter(|later| *later > now) {
                self.set_expiry(wait, later);
                continue;
            }
            let Some(mut pending) = self.pending.remove(&wait) else { continue };
            pending.expires_at = None;
            pending.moved_from.take().into_iter().for_each(|from| _ = self.moved.remove(&from));
            let attempts = pending.orphaned_attempts(rules);
            let rollback = match &pending.resolution {
                Some(Resolution { rollback: None, .. }) => continue,
                Some(Resolution { rollback, .. }) => rollback.clone(),
                None => pending.cancel.as_deref().cloned().map(Rollback::Await),
            };
            if !attempts.is_empty() {
                let namespace = pending.namespace.clone();
                orphaned.push(Orphaned { namespace, wait, attempts, rollback, pending });
            }
        }
        orphaned
    }

    /// Returns the expiry of a request that was adopted before the leadership began. It is known only then, and changes
    /// once the first one has passed, so that the begin is short.
    fn postponed(&self, wait: WaitId, ends: Instant) -> Option<Instant> {
        let until = self.adopted_until.filter(|until| *until > ends)?;
        self.pending.get(&wait).filter(|slot| slot.has_adopted()).map(|_| until)
    }

    /// Reinserts a request that could not be cancelled yet.
    pub(crate) fn reinsert(&mut self, orphaned: Orphaned) {
        let Orphaned { wait, attempts, mut pending, .. } = orphaned;
        match self.pending.get_mut(&wait) {
            Some(newer) => attempts.into_iter().for_each(|attempt| newer.abandon(attempt)),
            None => {
                attempts.into_iter().for_each(|attempt| pending.abandon(attempt));
                self.pending.insert(wait, pending);
            }
        }
        self.schedule_expiry(wait);
    }

    pub(super) fn contains(&self, wait: WaitId) -> bool {
        self.pending.contains_key(&wait)
    }

    pub(crate) fn has_callers(&self) -> bool {
        self.expiries.len() < self.pending.len()
    }

    /// Drops the senders of all attached callers, which redirects the callers.
    pub(crate) fn redirect_callers(&mut self, now: Instant) {
        let waits: Vec<WaitId> = self.pending.keys().copied().collect();
        for wait in waits {
            let Some(slot) = self.pending.get_mut(&wait) else { continue };
            for (attempt, _) in std::mem::take(&mut slot.callers) {
                slot.detach(attempt, now + RECONNECT_GRACE);
            }
            self.schedule_expiry(wait);
        }
    }

    /// Schedules the expiry of a request without attached callers, for as long as a caller may return.
    fn schedule_expiry(&mut self, wait: WaitId) {
        let Some(slot) = self.pending.get(&wait).filter(|slot| slot.callers.is_empty()) else { return };
        let until = slot.expiry_from(Instant::now(), self.adopted_until);
        self.set_expiry(wait, until);
    }

    fn set_expiry(&mut self, wait: WaitId, ends: Instant) {
        let Some(slot) = self.pending.get_mut(&wait) else { return };
        if let Some(before) = slot.expires_at.replace(ends) {
            self.expiries.remove(&(before, wait));
        }
        self.expiries.insert((ends, wait));
    }

    fn remove(&mut self, wait: WaitId) {
        let Some(slot) = self.pending.remove(&wait) else { return };
        slot.expires_at.into_iter().for_each(|ends| _ = self.expiries.remove(&(ends, wait)));
        slot.moved_from.into_iter().for_each(|from| _ = self.moved.remove(&from));
    }
}

#[cfg(test)]
mod tests;
