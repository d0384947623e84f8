//! Waiting requests and the callers that are attached to them.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{AcquireOutcome, Answer, Cancel, Effect, NamespaceRef, Reply, WaitId, codec};
use metrics::histogram;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::cancel_of;

/// How long a place is kept for a caller that was cut off.
pub(crate) const RECONNECT: Duration = Duration::from_secs(5);

/// Waiting requests of callers that may go away, each with who is attached.
#[derive(Default)]
pub(crate) struct Waits {
    slots: HashMap<WaitId, Slot>,
    /// When those are given up to which nobody is attached.
    leases: BTreeSet<(Instant, WaitId)>,
    /// When the duty that gives them up looks again; absent while it waits for the first.
    planned: Option<Instant>,
}

struct Slot {
    namespace: NamespaceRef,
    /// The highest attempt that the core knows of; its caller may not have attached yet.
    attempt: u64,
    /// When this leader first knew of it.
    since: Instant,
    /// The highest one whose caller has attached.
    attached: u64,
    callers: Vec<oneshot::Sender<Bytes>>,
    lease_ends: Option<Instant>,
    /// The end of the wait, when nobody was there to hear of it.
    settled: Option<Settled>,
}

struct Settled {
    reply: Bytes,
    /// What gives back what was granted.
    give_back: Option<Cancel>,
}

/// What an attached caller has.
pub(crate) enum Attached {
    /// The encoded reply comes, or the sender goes with the leadership.
    Waits(oneshot::Receiver<Bytes>),
    /// The encoded reply: the wait was over first.
    Settled(Bytes),
}

/// A request that nobody is attached to any more.
pub(crate) enum Forsaken {
    /// It still waits, or did when it was last heard of.
    Waiting(NamespaceRef, WaitId, u64),
    /// It was granted.
    Granted(Cancel),
}

impl Waits {
    /// A request began to wait, or another attempt attached to it: its caller is expected.
    pub(crate) fn enqueued(&mut self, namespace: NamespaceRef, wait: WaitId, attempt: u64, now: Instant) {
        let slot = self.slots.entry(wait).or_insert_with(|| Slot {
            namespace,
            attempt,
            since: now,
            attached: 0,
            callers: Vec::new(),
            lease_ends: None,
            settled: None,
        });
        slot.attempt = slot.attempt.max(attempt);
        self.lease(wait, now + RECONNECT);
    }

    /// Attaches the caller of an attempt; nothing when the wait is not known, which a leader that was elected in between
    /// may not.
    pub(crate) fn attach(&mut self, wait: WaitId, attempt: u64) -> Option<Attached> {
        if let Some(slot) = self.slots.get_mut(&wait)
            && let Some(settled) = slot.settled.take()
        {
            self.remove(wait);
            return Some(Attached::Settled(settled.reply));
        }
        let slot = self.slots.get_mut(&wait)?;
        let (caller, told) = oneshot::channel();
        slot.callers.retain(|caller| !caller.is_closed());
        slot.callers.push(caller);
        slot.attached = slot.attached.max(attempt);
        if let Some(ends) = slot.lease_ends.take() {
            self.leases.remove(&(ends, wait));
        }
        Some(Attached::Waits(told))
    }

    /// The caller of an attempt went away for good. The attempt to cancel, unless others keep the place. Call it after
    /// its receiver is gone.
    pub(crate) fn left(&mut self, wait: WaitId, attempt: u64) -> Option<u64> {
        // It was settled this very moment, and what it was granted is to be given back.
        let Some(slot) = self.slots.get_mut(&wait) else { return Some(attempt) };
        slot.callers.retain(|caller| !caller.is_closed());
        let is_awaited = !slot.callers.is_empty() || slot.attempt > slot.attached;
        (!is_awaited).then_some(slot.attempt)
    }

    /// A caller went away for a while; the place is kept for so long. Call it after its receiver is gone.
    pub(crate) fn detached(&mut self, wait: WaitId, kept_for: Duration) {
        let Some(slot) = self.slots.get_mut(&wait) else { return };
        slot.callers.retain(|caller| !caller.is_closed());
        if slot.callers.is_empty() {
            self.lease(wait, Instant::now() + kept_for);
        }
    }

    /// A wait is over.
    pub(crate) fn settled(&mut self, wait: WaitId, effect: Effect, clock_ms: u64, now: Instant) {
        let Some(slot) = self.slots.get_mut(&wait) else { return };
        let Effect::Settled { outcome, locks, .. } = &effect else { return };
        histogram!("holdfast_wait_seconds").record((now - slot.since).as_secs_f64());
        let is_granted = matches!(outcome, AcquireOutcome::Granted { .. });
        let answer = Answer::Acquired { outcome: outcome.clone(), locks: locks.clone() };
        let reply = Bytes::from(codec::encode(&Reply { outcome: Ok(answer), clock_ms, awaits_outbox: None }));
        let callers = std::mem::take(&mut slot.callers);
        let told = callers.into_iter().map(|caller| caller.send(reply.clone())).filter(Result::is_ok).count();
        if told > 0 {
            self.remove(wait);
            return;
        }
        let give_back = if is_granted { cancel_of(effect) } else { None };
        slot.settled = Some(Settled { reply, give_back });
        if slot.lease_ends.is_none() {
            self.lease(wait, now + RECONNECT);
        }
    }

