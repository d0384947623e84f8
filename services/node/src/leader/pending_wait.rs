//! One waiting request and the calls attached to it.

use bytes::Bytes;
use holdfast_core::limit::MAX_CALLERS_OF_WAIT;
use holdfast_core::{CancelAwait, NamespaceRef, Rules, WaitId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::RECONNECT_GRACE;
use super::waiting_call::Rollback;

/// Departed callers that the core may not know of yet. The core tracks fewer, so dropping further ones loses nothing.
const MAX_ABANDONED: usize = 16;

/// What the caller of a wait hears.
pub(crate) enum WaitNotice {
    /// The wait ended with this encoded reply.
    Resolved(Bytes),
    /// As many newer calls wait for the same request as may.
    Displaced,
}

/// A waiting request whose callers may disconnect. Without an expiry, a caller is attached.
pub(super) struct PendingWait {
    pub(super) namespace: NamespaceRef,
    /// The wait that it had before it was moved.
    pub(super) moved_from: Option<WaitId>,
    /// Of an await: what cancels it wherever it stands by then.
    pub(super) cancel: Option<Box<CancelAwait>>,
    /// The highest attempt that the core knows; its caller may not have attached yet.
    pub(super) highest: u64,
    /// When this leader first learned of the request.
    pub(super) since: Instant,
    /// Calls that the core knows and whose callers attach shortly; the latest, as many as callers may attach.
    pub(super) expected: Vec<u64>,
    /// At most [`MAX_CALLERS_OF_WAIT`]; the oldest is the first.
    pub(super) callers: Vec<(u64, oneshot::Sender<WaitNotice>)>,
    /// Calls whose callers disconnected, and until when they may return, as new calls. As many as callers may attach.
    detached: Vec<DetachedCall>,
    /// Calls whose callers left for good, until the core is known to have cancelled them.
    abandoned: Vec<u64>,
    pub(super) expires_at: Option<Instant>,
    /// The outcome, for callers that have not received it.
    pub(super) resolution: Option<Resolution>,
}

/// A call whose caller disconnected and may return.
struct DetachedCall {
    attempt: u64,
    until: Instant,
    /// It called an earlier leader, so it may return for a time from when this leadership begins.
    is_adopted: bool,
}

impl DetachedCall {
    /// Returns until when its caller may return; `adopted_until` applies to callers of an earlier leader.
    fn until(&self, adopted_until: Option<Instant>) -> Instant {
        adopted_until.filter(|_| self.is_adopted).map_or(self.until, |adopted| adopted.max(self.until))
    }
}

#[derive(Clone)]
pub(crate) struct Resolution {
    pub(crate) reply: Bytes,
    /// Releases a grant.
    pub(crate) rollback: Option<Rollback>,
}

impl PendingWait {
    pub(super) fn new(namespace: NamespaceRef, now: Instant) -> Self {
        Self {
            namespace,
            moved_from: None,
            cancel: None,
            highest: 0,
            since: now,
            expected: Vec::new(),
            callers: Vec::new(),
            detached: Vec::new(),
            abandoned: Vec::new(),
            expires_at: None,
            resolution: None,
        }
    }

    pub(super) fn expect_caller(&mut self, attempt: u64) {
        if attempt > 0 && !self.expected.contains(&attempt) {
            // The core tracks fewer, so forgetting one loses nothing.
            if self.expected.len() >= MAX_CALLERS_OF_WAIT {
                self.expected.remove(0);
            }
            self.expected.push(attempt);
        }
    }

    /// Attaches the caller of an attempt. One too many takes the place of the oldest, whose call ends: repeats of an
    /// acquire whose connections were lost always find a place.
    pub(super) fn attach(&mut self, attempt: u64) -> oneshot::Receiver<WaitNotice> {
        if self.callers.len() >= MAX_CALLERS_OF_WAIT {
            let (oldest, caller) = self.callers.remove(0);
            self.abandon(oldest);
            // It may have left already.
            drop(caller.send(WaitNotice::Displaced));
        }
        let (caller, told) = oneshot::channel();
        self.callers.push((attempt, caller));
        told
    }

    /// Records that a caller disconnected and may return.
    pub(super) fn detach(&mut self, attempt: u64, until: Instant) {
        self.add_detached(DetachedCall { attempt, until, is_adopted: false });
    }

    /// Records a call to an earlier leader, whose caller may return.
    pub(super) fn adopt(&mut self, attempt: u64, until: Instant) {
        self.add_detached(DetachedCall { attempt, until, is_adopted: true });
    }

    fn add_detached(&mut self, call: DetachedCall) {
        self.remove(call.attempt);
        if self.detached.len() >= MAX_CALLERS_OF_WAIT {
            let oldest = self.detached.remove(0);
            self.abandon(oldest.attempt);
        }
        self.detached.push(call);
    }

    /// Returns true if callers of an earlier leader may return.
    pub(super) fn has_adopted(&self) -> bool {
        self.detached.iter().any(|call| call.is_adopted)
    }

    /// Records that a caller left for good.
    pub(super) fn abandon(&mut self, attempt: u64) {
        self.remove(attempt);
        if self.abandoned.len() >= MAX_ABANDONED {
            self.abandoned.remove(0);
        }
        self.abandoned.push(attempt);
    }

    fn remove(&mut self, attempt: u64) {
        self.expected.retain(|one| *one != attempt);
        self.detached.retain(|call| call.attempt != attempt);
        self.abandoned.retain(|one| *one != attempt);
        self.callers.retain(|(one, caller)| *one != attempt || !caller.is_closed());
    }

    /// Records that the core has cancelled these attempts.
    pub(super) fn on_cancelled(&mut self, attempts: &[u64]) {
        self.abandoned.retain(|one| !attempts.contains(one));
    }

    /// Handles a new call. It may be the successor of the longest-detached caller, which it replaces; the returned
    /// attempts no longer count. `there` are the attempts that count as far as the core knows.
    pub(super) fn replaced(&mut self, there: &[u64]) -> Vec<u64> {
        self.abandoned.retain(|attempt| there.contains(attempt));
        if let Some(attempt) = self.detached.first().map(|call| call.attempt) {
            self.abandon(attempt);
        }
        self.abandoned.clone()
    }

    /// Returns true if callers are attached or expected.
    pub(super) fn is_awaited(&self) -> bool {
        !self.callers.is_empty() || !self.expected.is_empty()
    }

    /// Returns true if every caller has received the outcome.
    pub(super) fn all_notified(&self) -> bool {
        let is_granted = self.resolution.as_ref().is_some_and(|settled| settled.rollback.is_some());
        self.expected.is_empty() && self.detached.is_empty() && (!is_granted || self.abandoned.is_empty())
    }

    /// Returns the attempts to cancel when a caller leaves for good, its own first. By rules 1 the highest attempt owns
    /// the queued request: nothing is cancelled while other callers keep it.
    pub(super) fn cancel_attempt(
        &mut self,
        attempt: u64,
        rules: Rules,
        adopted_until: Option<Instant>,
    ) -> Option<Vec<u64>> {
        self.abandon(attempt);
        if rules < Rules::TWO {
            return (!self.is_awaited()).then(|| vec![self.highest]);
        }
        let now = Instant::now();
        let is_late = |call: &&DetachedCall| call.until(adopted_until) <= now;
        let late: Vec<u64> = self.detached.iter().filter(is_late).map(|call| call.attempt).collect();
        late.into_iter().for_each(|one| self.abandon(one));
        let others = self.abandoned.iter().copied().filter(|one| *one != attempt);
        Some([attempt].into_iter().chain(others).collect())
    }

    /// Returns the attempts to cancel if no caller returned in time.
    pub(super) fn orphaned_attempts(&self, rules: Rules) -> Vec<u64> {
        if rules < Rules::TWO {
            let give_back = self.resolution.as_ref().and_then(|settled| settled.rollback.as_ref());
            return vec![give_back.map_or(self.highest, Rollback::attempt)];
        }
        let away = self.detached.iter().map(|call| call.attempt);
        self.abandoned.iter().copied().chain(self.expected.iter().copied()).chain(away).collect()
    }

    /// Returns until when the request is kept without an attached caller.
    pub(super) fn expiry_from(&self, now: Instant, adopted_until: Option<Instant>) -> Instant {
        let shortly = Some(now + RECONNECT_GRACE).filter(|_| !self.expected.is_empty() || !self.abandoned.is_empty());
        self.detached.iter().map(|call| call.until(adopted_until)).chain(shortly).max().unwrap_or(now)
    }
}
