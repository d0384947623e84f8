//! Without faults every call is answered in time.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::{Mode, Owner, Path};

use super::{Client, draw};
use crate::history::{AcquireOp, Answer, Call, Op};
use crate::things::{PermitsOp, ThingOp};
use crate::world::{Phase, now};

/// Without faults no call that can be answered at once takes longer, whatever other clients do.
const MAX_LATENCY: Duration = Duration::from_secs(1);

/// What calls have in common that wait as one request, in one namespace.
#[derive(PartialEq, Eq)]
enum WaitingRequest<'a> {
    Locks(&'a Owner, BTreeMap<&'a Path, Mode>),
    Permits(&'a Owner, &'a Path, &'a str),
}

impl Client {
    pub(super) fn check_latency(&self, id: usize, op: &Op, answer: &Answer, asked: Option<Duration>) {
        let (Some(asked), Some(now), Phase::Chaos) = (asked, now(), self.world.phase()) else { return };
        let plan = &self.world.plan;
        if plan.faults || plan.lost_answers || now <= asked + wait_of(op) + MAX_LATENCY {
            return;
        }
        let calls = self.world.history.calls();
        if calls.get(id).is_none_or(|call| is_slow(call, &calls, now)) {
            let took = now.saturating_sub(asked);
            self.world.record_violation(format!(
                "[prompt] call {id} {op:?} took {took:?}, and nothing was wrong; it was answered {answer:?}"
            ));
        }
    }
}

/// How long the operation may wait in a queue. The newest call for a request sets the end of its wait, so a call that
/// waits may wait as long as any that joins it.
pub(super) fn wait_of(op: &Op) -> Duration {
    match op {
        Op::Acquire(AcquireOp { wait_ms: 1.., .. }) | Op::Thing(ThingOp::Acquire(PermitsOp { wait_ms: 1.., .. })) => {
            Duration::from_millis(draw::MAX_WAIT_MS)
        }
        Op::Thing(ThingOp::WaitForLatch { wait_ms, .. }) => Duration::from_millis(*wait_ms),
        Op::Thing(ThingOp::Condition(op)) => Duration::from_millis(op.wait_ms()),
        Op::Thing(ThingOp::Barrier(op)) => Duration::from_millis(op.wait_ms()),
        _ => Duration::ZERO,
    }
}

/// Whether a call that is answered now was answered too late: its wait may count from the last call that joined it.
fn is_slow(call: &Call, calls: &[Call], now: Duration) -> bool {
    let asked = call.invoked.at;
    let joined = last_join(call, calls, now).unwrap_or(asked);
    now > joined + wait_of(&call.op) + MAX_LATENCY
}

/// When the last call was made before now that joined the wait of a call.
fn last_join(call: &Call, calls: &[Call], now: Duration) -> Option<Duration> {
    let request = waiting_request(&call.op)?;
    let is_join = |other: &&Call| {
        other.invoked.at > call.invoked.at
            && other.invoked.at < now
            && other.account == call.account
            && other.namespace == call.namespace
            && waiting_request(&other.op).as_ref() == Some(&request)
    };
    calls.iter().filter(is_join).map(|other| other.invoked.at).max()
}

/// The request of a call that waits for locks, permits or members.
fn waiting_request(op: &Op) -> Option<WaitingRequest<'_>> {
    match op {
        Op::Acquire(AcquireOp { owner, claims, wait_ms: 1.., .. }) => {
            // The order of the claims does not matter.
            let mut modes = BTreeMap::new();
            for claim in claims {
                let mode = modes.entry(&claim.path).or_insert(claim.mode);
                *mode = claim.mode.max(*mode);
            }
            Some(WaitingRequest::Locks(owner, modes))
        }
        Op::Thing(ThingOp::Acquire(PermitsOp { owner, path, request_id, wait_ms: 1.., .. })) => {
            Some(WaitingRequest::Permits(owner, path, request_id))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountId, Claim};

    use super::*;
    use crate::history::HistoryPoint;
    use crate::things::WantedOp;

    fn lock_op(process: &str, wait_ms: u64, paths: &[&str]) -> Op {
        let claims = paths.iter().map(|path| Claim { path: Path::flat(*path), mode: Mode::Write }).collect();
        Op::Acquire(AcquireOp {
            owner: Owner::Process(process.to_owned()),
            claims,
            ttl_ms: Some(100),
            transition_ms: 0,
            wait_ms,
            token: None,
            allow_upgrade: false,
            at_least_ms: 0,
        })
    }

    fn permits_op(request_id: &str) -> Op {
        Op::Thing(ThingOp::Acquire(PermitsOp {
            path: Path::flat("s"),
            owner: Owner::Process("p".to_owned()),
            request_id: request_id.to_owned(),
            wanted: WantedOp::Permits { weight: 1, permits: 2 },
            priority: 0,
            ttl_ms: Some(100),
            transition_ms: 0,
            wait_ms: 200,
        }))
    }

    fn call(id: usize, at_ms: u64, op: Op) -> Call {
        Call {
            id,
            client: "c".to_owned(),
            account: AccountId(1),
            namespace: "alpha".to_owned(),
            op,
            invoked: HistoryPoint { number: id + 1, at: Duration::from_millis(at_ms) },
            returned: None,
        }
    }

    /// Whether the first call is slow that was made after 1 s and is answered after 9 s, if these were made too.
    fn is_slow_with(first: &Op, others: Vec<(u64, Op)>) -> bool {
        let mut calls = vec![call(0, 1_000, first.clone())];
        calls.extend(others.into_iter().zip(1..).map(|((at_ms, op), id)| call(id, at_ms, op)));
        is_slow(&calls[0], &calls, Duration::from_millis(9_000))
    }

    #[test]
    fn who_waits_for_longer_because_of_a_later_call_is_not_slow() {
        let first = lock_op("p", 700, &["a", "b"]);
        assert!(!is_slow_with(&first, vec![(3_000, lock_op("p", 5_000, &["b", "a"]))]));
        assert!(!is_slow_with(&permits_op("r"), vec![(4_000, permits_op("r"))]));
    }

    #[test]
    fn who_waits_for_longer_and_is_not_joined_is_slow() {
        let first = lock_op("p", 700, &["a", "b"]);
        assert!(is_slow_with(&first, vec![]));
        for (at_ms, other) in [
            (2_000, lock_op("p", 5_000, &["a", "b"])),
            (4_000, lock_op("p", 0, &["a", "b"])),
            (4_000, lock_op("q", 5_000, &["a", "b"])),
            (4_000, lock_op("p", 5_000, &["a"])),
            (9_000, lock_op("p", 5_000, &["a", "b"])),
        ] {
            assert!(is_slow_with(&first, vec![(at_ms, other.clone())]), "{at_ms}: {other:?}");
        }
        assert!(is_slow_with(&permits_op("r"), vec![(4_000, permits_op("other"))]));
    }

    #[test]
    fn who_need_not_wait_is_slow_after_a_second() {
        let get = call(0, 1_000, Op::Get { path: Path::flat("a") });
        assert!(!is_slow(&get, &[], Duration::from_millis(2_000)));
        assert!(is_slow(&get, &[], Duration::from_millis(2_001)));
        assert!(is_slow_with(&lock_op("p", 0, &["a"]), vec![(8_500, lock_op("p", 5_000, &["a"]))]));
    }
}