    /// A caller was told of its grant and could not pass it on: it is given back unless it is asked for soon.
    pub(crate) fn unheard(&mut self, wait: WaitId, reply: Bytes, give_back: Cancel) {
        let slot = Slot {
            namespace: give_back.namespace.clone(),
            attempt: give_back.attempt,
            since: Instant::now(),
            attached: give_back.attempt,
            callers: Vec::new(),
            lease_ends: None,
            settled: Some(Settled { reply, give_back: Some(give_back) }),
        };
        self.slots.entry(wait).or_insert(slot);
        self.lease(wait, Instant::now() + RECONNECT);
    }

    /// When the next request is forsaken, which is when the duty that asks looks again.
    pub(crate) fn next_lease(&mut self) -> Option<Instant> {
        self.planned = self.leases.first().map(|(ends, _)| *ends);
        self.planned
    }

    pub(super) fn is_earlier_than_planned(&self) -> bool {
        let first = self.leases.first().map(|(ends, _)| *ends);
        first.is_some_and(|first| self.planned.is_none_or(|planned| first < planned))
    }

    /// Takes those out whose callers did not come back in time.
    pub(crate) fn forsaken(&mut self, now: Instant) -> Vec<Forsaken> {
        let mut forsaken = Vec::new();
        while let Some((ends, wait)) = self.leases.first().copied().filter(|(ends, _)| *ends <= now) {
            self.leases.remove(&(ends, wait));
            let Some(slot) = self.slots.remove(&wait) else { continue };
            match slot.settled {
                None => forsaken.push(Forsaken::Waiting(slot.namespace, wait, slot.attempt)),
                Some(Settled { give_back: Some(cancel), .. }) => forsaken.push(Forsaken::Granted(cancel)),
                Some(_) => {}
            }
        }
        forsaken
    }

    /// Puts a request back that could not be given up yet.
    pub(crate) fn keep(&mut self, namespace: NamespaceRef, wait: WaitId, attempt: u64) {
        self.enqueued(namespace, wait, attempt, Instant::now());
    }

    pub(crate) fn has_callers(&self) -> bool {
        self.leases.len() < self.slots.len()
    }

    /// Their senders go, and with them what the callers wait for.
    pub(crate) fn send_callers_away(&mut self, now: Instant) {
        let waits: Vec<WaitId> = self.slots.keys().copied().collect();
        for wait in waits {
            let Some(slot) = self.slots.get_mut(&wait) else { continue };
            slot.callers.clear();
            if slot.lease_ends.is_none() {
                self.lease(wait, now + RECONNECT);
            }
        }
    }

    fn lease(&mut self, wait: WaitId, ends: Instant) {
        let Some(slot) = self.slots.get_mut(&wait) else { return };
        if let Some(before) = slot.lease_ends.replace(ends) {
            self.leases.remove(&(before, wait));
        }
        self.leases.insert((ends, wait));
    }

    fn remove(&mut self, wait: WaitId) {
        if let Some(slot) = self.slots.remove(&wait)
            && let Some(ends) = slot.lease_ends
        {
            self.leases.remove(&(ends, wait));
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountId, Incarnation};

    use super::*;

    #[tokio::test]
    async fn a_place_is_given_up_by_the_last_of_its_callers_only() {
        let namespace = NamespaceRef { account: AccountId(1), name: "n".into(), incarnation: Incarnation(2) };
        let wait = WaitId(7);
        let mut waits = Waits::default();
        waits.enqueued(namespace.clone(), wait, 1, Instant::now());
        let first = waits.attach(wait, 1);
        assert_eq!(waits.left(wait, 1), None, "it still waits");
        waits.enqueued(namespace, wait, 2, Instant::now());
        drop(first);
        assert_eq!(waits.left(wait, 1), None, "the second call is on its way");
        let second = waits.attach(wait, 2);
        let third = waits.attach(wait, 2);
        drop(second);
        assert_eq!(waits.left(wait, 2), None, "another one still waits");
        drop(third);
        assert_eq!(waits.left(wait, 1), Some(2), "nobody is left, and the highest attempt owns the place");
        assert_eq!(waits.left(WaitId(8), 3), Some(3), "what was settled meanwhile is given back");
    }
}
