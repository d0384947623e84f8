//! Calls about conditions, against the history of their shard.

use std::time::Duration;

use holdfast_core::{Reason, Woken};

use super::calls::find_write;
use super::early_expiry::{CLOCK_TOLERANCE, STEP_TOLERANCE};
use super::linearization::CheckContext;
use super::locks_replay::LocksReplay;
use super::outcomes::{CommandOutcome, Write};
use crate::condition_calls::{ConditionAnswer, ConditionOp};
use crate::history::{Answer, Call, CallReturn, Op};
use crate::things::{ThingAnswer, ThingOp};

impl CheckContext<'_> {
    /// A place at which the answer to a call about a condition is right.
    pub(super) fn check_condition_call(
        &self,
        call: &Call,
        op: &ConditionOp,
        (returned, answer): (&CallReturn, &Answer),
        replayed: &LocksReplay,
    ) -> Result<Option<usize>, String> {
        let (shard, _) = self.locks_shard(call);
        let window = self.window(&shard, call, returned);
        match (op, answer) {
            (ConditionOp::Await(awaits), Answer::Thing(answer @ ThingAnswer::Condition(told))) => {
                let ConditionAnswer::Awaited { outcome, .. } = told else {
                    return Err(format!("{answer:?} answers no await"));
                };
                if outcome.is_err() {
                    // No request is granted after its wait has ended.
                    self.check_not_applied(call, *window.end())?;
                }
                if replayed.signals.has_begun(call.id) {
                    is_in_time(call, replayed.signals.shortest_times(call, awaits), returned, *outcome)?;
                }
                let meant = CommandOutcome::Thing(answer.clone());
                Ok(find_write(replayed.acquires.get(&call.id), &window, &meant))
            }
            (ConditionOp::Signal(_), Answer::Thing(answer @ ThingAnswer::Condition(_))) => {
                let write = Write::Thing(ThingOp::Condition(op.clone()));
                Ok(replayed.find_answered(call, write, &window, &CommandOutcome::Thing(answer.clone())))
            }
            (_, answer) => Err(format!("{answer:?} answers no such call")),
        }
    }

    /// A call that is said to have done nothing has given no lock up.
    pub(super) fn check_not_begun(&self, call: &Call) -> Result<(), String> {
        let is_await = matches!(call.op, Op::Thing(ThingOp::Condition(ConditionOp::Await(_))));
        if is_await && self.locks.values().any(|shard| shard.signals.has_begun(call.id)) {
            return Err("the answer says that nothing was done, but the lock was given up".to_owned());
        }
        Ok(())
    }
}

/// Whoever gave a lock up is answered that its time was over once it was.
fn is_in_time(
    call: &Call,
    (wait_ms, relock_ms): (u64, u64),
    returned: &CallReturn,
    outcome: Result<(u64, Option<Woken>), Reason>,
) -> Result<(), String> {
    let lasted = returned.point.at.saturating_sub(call.invoked.at);
    let at_least_ms = match outcome {
        Ok((_, Some(Woken::Elapsed))) => wait_ms,
        // It had all of that to take the lock back.
        Err(Reason::TimedOut) => relock_ms,
        _ => return Ok(()),
    };
    if lasted + STEP_TOLERANCE < Duration::from_millis(at_least_ms).mul_f64(CLOCK_TOLERANCE) {
        return Err(format!("it was answered {outcome:?} after {lasted:?}"));
    }
    Ok(())
}
