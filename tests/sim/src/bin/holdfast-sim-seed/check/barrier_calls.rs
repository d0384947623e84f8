//! Calls about barriers, against the history of their shard and against one another: whoever was in a generation is
//! told the same of it, whenever and wherever it asks.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_api::Code;
use holdfast_core::{AccountId, BarrierOutcome, GenerationEnd, Owner, Path};

use super::calls::find_write;
use super::early_expiry::{CLOCK_TOLERANCE, STEP_TOLERANCE};
use super::linearization::{CheckContext, LocksReplays};
use super::locks_replay::LocksReplay;
use super::outcomes::{CommandOutcome, Write};
use crate::barrier_calls::{ArriveOp, BarrierOp, ObservedMeeting};
use crate::history::{Answer, Call, CallReturn, Op};
use crate::things::{ThingAnswer, ThingOp};

/// What clients were told of one generation.
#[derive(Default)]
struct Told<'a> {
    /// How it ended, and the call that was told so first.
    end: Option<(GenerationEnd, usize)>,
    places: BTreeMap<u32, &'a Owner>,
}

type Generations<'a> = BTreeMap<(AccountId, &'a str, &'a Path, u64), Told<'a>>;

/// Compares what all clients were told, without the history of the shards. And an arrival that names no generation is
/// made once, because a second one could be in the next generation.
pub(crate) fn check(calls: &[Call], locks: &LocksReplays, findings: &mut Vec<String>) {
    let mut generations = Generations::new();
    for call in calls {
        let Op::Thing(ThingOp::Barrier(op)) = &call.op else { continue };
        let made = locks.values().filter_map(|shard| shard.acquires.get(&call.id)).flatten();
        let made = made.filter(|(_, came)| came.is_grant()).count();
        if matches!(op, BarrierOp::Arrive(ArriveOp { generation: None, .. })) && made > 1 {
            findings.push(format!("[arrivals] call {} names no generation, and arrived {made} times", call.id));
        }
        if let Some(Answer::Thing(ThingAnswer::AtBarrier(meeting))) = call.returned.as_ref().map(|it| &it.answer) {
            compare(call, op, meeting, &mut generations, findings);
        }
    }
}

/// Compares an answer with those before it.
fn compare<'a>(
    call: &'a Call,
    op: &'a BarrierOp,
    meeting: &ObservedMeeting,
    generations: &mut Generations<'a>,
    findings: &mut Vec<String>,
) {
    let key = (call.account, call.namespace.as_str(), op.path(), meeting.generation);
    let told = generations.entry(key).or_default();
    if let Some(end) = meeting.end() {
        let (first, by) = *told.end.get_or_insert((end, call.id));
        if first != end {
            findings.push(format!(
                "[one outcome] call {} was told {meeting:?}, and call {by} that it was {}",
                call.id,
                first.name()
            ));
        }
    }
    if let (Some(index), Some(owner)) = (meeting.index, op.owner()) {
        let other = told.places.insert(index, owner).filter(|other| *other != owner);
        let has_other = told.places.iter().any(|(place, of)| *of == owner && *place != index);
        if other.is_some() || has_other {
            findings.push(format!(
                "[one outcome] call {} of {owner:?} was told {meeting:?}; others have {:?}",
                call.id, told.places
            ));
        }
    }
}

impl CheckContext<'_> {
    /// A place at which the answer to a call about a barrier is right.
    pub(super) fn check_barrier_call(
        &self,
        call: &Call,
        op: &BarrierOp,
        (returned, answer): (&CallReturn, &Answer),
        replayed: &LocksReplay,
    ) -> Result<Option<usize>, String> {
        let (shard, _) = self.locks_shard(call);
        let window = self.window(&shard, call, returned);
        let path = op.path();
        let moment_at = |place: usize| {
            let life = replayed.open_incarnation(place, call.account, &call.namespace)?;
            replayed.barriers.at(place, &life, path)
        };
        let write_of = |op: BarrierOp| Write::Thing(ThingOp::Barrier(op));
        let written =
            |op: &BarrierOp, meant: CommandOutcome| replayed.find_answered(call, write_of(op.clone()), &window, &meant);
        Ok(match (op, answer) {
            (BarrierOp::Get { .. }, Answer::Thing(ThingAnswer::Barrier(barrier))) => {
                window.clone().find(|place| moment_at(*place).is_some_and(|moment| moment.barrier == *barrier))
            }
            (BarrierOp::Configure { .. }, Answer::Thing(answer @ ThingAnswer::Barrier(_))) => {
                written(op, CommandOutcome::Thing(answer.clone()))
            }
            (BarrierOp::Delete { .. }, Answer::Thing(ThingAnswer::BarrierDeleted)) => written(op, CommandOutcome::Done),
            (op, Answer::Thing(answer @ ThingAnswer::AtBarrier(meeting))) => {
                is_in_time(call, op, returned, meeting)?;
                let meant = CommandOutcome::Thing(answer.clone());
                let by_command = match op {
                    BarrierOp::Arrive(_) => find_write(replayed.acquires.get(&call.id), &window, &meant),
                    BarrierOp::Leave { path, owner, generation, .. } => {
                        let (path, owner, generation) = (path.clone(), owner.clone(), *generation);
                        let write = write_of(BarrierOp::Leave { path, owner, generation, wait_ms: 0 });
                        let key = (call.account, call.namespace.clone(), write);
                        // Whoever waits until all have left is answered after the slice in which they have.
                        find_write(replayed.writes.get(&key), &window, &meant)
                    }
                    _ => None,
                };
                let asked = (op.owner(), matches!(op, BarrierOp::Leave { .. }));
                let is_right = |place: &usize| {
                    let life = replayed.open_incarnation(*place, call.account, &call.namespace);
                    life.is_some_and(|life| {
                        let there = (*place, moment_at(*place));
                        replayed.meetings.is_right((&life, path), asked, meeting, there)
                    })
                };
                by_command.or_else(|| window.clone().find(is_right))
            }
            (BarrierOp::Configure { .. } | BarrierOp::Delete { .. }, Answer::Refused(Code::PrimitiveNotFound)) => None,
            (_, Answer::Refused(Code::PrimitiveNotFound)) => {
                self.check_not_applied(call, *window.end())?;
                window.clone().find(|place| moment_at(*place).is_none())
            }
            (_, answer) => return Err(format!("{answer:?} answers no such call")),
        })
    }
}

/// Whoever waits for what is not decided is answered when its time is over, and no sooner.
fn is_in_time(call: &Call, op: &BarrierOp, returned: &CallReturn, meeting: &ObservedMeeting) -> Result<(), String> {
    let lasted = returned.point.at.saturating_sub(call.invoked.at);
    let asked = Duration::from_millis(op.wait_ms()).mul_f64(CLOCK_TOLERANCE);
    if meeting.outcome == BarrierOutcome::Waiting && lasted + STEP_TOLERANCE < asked {
        return Err(format!("it was answered after {lasted:?}, though nothing is decided"));
    }
    Ok(())
}
