//! Commands that may wait, for locks, for permits or for members, and the commands that cancel them.

use holdfast_core::shard::ShardState;
use holdfast_core::{
    Acquire, AcquireAtLeast, AcquireOutcome, AcquirePermits, AwaitCondition, Cancel, CancelAttempts, CancelAwait,
    CancelPermits, ConditionCommand, ConditionQuery, Effect, LocksCommand, NamespaceRef, PermitCommand, PermitQuery,
    Query, Reply, Response, Rules, WaitId,
};

/// A command that may wait.
#[derive(Clone)]
pub(crate) enum WaitingCall {
    /// With how long the locks are kept from others at least, in milliseconds.
    Locks(Acquire, u64),
    Permits(AcquirePermits),
    Await(AwaitCondition),
}

/// The command that cancels an attempt or, if it was granted, releases the grant.
#[derive(Clone)]
pub(crate) enum Rollback {
    Locks(Cancel),
    Permits(CancelPermits),
    Await(CancelAwait),
}

impl WaitingCall {
    /// Returns the waiting call in a command, if that may wait.
    pub(crate) fn of_command(command: LocksCommand) -> Option<Self> {
        match command {
            LocksCommand::Acquire(acquire) => Some(Self::Locks(acquire, 0)),
            LocksCommand::AcquireAtLeast(AcquireAtLeast { acquire, abandoned, at_least_ms })
                if abandoned.is_empty() =>
            {
                Some(Self::Locks(acquire, at_least_ms))
            }
            LocksCommand::Permit(PermitCommand::Acquire(acquire)) => Some(Self::Permits(acquire)),
            LocksCommand::Condition(ConditionCommand::Await(awaits)) => Some(Self::Await(awaits)),
            _ => None,
        }
    }

    pub(crate) fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Locks(acquire, _) => &acquire.namespace,
            Self::Permits(acquire) => &acquire.namespace,
            Self::Await(awaits) => &awaits.namespace,
        }
    }

    pub(crate) fn attempt(&self) -> u64 {
        match self {
            Self::Locks(acquire, _) => acquire.attempt,
            Self::Permits(acquire) => acquire.attempt,
            Self::Await(awaits) => awaits.attempt,
        }
    }

    /// Returns the call as that attempt.
    pub(super) fn with_attempt(self, attempt: u64) -> Self {
        match self {
            Self::Locks(acquire, at_least_ms) => Self::Locks(Acquire { attempt, ..acquire }, at_least_ms),
            Self::Permits(acquire) => Self::Permits(AcquirePermits { attempt, ..acquire }),
            Self::Await(awaits) => Self::Await(AwaitCondition { attempt, ..awaits }),
        }
    }

    /// Returns its wait in the state, if it waits, and the attempts that rely on it.
    pub(super) fn queued(&self, core: &ShardState) -> Option<(WaitId, Vec<u64>)> {
        match self {
            Self::Locks(acquire, _) => core.queued_wait(acquire),
            Self::Permits(acquire) => core.queued_permits(acquire),
            Self::Await(awaits) => core.queued_await(awaits),
        }
    }

    /// Returns the command to propose, given the attempts that no longer count.
    pub(super) fn to_command(&self, abandoned: Vec<u64>, rules: Rules) -> LocksCommand {
        match self {
            Self::Locks(acquire, at_least_ms) => {
                let abandoned = if rules < Rules::TWO { Vec::new() } else { abandoned };
                LocksCommand::acquire(acquire.clone(), abandoned, *at_least_ms)
            }
            Self::Permits(acquire) => {
                LocksCommand::Permit(PermitCommand::Acquire(AcquirePermits { abandoned, ..acquire.clone() }))
            }
            Self::Await(awaits) => {
                LocksCommand::Condition(ConditionCommand::Await(AwaitCondition { abandoned, ..awaits.clone() }))
            }
        }
    }

    /// Returns the command before it has an attempt.
    pub(crate) fn into_command(self) -> LocksCommand {
        match self {
            Self::Locks(acquire, at_least_ms) => LocksCommand::acquire(acquire, Vec::new(), at_least_ms),
            Self::Permits(acquire) => LocksCommand::Permit(PermitCommand::Acquire(acquire)),
            Self::Await(awaits) => LocksCommand::Condition(ConditionCommand::Await(awaits)),
        }
    }

    /// Returns the query for the current position of its wait.
    pub(crate) fn status_query(&self, wait: WaitId) -> Query {
        match self {
            Self::Locks(acquire, _) => Query::WaitStatus { namespace: acquire.namespace.clone(), wait },
            Self::Permits(acquire) => {
                Query::Permit(PermitQuery::WaitStatus { namespace: acquire.namespace.clone(), wait })
            }
            Self::Await(awaits) => {
                Query::Condition(ConditionQuery::WaitStatus { namespace: awaits.namespace.clone(), wait })
            }
        }
    }

    pub(crate) fn rollback(&self) -> Rollback {
        match self {
            Self::Locks(acquire, _) => Rollback::Locks(Cancel {
                namespace: acquire.namespace.clone(),
                owner: acquire.owner.clone(),
                request_id: acquire.request_id.clone(),
                claims: acquire.claims.clone(),
                attempt: acquire.attempt,
            }),
            Self::Permits(acquire) => Rollback::Permits(CancelPermits {
                namespace: acquire.namespace.clone(),
                kind: acquire.wanted.kind(),
                path: acquire.path.clone(),
                owner: acquire.owner.clone(),
                request_id: acquire.request_id.clone(),
                attempts: vec![acquire.attempt],
            }),
            Self::Await(awaits) => Rollback::Await(cancel_of(awaits)),
        }
    }
}

