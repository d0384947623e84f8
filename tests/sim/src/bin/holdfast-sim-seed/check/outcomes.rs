//! What commands of a locks shard did, in the words of the calls that cause them.

use holdfast_core::{
    AcquireOutcome, AskedView, BarrierCommand, BarrierOutcome, CommandError, ConditionCommand, Jobs, Kind,
    LatchCommand, LocksCommand, NamespaceRef, OnLoss, Owner, Path, PermitCommand, PermitsView, Reason, Release,
    ReleaseTarget, Reply, Response, SignalCondition, Woken,
};

use super::shard_view::to_observed_lock;
use crate::ask_calls::{AskAnswer, SeenThing};
use crate::barrier_calls::BarrierOp;
use crate::condition_calls::{ConditionAnswer, ConditionOp, SignalOp};
use crate::history::ObservedLock;
use crate::things::{MemberChange, PoolOp, ThingAnswer, ThingOp};

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    Acquired { outcome: Result<u64, Reason>, locks: Vec<ObservedLock> },
    Released { released: bool, locks: Vec<ObservedLock> },
    Done,
    Thing(ThingAnswer),
    NamespaceNotFound,
    SessionNotFound,
    PrimitiveNotFound,
    Other,
}

/// A write that does not name its call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Write {
    Release { owner: Owner, path: Path, token: Option<u64> },
    ReleaseAll { owner: Owner },
    Delete { path: Path },
    Thing(ThingOp),
}

impl CommandOutcome {
    /// Returns whether it is a grant, of locks, permits or members, or an arrival at a barrier.
    pub(crate) fn is_grant(&self) -> bool {
        let of_thing = |answer: &ThingAnswer| match answer {
            ThingAnswer::Acquired { outcome, .. } => outcome.is_ok(),
            ThingAnswer::Condition(ConditionAnswer::Awaited { outcome, .. }) => outcome.is_ok(),
            ThingAnswer::AtBarrier(meeting) => {
                matches!(meeting.outcome, BarrierOutcome::Waiting | BarrierOutcome::Tripped)
            }
            _ => false,
        };
        match self {
            Self::Acquired { outcome, .. } => outcome.is_ok(),
            Self::Thing(answer) => of_thing(answer),
            _ => false,
        }
    }

    pub(crate) fn of_reply(reply: &Reply) -> Self {
        match &reply.outcome {
            Ok(Response::Acquired { outcome, locks }) => {
                Self::Acquired { outcome: outcome_of(outcome), locks: locks.iter().map(to_observed_lock).collect() }
            }
            Ok(Response::Released { released, locks }) => {
                Self::Released { released: *released, locks: locks.iter().map(to_observed_lock).collect() }
            }
            Ok(Response::PermitsAcquired { outcome, members, .. }) => {
                Self::Thing(ThingAnswer::Acquired { outcome: outcome_of(outcome), members: members.clone() })
            }
            Ok(Response::PermitsReleased { released, view: PermitsView::Pool(pool) }) => {
                Self::Thing(ThingAnswer::Returned { released: *released, pool: pool.into() })
            }
            Ok(Response::Pool(pool)) => Self::Thing(ThingAnswer::Pool(pool.into())),
            Ok(Response::PermitsReleased { released, view: PermitsView::Semaphore(semaphore) }) => {
                Self::Thing(ThingAnswer::Released { released: *released, semaphore: semaphore.into() })
            }
            Ok(Response::Semaphore(semaphore)) => Self::Thing(ThingAnswer::Semaphore(semaphore.into())),
            Ok(Response::LatchCreated { latch, is_new }) => {
                Self::Thing(ThingAnswer::LatchCreated { is_new: *is_new, latch: latch.into() })
            }
            Ok(Response::CountedDown { counted, latch }) => {
                Self::Thing(ThingAnswer::CountedDown { counted: *counted, latch: latch.into() })
            }
            Ok(Response::Barrier(barrier)) => Self::Thing(ThingAnswer::Barrier(barrier.into())),
            Ok(Response::AtBarrier { answer, barrier }) => {
                Self::Thing(ThingAnswer::AtBarrier((answer, barrier).into()))
            }
            Ok(Response::Awaited { outcome, woken, locks }) => match locks.first() {
                Some(lock) => awaited(outcome_of(outcome), *woken, to_observed_lock(lock)),
                None => Self::Other,
            },
            Ok(Response::Signalled { success, signalled, awaiting, locks }) => match locks.first() {
                Some(lock) => {
                    let (counts, lock) = (success.then_some((*signalled, *awaiting)), to_observed_lock(lock));
                    Self::Thing(ThingAnswer::Condition(ConditionAnswer::Signalled { counts, lock }))
                }
                None => Self::Other,
            },
            Ok(Response::ReleaseAsked { asked, view, .. }) => {
                let seen = match view {
                    AskedView::Lock(lock) => SeenThing::Lock(to_observed_lock(lock)),
                    AskedView::Permits(PermitsView::Semaphore(semaphore)) => SeenThing::Semaphore(semaphore.into()),
                    AskedView::Permits(PermitsView::Pool(pool)) => SeenThing::Pool(pool.into()),
                };
                Self::Thing(ThingAnswer::Asked(AskAnswer { asked: *asked, seen }))
            }
            Ok(Response::Done) => Self::Done,
            Err(CommandError::NamespaceNotFound) => Self::NamespaceNotFound,
            Err(CommandError::SessionNotFound(_)) => Self::SessionNotFound,
            Err(CommandError::PrimitiveNotFound { .. }) => Self::PrimitiveNotFound,
            _ => Self::Other,
        }
    }
}

