//! Holds and sessions that must not end before their time, as the owner measures it, also across changes of leaders.

use std::time::Duration;

use holdfast_core::SessionEnd;

use super::locks_replay::LocksReplay;
use crate::condition_calls::{AwaitOp, ConditionOp};
use crate::history::{AcquireOp, Answer, Call, Op};
use crate::things::{PermitsOp, ThingOp};

/// Clocks run within 0.1 % of one another, and owners stop that much earlier.
pub(super) const CLOCK_TOLERANCE: f64 = 0.998;
/// A step of the simulation, and the rounding of clocks to whole milliseconds.
pub(super) const STEP_TOLERANCE: Duration = Duration::from_millis(3);

pub(crate) fn check(shard: &str, replayed: &LocksReplay, calls: &[Call], findings: &mut Vec<String>) {
    no_hold_ends_early(shard, replayed, calls, findings);
    no_session_ends_early(shard, replayed, calls, findings);
}

/// A hold lasts for its time to live from when the call was made that granted it or extended it last.
fn no_hold_ends_early(shard: &str, replayed: &LocksReplay, calls: &[Call], findings: &mut Vec<String>) {
    for expiry in &replayed.expiries {
        let Some(Call { id, invoked, op, .. }) = calls.get(expiry.call) else { continue };
        let (Op::Acquire(AcquireOp { ttl_ms, .. })
        | Op::Thing(
            ThingOp::Acquire(PermitsOp { ttl_ms, .. }) | ThingOp::Condition(ConditionOp::Await(AwaitOp { ttl_ms, .. })),
        )) = op
        else {
            continue;
        };
        let promised = Duration::from_millis(ttl_ms.unwrap_or_default());
        let lasted = expiry.at.saturating_sub(invoked.at);
        if lasted + STEP_TOLERANCE < promised.mul_f64(CLOCK_TOLERANCE) {
            findings.push(format!(
                "{shard}: [nothing expires early] the hold with token {} of call {id} ended {lasted:?} after it was \
                 asked for, not {promised:?}",
                expiry.token
            ));
        }
    }
}

/// A session lasts for its TTL after the last acknowledged keep-alive was sent.
fn no_session_ends_early(shard: &str, replayed: &LocksReplay, calls: &[Call], findings: &mut Vec<String>) {
    for call in calls {
        let (session, ttl_ms) = match (&call.op, call.returned.as_ref().map(|returned| &returned.answer)) {
            (Op::KeepAlive { session, ttl_ms }, Some(Answer::KeptAlive { .. })) => (session, ttl_ms),
            (Op::OpenSession { ttl_ms, .. }, Some(Answer::Session { id })) => (id, ttl_ms),
            _ => continue,
        };
        let Some(ended) = replayed.sessions.get(session).and_then(|life| life.ended) else { continue };
        let promised = Duration::from_millis(*ttl_ms);
        let lasted = ended.at.saturating_sub(call.invoked.at);
        if ended.reason == SessionEnd::Expired && lasted + STEP_TOLERANCE < promised.mul_f64(CLOCK_TOLERANCE) {
            findings.push(format!(
                "{shard}: [acknowledged keep-alive] session {session} expired {lasted:?} after the keep-alive of \
                 call {} was sent, which was acknowledged, not {promised:?}",
                call.id
            ));
        }
    }
}