impl Rollback {
    pub(crate) fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Locks(cancel) => &cancel.namespace,
            Self::Permits(cancel) => &cancel.namespace,
            Self::Await(cancel) => &cancel.namespace,
        }
    }

    /// Returns the highest attempt that it cancels.
    pub(super) fn attempt(&self) -> u64 {
        match self {
            Self::Locks(cancel) => cancel.attempt,
            Self::Permits(CancelPermits { attempts, .. }) | Self::Await(CancelAwait { attempts, .. }) => {
                attempts.iter().copied().max().unwrap_or_default()
            }
        }
    }

    /// Returns the rollback of a wait that was resolved.
    pub(super) fn of_effect(effect: Effect) -> Option<Self> {
        match effect {
            Effect::WaitResolved { namespace, owner, request_id, claims, attempt, .. } => {
                Some(Self::Locks(Cancel { namespace, owner, request_id, claims, attempt }))
            }
            Effect::PermitsResolved { namespace, owner, request_id, view, attempt, .. } => {
                let (kind, path, attempts) = (view.kind(), view.path().clone(), vec![attempt]);
                Some(Self::Permits(CancelPermits { namespace, kind, path, owner, request_id, attempts }))
            }
            Effect::AwaitResolved { namespace, owner, fencing_token, lock, attempt, .. } => {
                let (path, attempts) = (lock.path, vec![attempt]);
                Some(Self::Await(CancelAwait { namespace, path, owner, fencing_token, attempts }))
            }
            _ => None,
        }
    }

    /// Returns the command that cancels these attempts.
    pub(crate) fn into_command(self, attempts: &[u64]) -> LocksCommand {
        match self {
            Self::Locks(cancel) => cancel_all(cancel, attempts),
            Self::Permits(cancel) => {
                let attempts = if attempts.is_empty() { cancel.attempts } else { attempts.to_vec() };
                LocksCommand::Permit(PermitCommand::Cancel(CancelPermits { attempts, ..cancel }))
            }
            Self::Await(cancel) => {
                let attempts = if attempts.is_empty() { cancel.attempts } else { attempts.to_vec() };
                LocksCommand::Condition(ConditionCommand::Cancel(CancelAwait { attempts, ..cancel }))
            }
        }
    }
}

/// Returns the command that cancels these attempts at locks.
pub(crate) fn cancel_all(cancel: Cancel, attempts: &[u64]) -> LocksCommand {
    match attempts {
        [] => LocksCommand::Cancel(cancel),
        [attempt] => LocksCommand::Cancel(Cancel { attempt: *attempt, ..cancel }),
        [attempt, abandoned @ ..] => {
            let (cancel, abandoned) = (Cancel { attempt: *attempt, ..cancel }, abandoned.to_vec());
            LocksCommand::CancelAttempts(CancelAttempts { cancel, abandoned })
        }
    }
}

/// Returns what cancels this call of an await.
pub(super) fn cancel_of(awaits: &AwaitCondition) -> CancelAwait {
    CancelAwait {
        namespace: awaits.namespace.clone(),
        path: awaits.path.clone(),
        owner: awaits.owner.clone(),
        fencing_token: awaits.fencing_token,
        attempts: vec![awaits.attempt],
    }
}

/// The wait of a request that is in the queue, as a command and its reply tell it.
pub(super) struct QueuedCall<'a> {
    pub(super) namespace: &'a NamespaceRef,
    pub(super) attempt: u64,
    /// The attempts that no longer count.
    pub(super) left: &'a [u64],
}

/// Returns the call that a command makes, if it may wait.
pub(super) fn queued_call(command: &LocksCommand) -> Option<QueuedCall<'_>> {
    match command {
        LocksCommand::Permit(PermitCommand::Acquire(acquire)) => {
            let AcquirePermits { namespace, attempt, abandoned, .. } = acquire;
            Some(QueuedCall { namespace, attempt: *attempt, left: abandoned })
        }
        LocksCommand::Condition(ConditionCommand::Await(awaits)) => {
            let AwaitCondition { namespace, attempt, abandoned, .. } = awaits;
            Some(QueuedCall { namespace, attempt: *attempt, left: abandoned })
        }
        command => {
            let (acquire, left) = command.as_acquire()?;
            Some(QueuedCall { namespace: &acquire.namespace, attempt: acquire.attempt, left })
        }
    }
}

/// Returns the outcome in the reply to a command that may wait.
pub(crate) fn outcome_of(reply: &Reply) -> Option<&AcquireOutcome> {
    match &reply.outcome {
        Ok(
            Response::Acquired { outcome, .. }
            | Response::PermitsAcquired { outcome, .. }
            | Response::Awaited { outcome, .. },
        ) => Some(outcome),
        _ => None,
    }
}

/// Returns the reply to the callers of a wait that was resolved.
pub(super) fn resolution_of(effect: &Effect) -> Option<(&AcquireOutcome, Response)> {
    match effect {
        Effect::WaitResolved { outcome, locks, .. } => {
            Some((outcome, Response::Acquired { outcome: outcome.clone(), locks: locks.clone() }))
        }
        Effect::PermitsResolved { outcome, members, view, .. } => {
            let response = Response::PermitsAcquired {
                outcome: outcome.clone(),
                members: members.clone(),
                view: view.clone(),
                holders: Vec::new(),
                release_requested: None,
            };
            Some((outcome, response))
        }
        Effect::AwaitResolved { outcome, woken, lock, .. } => {
            let locks = vec![lock.as_ref().clone()];
            Some((outcome, Response::Awaited { outcome: outcome.clone(), woken: *woken, locks }))
        }
        _ => None,
    }
}
