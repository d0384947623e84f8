//! Holds that clients were granted: they last until their expiry, their release or a delete. In particular no client
//! loses one because another call of the same owner is cancelled, such as a renewal whose client disconnects.

use std::time::Duration;

use holdfast_core::{Claim, Mode, NamespaceRef, Owner, Path};

use super::early_expiry::{CLOCK_TOLERANCE, STEP_TOLERANCE};
use super::locks_replay::LocksReplay;
use crate::condition_calls::{AwaitOp, ConditionAnswer, ConditionOp};
use crate::history::{AcquireOp, Answer, Call, Op};
use crate::things::{PermitsOp, ThingAnswer, ThingOp};

/// A hold that ended, or was made weaker, because a call was given up.
#[derive(Debug, Clone)]
pub(crate) struct CancelledHold {
    /// The slice with which it was.
    pub(crate) slice: usize,
    /// When a replica first applied that.
    pub(crate) at: Duration,
    pub(crate) namespace: NamespaceRef,
    pub(crate) owner: Owner,
    pub(crate) path: Path,
    pub(crate) token: u64,
    /// As it was before; WRITE for permits.
    pub(crate) mode: Mode,
}

pub(crate) fn check(shard: &str, replayed: &LocksReplay, calls: &[Call], findings: &mut Vec<String>) {
    for given in &replayed.cancelled_holds {
        for call in calls.iter().filter(|call| relies_on(call, given)) {
            findings.push(format!(
                "{shard}: [told granted] call {} of {} was told that it holds {:?} with token {}, and slice {} takes that \
                 from it {:?} after it asked: another call of {:?} was given up",
                call.id,
                call.client,
                given.path,
                given.token,
                given.slice,
                given.at.saturating_sub(call.invoked.at),
                given.owner
            ));
        }
    }
}

/// Whether the answer to a call reports that hold, and its client may still rely on it.
fn relies_on(call: &Call, given: &CancelledHold) -> bool {
    let Some(answer) = call.returned.as_ref().map(|returned| &returned.answer) else { return false };
    let (owner, ttl_ms, token, has_path) = match (&call.op, answer) {
        (Op::Acquire(AcquireOp { owner, claims, ttl_ms, .. }), Answer::Acquired { outcome: Ok(token), .. }) => {
            let is_it = |claim: &Claim| claim.path == given.path && claim.mode <= given.mode;
            (owner, ttl_ms, token, claims.iter().any(is_it))
        }
        (
            Op::Thing(ThingOp::Acquire(PermitsOp { owner, path, ttl_ms, .. })),
            Answer::Thing(ThingAnswer::Acquired { outcome: Ok(token), .. }),
        ) => (owner, ttl_ms, token, *path == given.path),
        (
            Op::Thing(ThingOp::Condition(ConditionOp::Await(AwaitOp { owner, path, ttl_ms, .. }))),
            Answer::Thing(ThingAnswer::Condition(ConditionAnswer::Awaited { outcome: Ok((token, _)), .. })),
        ) => (owner, ttl_ms, token, *path == given.path),
        _ => return false,
    };
    let is_meant = *token == given.token
        && *owner == given.owner
        && call.account == given.namespace.account
        && call.namespace == given.namespace.name
        && has_path;
    // A session's holds have no time of their own.
    let promised = ttl_ms.map_or(Duration::MAX, |ttl_ms| Duration::from_millis(ttl_ms).mul_f64(CLOCK_TOLERANCE));
    is_meant && given.at.saturating_sub(call.invoked.at) + STEP_TOLERANCE < promised
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountId, Incarnation};

    use super::*;
    use crate::history::{CallReturn, HistoryPoint};
    use crate::things::WantedOp;

    fn acquire_call(ttl_ms: Option<u64>, mode: Mode, answer: Answer) -> Call {
        let owner = match ttl_ms {
            Some(_) => Owner::Process("p".to_owned()),
            None => Owner::Session { session_id: "s".to_owned(), holder: None },
        };
        let claims = vec![Claim { path: Path::flat("a"), mode }];
        let (transition_ms, wait_ms, token, allow_upgrade, at_least_ms) = (0, 0, None, false, 0);
        let acquiring = AcquireOp { owner, claims, ttl_ms, transition_ms, wait_ms, token, allow_upgrade, at_least_ms };
        call(Op::Acquire(acquiring), answer)
    }

    fn permits_call(answer: Answer) -> Call {
        let acquiring = PermitsOp {
            path: Path::flat("a"),
            owner: Owner::Process("p".to_owned()),
            request_id: "r".to_owned(),
            wanted: WantedOp::Permits { weight: 1, permits: 1 },
            priority: 0,
            ttl_ms: Some(3_000),
            transition_ms: 0,
            wait_ms: 0,
        };
        call(Op::Thing(ThingOp::Acquire(acquiring)), answer)
    }

    fn call(op: Op, answer: Answer) -> Call {
        let moment = |number| HistoryPoint { number, at: Duration::from_secs(1) };
        Call {
            id: 0,
            client: "c".to_owned(),
            account: AccountId(1),
            namespace: "alpha".to_owned(),
            op,
            invoked: moment(1),
            returned: Some(CallReturn { point: moment(2), answer, applied: Default::default() }),
        }
    }

    fn given(token: u64) -> Answer {
        Answer::Thing(ThingAnswer::Acquired { outcome: Ok(token), members: Vec::new() })
    }

    fn granted(token: u64) -> Answer {
        Answer::Acquired { outcome: Ok(token), locks: Vec::new() }
    }

    /// Findings about a hold with token 5 that another call of its owner took away so many seconds after it was asked for.
    fn count_findings(call: Call, after_s: u64) -> usize {
        let owner = match &call.op {
            Op::Acquire(AcquireOp { owner, .. }) | Op::Thing(ThingOp::Acquire(PermitsOp { owner, .. })) => {
                owner.clone()
            }
            _ => unreachable!("made above"),
        };
        let given = CancelledHold {
            slice: 7,
            at: Duration::from_secs(1 + after_s),
            namespace: NamespaceRef { account: AccountId(1), name: "alpha".to_owned(), incarnation: Incarnation(1) },
            owner,
            path: Path::flat("a"),
            token: 5,
            mode: Mode::Write,
        };
        let mut replayed = LocksReplay::default();
        replayed.cancelled_holds.push(given);
        let mut findings = Vec::new();
        check("locks_00", &replayed, &[call], &mut findings);
        findings.len()
    }

    #[test]
    fn who_was_told_and_has_time_left_is_robbed() {
        assert_eq!(count_findings(acquire_call(Some(3_000), Mode::Write, granted(5)), 2), 1);
        assert_eq!(count_findings(acquire_call(None, Mode::Read, granted(5)), 99), 1);
        assert_eq!(count_findings(permits_call(given(5)), 2), 1);
    }

    #[test]
    fn who_was_not_told_or_whose_time_is_over_is_not() {
        assert_eq!(count_findings(acquire_call(Some(3_000), Mode::Write, granted(5)), 3), 0);
        assert_eq!(count_findings(acquire_call(Some(3_000), Mode::Write, granted(4)), 2), 0);
        assert_eq!(count_findings(acquire_call(Some(3_000), Mode::Write, Answer::Unknown), 2), 0);
        assert_eq!(count_findings(permits_call(given(5)), 3), 0);
        assert_eq!(count_findings(permits_call(given(4)), 2), 0);
    }
}
