//! Calls about semaphores, pools, latches, barriers and conditions, and requests to release, against the history of
//! their shard.

use std::time::Duration;

use holdfast_api::Code;
use holdfast_core::{LatchStatus, Path, Reason};

use super::calls::find_write;
use super::early_expiry::{CLOCK_TOLERANCE, STEP_TOLERANCE};
use super::linearization::{CheckContext, LinearizationPoint};
use super::locks_replay::LocksReplay;
use super::outcomes::{CommandOutcome, Write};
use crate::history::{Answer, Call, CallReturn};
use crate::things::{ObservedLatch, ObservedPool, ObservedSemaphore, PermitsOp, PoolOp, ThingAnswer, ThingOp};

impl CheckContext<'_> {
    /// A place at which the answer to such a call is right.
    pub(super) fn check_thing_call(
        &self,
        call: &Call,
        op: &ThingOp,
        returned: &CallReturn,
    ) -> Result<LinearizationPoint, String> {
        let (shard, replayed) = self.locks_shard(call);
        let window = self.window(&shard, call, returned);
        let place = match (op, &returned.answer) {
            (ThingOp::Condition(op), answer) => self.check_condition_call(call, op, (returned, answer), replayed)?,
            (ThingOp::Ask(op), answer) => self.check_ask(call, op, answer, &window)?,
            (ThingOp::Barrier(op), answer) => self.check_barrier_call(call, op, (returned, answer), replayed)?,
            (ThingOp::Acquire(op), Answer::Thing(answer @ ThingAnswer::Acquired { outcome, .. })) => {
                // A repeat that wants more than the waiting request is refused as queued. The request waits on.
                let waits_on = *outcome == Err(Reason::Queued) && op.wait_ms > 0;
                if outcome.is_err() && !waits_on {
                    // No request is granted after its wait has ended.
                    self.check_not_applied(call, *window.end())?;
                }
                find_write(replayed.acquires.get(&call.id), &window, &CommandOutcome::Thing(answer.clone()))
            }
            (ThingOp::GetSemaphore { path }, Answer::Thing(ThingAnswer::Semaphore(semaphore))) => {
                window.clone().find(|place| semaphore_at(replayed, call, *place, path) == Some(semaphore))
            }
            (ThingOp::GetSemaphore { path }, Answer::Refused(Code::PrimitiveNotFound)) => {
                window.clone().find(|place| semaphore_at(replayed, call, *place, path).is_none())
            }
            (ThingOp::Pool(PoolOp::Get { path }), Answer::Thing(ThingAnswer::Pool(pool))) => {
                window.clone().find(|place| pool_at(replayed, call, *place, path) == Some(pool))
            }
            (
                ThingOp::Acquire(PermitsOp { path, .. })
                | ThingOp::Pool(PoolOp::Get { path } | PoolOp::Change { path, .. }),
                Answer::Refused(Code::PrimitiveNotFound),
            ) => {
                self.check_not_applied(call, *window.end())?;
                window.clone().find(|place| pool_at(replayed, call, *place, path).is_none())
            }
            (ThingOp::WaitForLatch { path, wait_ms, .. }, Answer::Thing(ThingAnswer::Latch(latch))) => {
                is_in_time(call, returned, latch, *wait_ms)?;
                let is_it = |place: &usize| latch_at(replayed, call, *place, path) == Some(latch);
                window.clone().find(is_it)
            }
            (
                ThingOp::WaitForLatch { path, id, .. } | ThingOp::CountDown { path, id, .. },
                Answer::Refused(Code::PrimitiveNotFound),
            ) => {
                let is_other = |latch: &ObservedLatch| id.is_some_and(|id| id != latch.id);
                let is_gone = |place: &usize| latch_at(replayed, call, *place, path).is_none_or(is_other);
                window.clone().find(is_gone)
            }
            (ThingOp::CreateLatch { path, .. }, Answer::Refused(Code::AlreadyExists)) => {
                window.clone().find(|place| latch_at(replayed, call, *place, path).is_some())
            }
            (op, Answer::Thing(answer)) => {
                let meant = match answer {
                    ThingAnswer::LatchDeleted => CommandOutcome::Done,
                    answer => CommandOutcome::Thing(answer.clone()),
                };
                replayed.find_answered(call, Write::Thing(op.clone()), &window, &meant)
            }
            (_, answer) => return Err(format!("{answer:?} answers no such call")),
        };
        match place {
            Some(place) => Ok(LinearizationPoint::At(vec![(shard, place)])),
            None => Err(format!("its answer is right nowhere in {window:?} of {shard}")),
        }
    }
}

fn semaphore_at<'a>(
    replayed: &'a LocksReplay,
    call: &Call,
    place: usize,
    path: &Path,
) -> Option<&'a ObservedSemaphore> {
    let life = replayed.open_incarnation(place, call.account, &call.namespace)?;
    replayed.semaphores.at(place, &life, path)
}

fn pool_at<'a>(replayed: &'a LocksReplay, call: &Call, place: usize, path: &Path) -> Option<&'a ObservedPool> {
    let life = replayed.open_incarnation(place, call.account, &call.namespace)?;
    replayed.pools.at(place, &life, path)
}

fn latch_at<'a>(replayed: &'a LocksReplay, call: &Call, place: usize, path: &Path) -> Option<&'a ObservedLatch> {
    let life = replayed.open_incarnation(place, call.account, &call.namespace)?;
    replayed.latches.at(place, &life, path)
}

/// A question about a latch that is not final is answered when its time is over, and no sooner.
fn is_in_time(call: &Call, returned: &CallReturn, latch: &ObservedLatch, wait_ms: u64) -> Result<(), String> {
    let lasted = returned.point.at.saturating_sub(call.invoked.at);
    let asked = Duration::from_millis(wait_ms).mul_f64(CLOCK_TOLERANCE);
    if latch.status == LatchStatus::Active && lasted + STEP_TOLERANCE < asked {
        return Err(format!("it was answered after {lasted:?}, though the latch is not final"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use holdfast_core::AccountId;

    use super::*;
    use crate::history::{HistoryPoint, Op};

    #[test]
    fn a_question_that_is_answered_too_soon_is_found() {
        let latch = |status| ObservedLatch { path: Path::flat("l"), id: 1, status, total: 2, done: 1, revision: 1 };
        let is_right = |status, after_ms: u64| {
            let point = |at_ms| HistoryPoint { number: 1, at: Duration::from_millis(at_ms) };
            let op = ThingOp::WaitForLatch { path: Path::flat("l"), id: None, wait_ms: 500 };
            let call = Call {
                id: 0,
                client: "c".to_owned(),
                account: AccountId(1),
                namespace: "alpha".to_owned(),
                op: Op::Thing(op),
                invoked: point(1_000),
                returned: None,
            };
            let answer = Answer::Thing(ThingAnswer::Latch(latch(status)));
            let returned = CallReturn { point: point(1_000 + after_ms), answer, applied: Default::default() };
            is_in_time(&call, &returned, &latch(status), 500).is_ok()
        };
        assert!(is_right(LatchStatus::Active, 500) && is_right(LatchStatus::Completed, 20));
        assert!(!is_right(LatchStatus::Active, 400));
    }
}
