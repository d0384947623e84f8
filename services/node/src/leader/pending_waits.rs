//! Waiting requests and the callers attached to them.

use std::collections::{BTreeSet, HashMap};
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
    pending: HashMap<WaitId, PendingWait>,
    /// Expiry times of the requests without an attached caller.
    expiries: BTreeSet<(Instant, WaitId)>,
    /// Where requests are that calls may know by an earlier wait: those that awaited a condition.
    moved: HashMap<WaitId, WaitId>,
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
        let slot = self.pending.entry(wait).or_insert_with(|| PendingWait::new(namespace.clone(), now));
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

    /// Adds a waiting request of which this leader knows only the attempts.
    pub(crate) fn adopt(&mut self, adopted: AdoptedWait, now: Instant) {
        let AdoptedWait { namespace, wait, attempts, cancel } = adopted;
        let mut slot = PendingWait::new(namespace, now);
        slot.cancel = cancel.map(Box::new);
        slot.highest = attempts.last().copied().unwrap_or(0);
        attempts.iter().for_each(|attempt| slot.detach(*attempt, now + RECONNECT_GRACE));
        self.pending.insert(wait, slot);
        self.set_expiry(wait, now + RECONNECT_GRACE);
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
        let attempts = slot.cancel_attempt(attempt, rules);
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
        let slot = self.pending.entry(wait).or_insert_with(|| PendingWait::new(give_back.namespace().clone(), now));
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
                let (namespace, pending) = (pending.namespace.clone(), Box::new(pending));
                orphaned.push(Orphaned { namespace, wait, attempts, rollback, pending });
            }
        }
        orphaned
    }

    /// Reinserts a request that could not be cancelled yet.
    pub(crate) fn reinsert(&mut self, orphaned: Orphaned) {
        let Orphaned { wait, attempts, mut pending, .. } = orphaned;
        match self.pending.get_mut(&wait) {
            Some(newer) => attempts.into_iter().for_each(|attempt| newer.abandon(attempt)),
            None => {
                attempts.into_iter().for_each(|attempt| pending.abandon(attempt));
                self.pending.insert(wait, *pending);
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
        let until = slot.expiry_from(Instant::now());
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
mod tests {
    use holdfast_core::limit::MAX_CALLERS_OF_WAIT;
    use holdfast_core::{AccountId, Incarnation, Owner};

    use super::*;

    const WAIT: WaitId = WaitId(7);

    fn namespace() -> NamespaceRef {
        NamespaceRef { account: AccountId(1), name: "n".into(), incarnation: Incarnation(2) }
    }

    fn adopted(wait: WaitId, attempts: &[u64]) -> AdoptedWait {
        AdoptedWait { namespace: namespace(), wait, attempts: attempts.to_vec(), cancel: None }
    }

    fn waits(waits: &mut PendingWaits, attempt: u64) -> Attachment {
        waits.enqueued(&namespace(), WAIT, attempt, attempt);
        waits.attach(WAIT, attempt).unwrap()
    }

    fn granted(attempt: u64) -> Effect {
        Effect::WaitResolved {
            namespace: namespace(),
            wait: WAIT,
            attempt,
            owner: Owner::Process("p".into()),
            request_id: None,
            claims: vec![],
            outcome: AcquireOutcome::Granted { fencing_token: 9 },
            locks: vec![],
        }
    }

    fn cancel_for(attempt: u64) -> Rollback {
        Rollback::of_effect(granted(attempt)).unwrap()
    }

    /// Returns the attempts that the wait reaper cancels after this time.
    fn cancels(waits: &mut PendingWaits, after: Duration) -> Vec<Vec<u64>> {
        let orphaned = waits.take_orphaned(Instant::now() + after, Rules::TWO);
        orphaned.into_iter().map(|orphaned| orphaned.attempts).collect()
    }

    #[tokio::test]
    async fn by_rules_1_a_place_is_given_up_by_the_last_of_its_callers_only() {
        let mut all = PendingWaits::default();
        let first = waits(&mut all, 1);
        assert_eq!(all.abandon(WAIT, 3, Rules::ONE), None, "it still waits");
        all.enqueued(&namespace(), WAIT, 2, 2);
        drop(first);
        assert_eq!(all.abandon(WAIT, 1, Rules::ONE), None, "the second call is on its way");
        let second = all.attach(WAIT, 2);
        let third = waits(&mut all, 3);
        drop(second);
        assert_eq!(all.abandon(WAIT, 2, Rules::ONE), None, "another one still waits");
        drop(third);
        assert_eq!(all.abandon(WAIT, 1, Rules::ONE), None, "the third has not said so yet");
        assert_eq!(all.abandon(WAIT, 3, Rules::ONE), Some(vec![3]), "nobody is left, and the highest owns the place");
        assert_eq!(all.abandon(WaitId(8), 3, Rules::ONE), Some(vec![3]), "what was settled meanwhile is given back");
    }

    #[tokio::test]
    async fn whoever_leaves_is_cancelled_with_those_before_that_the_core_was_not_told_of() {
        let mut all = PendingWaits::default();
        let (first, second, third) = (waits(&mut all, 1), waits(&mut all, 2), waits(&mut all, 3));
        drop(first);
        assert_eq!(all.abandon(WAIT, 1, Rules::TWO), Some(vec![1]));
        drop(second);
        assert_eq!(all.abandon(WAIT, 2, Rules::TWO), Some(vec![2, 1]), "the first cancel is not known to be done");
        all.on_cancelled(WAIT, &[2, 1]);
        drop(third);
        assert_eq!(all.abandon(WAIT, 3, Rules::TWO), Some(vec![3]));
        assert_eq!(cancels(&mut all, RECONNECT_GRACE), [vec![3]], "it is tried again until it is done");
    }

    #[tokio::test]
    async fn the_newest_calls_for_a_request_take_the_places_of_the_oldest_and_another_request_keeps_its_own() {
        const MAX: u64 = MAX_CALLERS_OF_WAIT as u64;
        let mut all = PendingWaits::default();
        all.enqueued(&namespace(), WaitId(8), 1, 1);
        let neighbour = all.attach(WaitId(8), 1);
        let mut callers: Vec<_> = (1..=MAX + 2).map(|attempt| waits(&mut all, attempt)).collect();
        for oldest in callers.drain(..2) {
            let Attachment::Pending(told) = oldest else { panic!("it waited") };
            assert!(matches!(told.await, Ok(WaitNotice::Displaced)));
        }
        assert_eq!(all.replaced(WAIT, &[1, 2, MAX + 2]), [1, 2], "their attempts no longer count");
        // The same if all of them hang up, and come again, and are only on their way.
        drop(callers);
        (3..=MAX + 2).for_each(|attempt| all.detach(WAIT, attempt, Duration::from_secs(10)));
        (MAX + 3..4 * MAX).for_each(|attempt| {
            drop(waits(&mut all, attempt));
            all.detach(WAIT, attempt, Duration::from_secs(10));
        });
        (4 * MAX..6 * MAX).for_each(|attempt| all.enqueued(&namespace(), WAIT, attempt, attempt));
        assert!(cancels(&mut all, Duration::from_secs(60))[0].len() <= 3 * MAX_CALLERS_OF_WAIT);
        let Some(Attachment::Pending(mut told)) = neighbour else { panic!("it waits") };
        assert_eq!(told.try_recv().err(), Some(oneshot::error::TryRecvError::Empty), "its wait is another one");
    }

    #[tokio::test]
    async fn a_call_takes_the_place_of_one_whose_poll_has_ended_and_of_no_other() {
        let mut all = PendingWaits::default();
        let (first, second) = (waits(&mut all, 1), waits(&mut all, 2));
        drop(second);
        all.detach(WAIT, 2, Duration::from_secs(10));
        assert_eq!(all.replaced(WAIT, &[1, 2]), [2]);
        let third = waits(&mut all, 3);
        all.on_cancelled(WAIT, &[2]);
        assert_eq!(all.replaced(WAIT, &[1, 3]), [0; 0], "both are there");
        drop((first, third));
        all.detach(WAIT, 1, Duration::from_secs(10));
        all.detach(WAIT, 3, Duration::from_secs(20));
        assert_eq!(cancels(&mut all, Duration::from_secs(19)), [[0; 0]; 0]);
        assert_eq!(cancels(&mut all, Duration::from_secs(20)), [[1, 3]]);
    }

    #[tokio::test]
    async fn what_some_have_heard_of_is_given_back_for_the_others_only() {
        let mut all = PendingWaits::default();
        let (first, second) = (waits(&mut all, 1), waits(&mut all, 2));
        drop(second);
        all.detach(WAIT, 2, Duration::from_secs(10));
        all.enqueued(&namespace(), WAIT, 3, 3);
        all.resolve(WAIT, granted(3), 5, Rules::TWO);
        let Attachment::Pending(told) = first else { panic!("it waits") };
        assert!(told.await.is_ok());
        assert!(matches!(all.attach(WAIT, 3), Some(Attachment::Resolved(_))));
        assert_eq!(cancels(&mut all, Duration::from_secs(10)), [[2]]);
    }

    #[tokio::test]
    async fn a_grant_that_nobody_could_be_told_of_is_given_back_for_all() {
        let mut all = PendingWaits::default();
        drop((waits(&mut all, 1), waits(&mut all, 2)));
        all.resolve(WAIT, granted(2), 5, Rules::TWO);
        assert_eq!(all.abandon(WAIT, 1, Rules::TWO), Some(vec![1]));
        all.on_cancelled(WAIT, &[1]);
        let reply = Bytes::new();
        all.grant_undelivered(WAIT, 3, reply, cancel_for(3));
        assert_eq!(cancels(&mut all, RECONNECT_GRACE), [[2, 3]]);
    }

    #[tokio::test]
    async fn by_rules_1_what_one_caller_has_heard_of_is_not_given_back() {
        let mut all = PendingWaits::default();
        let (first, second) = (waits(&mut all, 1), waits(&mut all, 2));
        drop(second);
        all.detach(WAIT, 2, Duration::from_secs(10));
        all.resolve(WAIT, granted(2), 5, Rules::ONE);
        let Attachment::Pending(told) = first else { panic!("it waits") };
        assert!(told.await.is_ok());
        assert!(all.take_orphaned(Instant::now() + Duration::from_secs(60), Rules::ONE).is_empty());
    }

    #[tokio::test]
    async fn whoever_awaited_a_condition_is_told_what_becomes_of_its_wait_for_the_lock() {
        const MOVED: WaitId = WaitId(8);
        let mut all = PendingWaits::default();
        let (first, second) = (waits(&mut all, 1), waits(&mut all, 2));
        drop(second);
        all.detach(WAIT, 2, Duration::from_secs(10));
        all.moved(WAIT, MOVED);
        assert_eq!((all.current(WAIT), all.replaced(WAIT, &[1, 2])), (MOVED, vec![2]));
        all.resolve(MOVED, granted(1), 5, Rules::TWO);
        let Attachment::Pending(told) = first else { panic!("it waits") };
        assert!(told.await.is_ok());
        all.on_cancelled(WAIT, &[2]);
        assert!(all.pending.is_empty() && all.moved.is_empty() && all.expiries.is_empty());
    }

    #[tokio::test]
    async fn an_await_is_cancelled_by_what_it_gave_up_wherever_it_stands() {
        let mut all = PendingWaits::default();
        drop(waits(&mut all, 1));
        let (path, owner) = (holdfast_core::Path::flat("l"), Owner::Process("p".into()));
        let cancel = CancelAwait { namespace: namespace(), path, owner, fencing_token: 3, attempts: vec![1] };
        all.set_cancel(WAIT, cancel);
        all.detach(WAIT, 1, Duration::ZERO);
        let late = all.take_orphaned(Instant::now(), Rules::TWO).remove(0);
        // It is moved, and nobody waits under that number any more.
        all.moved(WAIT, WaitId(8));
        assert!(matches!(&late.rollback, Some(Rollback::Await(cancel)) if cancel.fencing_token == 3));
        all.reinsert(late);
        let again = all.take_orphaned(Instant::now() + RECONNECT_GRACE, Rules::TWO).remove(0);
        assert!(matches!(again.rollback, Some(Rollback::Await(_))) && again.attempts == [1]);
    }

    #[tokio::test]
    async fn requests_that_expire_together_are_taken_a_few_at_a_time() {
        let (mut all, now) = (PendingWaits::default(), Instant::now());
        (0..600).for_each(|wait| all.adopt(adopted(WaitId(wait), &[1]), now));
        let due = now + RECONNECT_GRACE;
        for taken in [256, 256, 88, 0] {
            assert_eq!(all.next_expiry().is_some_and(|next| next <= due), taken > 0);
            assert_eq!(all.take_orphaned(due, Rules::TWO).len(), taken);
        }
    }

    #[tokio::test]
    async fn a_new_leader_gives_up_what_nobody_comes_back_for() {
        let mut all = PendingWaits::default();
        all.adopt(adopted(WAIT, &[4, 6]), Instant::now());
        assert_eq!(all.replaced(WAIT, &[4, 6]), [4]);
        let back = waits(&mut all, 8);
        drop(back);
        assert_eq!(all.abandon(WAIT, 8, Rules::TWO), Some(vec![8, 4]));
        let late = all.take_orphaned(Instant::now() + RECONNECT_GRACE, Rules::TWO).remove(0);
        assert_eq!(late.attempts, [4, 8, 6]);
        all.reinsert(late);
        assert_eq!(cancels(&mut all, 2 * RECONNECT_GRACE), [[4, 8, 6]], "it is tried again until it is done");
    }
}
