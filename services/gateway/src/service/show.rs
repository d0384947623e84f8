//! Turning what a locks shard answers into what callers see: the shard's clock becomes time remaining.

use holdfast_core::{Blocker, FencingToken, HolderView, LockView, NotGranted, Owner};

use super::{AcquireAnswer, BlockerInfo, Holder, LockInfo, ReasonInfo, Timestamp};

/// How one reply is shown.
pub(super) struct Shown<'a> {
    namespace: &'a str,
    /// The shard clock that the reply is of.
    clock_ms: u64,
    /// The wall clock that `expires_at` is computed from.
    now: Timestamp,
}

impl<'a> Shown<'a> {
    pub(super) fn new(namespace: &'a str, clock_ms: u64) -> Self {
        Self { namespace, clock_ms, now: Timestamp::now() }
    }

    pub(super) fn acquired(&self, outcome: Result<FencingToken, NotGranted>, lock: LockView) -> AcquireAnswer {
        let (fencing_token, reason) = match outcome {
            Ok(token) => (Some(token), None),
            Err(refusal) => (None, Some(self.reason(refusal))),
        };
        AcquireAnswer { success: fencing_token.is_some(), fencing_token, reason, lock: self.lock(lock) }
    }

    pub(super) fn lock(&self, lock: LockView) -> LockInfo {
        let path = lock.path.0;
        let name = if let [name] = path.as_slice() { Some(name.clone()) } else { None };
        LockInfo {
            namespace: self.namespace.to_owned(),
            name,
            path,
            state: lock.state,
            locked_at: lock.locked_at_ms.map(Timestamp),
            write_lock_holder: lock.write_lock_holder.map(|holder| self.holder(holder)),
            read_lock_holders: lock.read_lock_holders.into_iter().map(|holder| self.holder(holder)).collect(),
            holders_total: lock.holders_total,
            waiting: lock.waiting,
            revision: lock.revision,
        }
    }

    fn reason(&self, refusal: NotGranted) -> ReasonInfo {
        ReasonInfo {
            code: refusal.reason,
            blockers: refusal.blockers.into_iter().map(|blocker| self.blocker(blocker)).collect(),
            queue_position: refusal.queue_position,
        }
    }

    fn blocker(&self, blocker: Blocker) -> BlockerInfo {
        BlockerInfo { path: blocker.path.0, waiting: blocker.waiting, holder: self.holder(blocker.holder) }
    }

    fn holder(&self, holder: HolderView) -> Holder {
        let (session_id, thread) = match holder.owner {
            Owner::Process(_) => (None, None),
            Owner::Session { session_id, holder } => (Some(session_id), holder),
        };
        let remaining_ms = holder.deadline_ms.map(|deadline_ms| deadline_ms.saturating_sub(self.clock_ms));
        Holder {
            process_id: holder.process_id,
            session_id,
            holder: thread,
            mode: holder.mode,
            fencing_token: holder.fencing_token,
            locked_at: Timestamp(holder.locked_at_ms),
            expires_at: remaining_ms.map(|remaining_ms| Timestamp(self.now.0.saturating_add(remaining_ms))),
            remaining_ms,
            phase: holder.phase,
            metadata: holder.metadata,
            asked_expires_at_ns: holder.asked_expires_at_ns,
        }
    }
}
