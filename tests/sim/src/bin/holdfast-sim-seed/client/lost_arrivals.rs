//! Answers of a barrier that are lost at any point, and the same calls again: one arrival, and one outcome for all.

use holdfast_core::{BarrierOutcome, Owner, Path};

use super::Client;
use super::draw::MAX_WAIT_MS;
use super::lost_answers::{FIRST, SECOND, TTL_MS, UNITS};
use crate::barrier_calls::{ArriveOp, BarrierOp, ObservedBarrier, ObservedMeeting};
use crate::history::{Answer, Op};
use crate::things::{ThingAnswer, ThingOp};
use crate::world::Tenant;

/// As many as there are units of other things.
pub(super) const PARTIES: u32 = UNITS as u32;

/// What somebody is told of a generation: the outcome, the generation and its place.
type Told = (BarrierOutcome, u64, Option<u32>);

impl Client {
    /// One arrives and waits for another one: both are told that all came. Then one arrives and leaves, and the barrier
    /// is deleted.
    pub(super) async fn meet(&self, tenant: &Tenant, path: &Path) {
        let (path, parties, is_double, withdraws) = (path.clone(), PARTIES, false, false);
        let configure = BarrierOp::Configure { path: path.clone(), parties, is_double, withdraws };
        let Some(barrier) = self.barrier_after(tenant, configure).await else { return };
        let generation = barrier.generation;
        let arrive = |who: &str, wait_ms| {
            let (path, owner, generation) = (path.clone(), Owner::Process(who.to_owned()), Some(generation));
            BarrierOp::Arrive(ArriveOp { path, owner, generation, parties, ttl_ms: Some(TTL_MS), wait_ms })
        };
        self.expect_told(tenant, arrive(FIRST, 0), (BarrierOutcome::Waiting, generation, None)).await;
        self.expect_arrived(tenant, &path, (generation, 1)).await;
        tokio::join!(
            self.expect_told(tenant, arrive(FIRST, MAX_WAIT_MS), (BarrierOutcome::Tripped, generation, Some(0))),
            self.expect_told(tenant, arrive(SECOND, MAX_WAIT_MS), (BarrierOutcome::Tripped, generation, Some(1))),
        );
        let get = BarrierOp::Get { path: path.clone() };
        let Some(barrier) = self.barrier_after(tenant, get).await else { return };
        self.leave_broken(tenant, &path, barrier.generation).await;
    }

    /// Of the next generation, one arrival and its end.
    async fn leave_broken(&self, tenant: &Tenant, path: &Path, generation: u64) {
        let (parties, ttl_ms, wait_ms) = (PARTIES, Some(TTL_MS), 0);
        let owner = Owner::Process(FIRST.to_owned());
        let arrive = ArriveOp {
            path: path.clone(),
            owner: owner.clone(),
            generation: Some(generation),
            parties,
            ttl_ms,
            wait_ms,
        };
        let (waiting, broken) = (BarrierOutcome::Waiting, BarrierOutcome::Broken);
        self.expect_told(tenant, BarrierOp::Arrive(arrive), (waiting, generation, None)).await;
        self.expect_arrived(tenant, path, (generation, 1)).await;
        let leave = BarrierOp::Leave { path: path.clone(), owner, generation, wait_ms };
        self.expect_told(tenant, leave, (broken, generation, None)).await;
        self.expect_next_generation(tenant, path, generation).await;
        let delete = Op::Thing(ThingOp::Barrier(BarrierOp::Delete { path: path.clone() }));
        self.until_answered(tenant, &delete).await;
    }

    /// A generation was broken, and nobody has come to the next one.
    pub(super) async fn expect_next_generation(&self, tenant: &Tenant, path: &Path, generation: u64) {
        let Some(barrier) = self.barrier_after(tenant, BarrierOp::Get { path: path.clone() }).await else { return };
        if barrier.generation == generation || barrier.arrived > 0 {
            self.violated(format!("{generation} was broken, and then there is {barrier:?}"));
        }
    }

    pub(super) async fn expect_arrived(&self, tenant: &Tenant, path: &Path, expected: (u64, u32)) {
        let Some(barrier) = self.barrier_after(tenant, BarrierOp::Get { path: path.clone() }).await else { return };
        if (barrier.generation, barrier.arrived) != expected {
            self.violated(format!("the generation and its arrivals should be {expected:?}: {barrier:?}"));
        }
    }

    pub(super) async fn barrier_after(&self, tenant: &Tenant, op: BarrierOp) -> Option<ObservedBarrier> {
        match self.until_answered(tenant, &Op::Thing(ThingOp::Barrier(op.clone()))).await {
            Answer::Thing(ThingAnswer::Barrier(barrier)) => Some(barrier),
            answer => {
                self.violated(format!("{op:?} was answered {answer:?}"));
                None
            }
        }
    }

    async fn expect_told(&self, tenant: &Tenant, op: BarrierOp, expected: Told) {
        let answer = self.until_answered(tenant, &Op::Thing(ThingOp::Barrier(op.clone()))).await;
        let told = |meeting: &ObservedMeeting| (meeting.outcome, meeting.generation, meeting.index);
        match &answer {
            Answer::Thing(ThingAnswer::AtBarrier(meeting)) if told(meeting) == expected => {}
            answer => self.violated(format!("{op:?} was answered {answer:?}, not {expected:?}")),
        }
    }
}
