//! Converts replies of locks shards to public views: deadlines of the shard clock become time remaining.

use holdfast_api::{
    AcquireLocksAnswer, AcquirePermitsAnswer, ArrivalInfo, BarrierAnswerInfo, BarrierInfo, BlockerInfo, CycleStepInfo,
    Holder, LatchInfo, Lock, MemberInfo, PermitHolderInfo, PoolInfo, ReasonInfo, ReleaseRequestInfo, SemaphoreInfo,
    TakeMembersAnswer, Timestamp,
};
use holdfast_types::{
    AcquireOutcome, ArrivalView, BarrierAnswer, BarrierOutcome, BarrierView, Blocker, CycleStep, FencingToken,
    HolderView, LatchView, LockView, MemberView, Owner, Path, PermitHolderView, PoolView, Reason, Refused,
    ReleaseRequest, SemaphoreView,
};

/// Converts one reply.
pub(crate) struct ViewBuilder<'a> {
    namespace: &'a str,
    /// The shard clock of the reply.
    clock_ms: u64,
    /// The gateway's wall clock just before it sent the query; for an unsolicited message, when it arrived.
    sent_at: Timestamp,
}

impl<'a> ViewBuilder<'a> {
    /// Instants are counted from `sent_at`. The shard reads its clock after that, so no instant is shown later than it
    /// is, however late the reply arrives.
    pub(crate) fn new(namespace: &'a str, clock_ms: u64, sent_at: Timestamp) -> Self {
        Self { namespace, clock_ms, sent_at }
    }

    pub(crate) fn acquired(&self, outcome: AcquireOutcome, locks: Vec<LockView>) -> AcquireLocksAnswer {
        let (fencing_token, reason) = match outcome {
            AcquireOutcome::Granted { fencing_token } => (Some(fencing_token), None),
            // The call ended before the wait did; the blockers say what the request waits for.
            AcquireOutcome::Enqueued(enqueued) => {
                (None, Some(self.reason(Refused { reason: Reason::Queued, ..enqueued.not_granted })))
            }
            AcquireOutcome::Refused(refusal) => (None, Some(self.reason(*refusal))),
        };
        let (success, locks) = (fencing_token.is_some(), self.locks(locks));
        AcquireLocksAnswer { success, fencing_token, reason, signed_grants: None, locks }
    }

    pub(crate) fn locks(&self, locks: Vec<LockView>) -> Vec<Lock> {
        locks.into_iter().map(|lock| self.lock(lock)).collect()
    }

