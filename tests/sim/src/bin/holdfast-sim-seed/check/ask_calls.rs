//! Requests to release, as clients made them and as holders were told, against the history of their shard.

use std::time::Duration;

use holdfast_api::Code;
use holdfast_core::Kind;

use super::calls::find_write;
use super::early_expiry::{CLOCK_TOLERANCE, STEP_TOLERANCE};
use super::linearization::{CheckContext, Window};
use super::locks_replay::LocksReplay;
use super::outcomes::CommandOutcome;
use crate::ask_calls::AskOp;
use crate::history::{Answer, Call, Op};
use crate::things::{ThingAnswer, ThingOp};
use crate::told_log::{Told, What};

impl CheckContext<'_> {
    /// A place at which the answer to a request to release is right.
    pub(super) fn check_ask(
        &self,
        call: &Call,
        op: &AskOp,
        answer: &Answer,
        window: &Window,
    ) -> Result<Option<usize>, String> {
        let (_, replayed) = self.locks_shard(call);
        let is_there = |place: usize| {
            replayed.open_incarnation(place, call.account, &call.namespace).is_some_and(|life| match op.kind {
                Kind::Pool => replayed.pools.at(place, &life, &op.path).is_some(),
                _ => replayed.semaphores.at(place, &life, &op.path).is_some(),
            })
        };
        match answer {
            Answer::Thing(answer @ ThingAnswer::Asked(_)) => {
                let meant = CommandOutcome::Thing(answer.clone());
                Ok(find_write(replayed.acquires.get(&call.id), window, &meant))
            }
            Answer::Refused(Code::PrimitiveNotFound) if op.kind != Kind::Lock => {
                Ok(window.clone().find(|place| !is_there(*place)))
            }
            answer => Err(format!("{answer:?} answers no request to release")),
        }
    }

    /// A call that is said to have done nothing has asked nobody.
    pub(super) fn check_not_asked(&self, call: &Call) -> Result<(), String> {
        let is_asked = |came: &CommandOutcome| matches!(came, CommandOutcome::Thing(ThingAnswer::Asked(_)));
        let mut done = self.locks.values().filter_map(|shard| shard.acquires.get(&call.id)).flatten();
        match done.find(|(_, came)| is_asked(came)) {
            Some((at, _)) => Err(format!("the answer says that nothing was done, but entry {at} asks")),
            None => Ok(()),
        }
    }
}

/// Nothing ends by force earlier after it was asked for than the call says, and nothing is given to others earlier, by
/// the clocks of those who asked.
pub(crate) fn check_times(shard: &str, replayed: &LocksReplay, calls: &[Call], findings: &mut Vec<String>) {
    for end in &replayed.asks.ends {
        let Some(Call { id, invoked, op, .. }) = calls.get(end.call) else { continue };
        let lasted = end.at.saturating_sub(invoked.at);
        let promised = Duration::from_millis(end.promised_ms).mul_f64(CLOCK_TOLERANCE);
        if lasted + STEP_TOLERANCE < promised {
            let is_ask = matches!(op, Op::Thing(ThingOp::Ask(_)));
            let name = if is_ask { "asks" } else { "at least so long" };
            let token = end.token;
            findings.push(format!(
                "{shard}: [{name}] the hold with token {token} ended {lasted:?} after call {id} was made: {op:?}"
            ));
        }
    }
}

/// What holders were told on their connections is in the log.
pub(crate) fn check_told(replayed: &LocksReplay, told: &[Told], calls: &[Call], findings: &mut Vec<String>) {
    for told in told {
        let (path, token) = (&told.path, told.token);
        let is_right = match told.what {
            What::Deleted => replayed.asks.is_deleted(path, token),
            What::Asked { call, within_ms, force } => {
                let within = calls.get(call).and_then(|call| match &call.op {
                    Op::Thing(ThingOp::Ask(op)) => Some(op.shown_within_ms()),
                    _ => None,
                });
                let may_be_forced = !force || replayed.asks.is_forced(path, token);
                within == Some(within_ms) && may_be_forced && replayed.asks.has_asked(path, token, call)
            }
        };
        if !is_right {
            findings.push(format!("[asks] a session was told what the log does not say: {told:?}"));
        }
    }
}