/// The end of an await.
pub(super) fn awaited(outcome: Result<u64, Reason>, woken: Option<Woken>, lock: ObservedLock) -> CommandOutcome {
    let outcome = outcome.map(|token| (token, woken));
    CommandOutcome::Thing(ThingAnswer::Condition(ConditionAnswer::Awaited { outcome, lock }))
}

/// Returns the token of a grant, or the reason why there is none.
pub(super) fn outcome_of(outcome: &AcquireOutcome) -> Result<u64, Reason> {
    match outcome {
        AcquireOutcome::Granted { fencing_token } => Ok(*fencing_token),
        AcquireOutcome::Refused(refused) => Err(refused.reason),
        AcquireOutcome::Enqueued(enqueued) => Err(enqueued.not_granted.reason),
    }
}

/// Returns the write of a command that does not name its call, and the namespace.
pub(super) fn write_of(command: &LocksCommand) -> Option<(&NamespaceRef, Write)> {
    Some(match command {
        LocksCommand::Release(Release { namespace, owner, what, .. }) => match what {
            ReleaseTarget::Paths { paths, fencing_token } if paths.len() == 1 => {
                let (owner, path) = (owner.clone(), paths[0].clone());
                (namespace, Write::Release { owner, path, token: *fencing_token })
            }
            ReleaseTarget::All => (namespace, Write::ReleaseAll { owner: owner.clone() }),
            _ => return None,
        },
        LocksCommand::Delete { namespace, path } => (namespace, Write::Delete { path: path.clone() }),
        LocksCommand::Permit(command) => (command.namespace(), Write::Thing(of_permits(command)?)),
        LocksCommand::Latch(command) => (command.namespace(), Write::Thing(of_latch(command)?)),
        LocksCommand::Condition(ConditionCommand::Signal(signal)) => {
            let SignalCondition { namespace, path, owner, condition, all, fencing_token, signal_id, .. } = signal;
            let signal = ConditionOp::Signal(SignalOp {
                path: path.clone(),
                owner: owner.clone(),
                condition: condition.clone(),
                all: *all,
                token: *fencing_token,
                signal_id: signal_id.clone(),
            });
            (namespace, Write::Thing(ThingOp::Condition(signal)))
        }
        LocksCommand::Barrier(command) => (command.namespace(), Write::Thing(ThingOp::Barrier(of_barrier(command)?))),
        _ => return None,
    })
}

fn of_permits(command: &PermitCommand) -> Option<ThingOp> {
    match command {
        PermitCommand::Configure(configure) => {
            Some(ThingOp::Configure { path: configure.path.clone(), permits: configure.permits })
        }
        PermitCommand::Release(release) => {
            let (path, owner, request_id) = (release.path.clone(), release.owner.clone(), release.request_id.clone()?);
            Some(match release.kind {
                Kind::Pool => {
                    let members = release.members.clone();
                    ThingOp::Pool(PoolOp::Return { path, owner, request_id, members })
                }
                _ => ThingOp::Release { path, owner, request_id },
            })
        }
        PermitCommand::Acquire(_) | PermitCommand::Delete { .. } | PermitCommand::Cancel(_) => None,
        PermitCommand::ConfigurePool(configure) => {
            let members = configure.members.iter().map(|member| member.name.clone()).collect();
            let (path, cooldown_ms) = (configure.path.clone(), configure.cooldown_ms);
            Some(ThingOp::Pool(PoolOp::Configure { path, members, cooldown_ms }))
        }
        PermitCommand::ChangePool(changed) => {
            let changes = [
                (&changed.remove, MemberChange::Remove),
                (&changed.disable, MemberChange::Disable),
                (&changed.enable, MemberChange::Enable),
            ];
            let (path, mut named) = (
                changed.path.clone(),
                changes.into_iter().filter_map(|(names, change)| Some((names.first()?, change))),
            );
            let (member, change) = named.next()?;
            Some(ThingOp::Pool(PoolOp::Change { path, member: member.clone(), change }))
        }
    }
}

fn of_latch(command: &LatchCommand) -> Option<ThingOp> {
    match command {
        LatchCommand::Create(create) => {
            let (path, total, expires_in_ms) = (create.path.clone(), create.total, create.expires_in_ms);
            Some(ThingOp::CreateLatch { path, total, expires_in_ms })
        }
        LatchCommand::CountDown(count) => match &count.jobs {
            Jobs::Named(jobs) => {
                let (path, id, jobs) = (count.latch.path.clone(), count.latch.id, jobs.clone());
                Some(ThingOp::CountDown { path, id, jobs })
            }
            Jobs::Indexed(_) => None,
        },
        LatchCommand::Delete(latch) => Some(ThingOp::DeleteLatch { path: latch.path.clone(), id: latch.id }),
        LatchCommand::SetTotal { .. } => None,
    }
}

fn of_barrier(command: &BarrierCommand) -> Option<BarrierOp> {
    Some(match command {
        BarrierCommand::Configure(configure) => {
            let (path, parties, is_double) = (configure.path.clone(), configure.parties, configure.double);
            BarrierOp::Configure { path, parties, is_double, withdraws: configure.on_loss == OnLoss::Withdraw }
        }
        BarrierCommand::Leave(leave) => {
            let (path, owner, generation) = (leave.path.clone(), leave.owner.clone(), leave.generation);
            // The command does not wait.
            BarrierOp::Leave { path, owner, generation, wait_ms: 0 }
        }
        BarrierCommand::Delete { path, .. } => BarrierOp::Delete { path: path.clone() },
        // It names its call.
        BarrierCommand::Arrive(_) => return None,
    })
}