    pub(crate) fn lock(&self, lock: LockView) -> Lock {
        let (name, path) = named(lock.path);
        Lock {
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

    pub(crate) fn reason(&self, refusal: Refused) -> ReasonInfo {
        ReasonInfo {
            code: refusal.reason,
            blockers: refusal.blockers.into_iter().map(|blocker| self.blocker(blocker)).collect(),
            queue_position: refusal.queue_position,
            cycle: refusal.cycle.into_iter().map(cycle_step).collect(),
            holders: Vec::new(),
        }
    }

    pub(crate) fn permits_acquired(
        &self,
        (outcome, asked): (AcquireOutcome, Option<Box<ReleaseRequest>>),
        semaphore: SemaphoreView,
        holders: Vec<PermitHolderView>,
    ) -> AcquirePermitsAnswer {
        let (fencing_token, reason) = self.permit_outcome(outcome, holders);
        AcquirePermitsAnswer {
            success: fencing_token.is_some(),
            fencing_token,
            reason,
            release_requested: asked.map(|request| self.release_request(*request)),
            semaphore: self.semaphore(semaphore),
        }
    }

    pub(crate) fn members_taken(
        &self,
        (outcome, members, asked): (AcquireOutcome, Vec<String>, Option<Box<ReleaseRequest>>),
        pool: PoolView,
        holders: Vec<PermitHolderView>,
    ) -> TakeMembersAnswer {
        let (fencing_token, reason) = self.permit_outcome(outcome, holders);
        TakeMembersAnswer {
            success: fencing_token.is_some(),
            fencing_token,
            members,
            reason,
            release_requested: asked.map(|request| self.release_request(*request)),
            pool: self.pool(pool),
        }
    }

    /// Returns the token of a request that was granted, or why it was not.
    fn permit_outcome(
        &self,
        outcome: AcquireOutcome,
        holders: Vec<PermitHolderView>,
    ) -> (Option<FencingToken>, Option<ReasonInfo>) {
        let refused = match outcome {
            AcquireOutcome::Granted { fencing_token } => return (Some(fencing_token), None),
            // The call ended before the wait did; the holders say what the request waits for.
            AcquireOutcome::Enqueued(enqueued) => Refused { reason: Reason::Queued, ..enqueued.not_granted },
            AcquireOutcome::Refused(refusal) => *refusal,
        };
        (None, Some(self.permit_reason(refused, holders)))
    }

    pub(crate) fn permit_reason(&self, refused: Refused, holders: Vec<PermitHolderView>) -> ReasonInfo {
        let holders = holders.into_iter().map(|holder| self.permit_holder(holder)).collect();
        ReasonInfo { holders, ..self.reason(refused) }
    }

    pub(crate) fn semaphore(&self, semaphore: SemaphoreView) -> SemaphoreInfo {
        let available = semaphore.available();
        let (name, path) = named(semaphore.path);
        SemaphoreInfo {
            namespace: self.namespace.to_owned(),
            name,
            path,
            configured: semaphore.configured,
            permits: semaphore.permits,
            in_use: semaphore.in_use,
            available,
            holders_total: semaphore.holders_total,
            waiting: semaphore.waiting,
            description: semaphore.description,
            metadata: semaphore.metadata,
            revision: semaphore.revision,
        }
    }

    pub(crate) fn pool(&self, pool: PoolView) -> PoolInfo {
        let (name, path) = named(pool.path);
        PoolInfo {
            namespace: self.namespace.to_owned(),
            name,
            path,
            members_total: pool.members_total,
            free: pool.free,
            in_use: pool.in_use,
            leaving: pool.leaving,
            cooldown_ms: pool.cooldown_ms,
            holders_total: pool.holders_total,
            waiting: pool.waiting,
            description: pool.description,
            metadata: pool.metadata,
            revision: pool.revision,
        }
    }

    pub(crate) fn member(&self, member: MemberView) -> MemberInfo {
        let (rests_ms, rests_until) = self.time_left(member.resting_until_ms);
        MemberInfo {
            name: member.name,
            disabled: member.disabled,
            leaving: member.leaving,
            metadata: member.metadata,
            free_since: member.free_since,
            rests_until,
            rests_ms,
            holder: member.holder.map(|holder| self.permit_holder(holder)),
        }
    }

    pub(crate) fn permit_holder(&self, holder: PermitHolderView) -> PermitHolderInfo {
        let (session_id, thread) = session_of(holder.owner);
        let (remaining_ms, expires_at) = self.time_left(holder.deadline_ms);
        PermitHolderInfo {
            process_id: holder.process_id,
            session_id,
            holder: thread,
            request_id: holder.request_id,
            weight: holder.weight,
            members: holder.members,
            fencing_token: holder.fencing_token,
            locked_at: Timestamp(holder.locked_at_ms),
            expires_at,
            remaining_ms,
            phase: holder.phase,
            metadata: holder.metadata,
            release_requested: holder.release_requested.map(|request| self.release_request(*request)),
        }
    }

    fn release_request(&self, request: ReleaseRequest) -> ReleaseRequestInfo {
        ReleaseRequestInfo {
            by: request.by,
            reason: request.reason,
            within_ms: request.within_ms,
            requested_at: Timestamp(request.asked_at_ms),
            remaining_ms: self.time_left(request.until_ms).0,
            force: request.force,
        }
    }

    pub(crate) fn blocker(&self, blocker: Blocker) -> BlockerInfo {
        BlockerInfo { path: blocker.path.0, waiting: blocker.waiting, holder: self.holder(blocker.holder) }
    }

    pub(crate) fn holder(&self, holder: HolderView) -> Holder {
        let (session_id, thread) = session_of(holder.owner);
        let (remaining_ms, expires_at) = self.time_left(holder.deadline_ms);
        Holder {
            process_id: holder.process_id,
            session_id,
            holder: thread,
            mode: holder.mode,
            fencing_token: holder.fencing_token,
            locked_at: Timestamp(holder.locked_at_ms),
            expires_at,
            remaining_ms,
            phase: holder.phase,
            metadata: holder.metadata,
            release_requested: holder.release_requested.map(|request| self.release_request(*request)),
            requested_expires_at_ns: holder.requested_expires_at_ns,
        }
    }

    pub(crate) fn latch(&self, latch: LatchView) -> LatchInfo {
        let (name, path) = named(latch.path);
        // A final latch has another deadline, at which it is gone.
        let (remaining_ms, expires_at) = self.time_left((!latch.status.is_final()).then_some(latch.deadline_ms));
        LatchInfo {
            namespace: self.namespace.to_owned(),
            name,
            path,
            id: latch.id,
            status: latch.status,
            total: latch.total,
            done: latch.done,
            ids: latch.ids,
            expires_at,
            remaining_ms,
            finished_at: latch.finished_at_ms.map(Timestamp),
            retain_ms: latch.retain_ms,
            description: latch.description,
            metadata: latch.metadata,
            revision: latch.revision,
            waiters: latch.waiters,
        }
    }

    pub(crate) fn barrier(&self, barrier: BarrierView) -> BarrierInfo {
        let (name, path) = named(barrier.path);
        BarrierInfo {
            namespace: self.namespace.to_owned(),
            name,
            path,
            configured: barrier.configured,
            parties: barrier.parties,
            double: barrier.double,
            on_loss: barrier.on_loss,
            retain_ms: barrier.retain_ms,
            generation: barrier.generation,
            arrived: barrier.arrived,
            inside: barrier.inside,
            inside_generation: barrier.inside_generation,
            remaining_ms: self.time_left(barrier.gone_at_ms).0,
            description: barrier.description,
            metadata: barrier.metadata,
            revision: barrier.revision,
        }
    }

    pub(crate) fn at_barrier(&self, answer: BarrierAnswer, barrier: BarrierView) -> BarrierAnswerInfo {
        let BarrierAnswer { outcome, generation, next_generation, index, lost, ended } = answer;
        let (barrier, ended) = (self.barrier(barrier), (outcome == BarrierOutcome::Past).then_some(ended));
        BarrierAnswerInfo { outcome, generation, next_generation, index, lost, ended, barrier }
    }

    pub(crate) fn arrival(&self, arrival: ArrivalView) -> ArrivalInfo {
        let (session_id, holder) = session_of(arrival.owner);
        ArrivalInfo {
            process_id: arrival.process_id,
            session_id,
            holder,
            request_id: arrival.request_id,
            inside: arrival.inside,
            arrived_at: Timestamp(arrival.arrived_at_ms),
            remaining_ms: self.time_left(arrival.deadline_ms).0,
            metadata: arrival.metadata,
        }
    }

    /// Returns the time until a deadline of the shard clock, and the instant of that deadline.
    pub(crate) fn time_left(&self, deadline_ms: Option<u64>) -> (Option<u64>, Option<Timestamp>) {
        let remaining_ms = deadline_ms.map(|deadline_ms| deadline_ms.saturating_sub(self.clock_ms));
        (remaining_ms, remaining_ms.map(|remaining_ms| Timestamp(self.sent_at.0.saturating_add(remaining_ms))))
    }
}

/// Returns a reason without anything else.
pub(crate) fn reason_only(code: Reason) -> ReasonInfo {
    ReasonInfo { code, blockers: Vec::new(), queue_position: None, cycle: Vec::new(), holders: Vec::new() }
}

/// Returns the flat name, if the path is one, and the segments.
fn named(path: Path) -> (Option<String>, Vec<String>) {
    let name = if let [name] = path.0.as_slice() { Some(name.clone()) } else { None };
    (name, path.0)
}

fn cycle_step(step: CycleStep) -> CycleStepInfo {
    let (session_id, holder) = session_of(step.owner);
    CycleStepInfo { process_id: step.process_id, session_id, holder, path: step.path.0, waiting: step.waiting }
}

/// Returns the session of an owner, and its holder.
pub(crate) fn session_of(owner: Owner) -> (Option<String>, Option<String>) {
    match owner {
        Owner::Process(_) => (None, None),
        Owner::Session { session_id, holder } => (Some(session_id), holder),
    }
}
