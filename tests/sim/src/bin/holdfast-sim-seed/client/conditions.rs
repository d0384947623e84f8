//! A client of conditions: few locks, owners and names of conditions, so that clients meet. It takes a lock, awaits a
//! condition of it or signals one, goes away at any point of a call, and then asks the same again.

use std::time::Duration;

use holdfast_core::{Claim, Mode, Owner, Path};
use rand::Rng;
use tokio::time::sleep;

use super::draw::{MAX_WAIT_MS, TRANSITIONS_MS, TTLS_MS};
use super::{Client, MAX_PAUSE_MS};
use crate::condition_calls::{AwaitOp, ConditionAnswer, ConditionOp, SignalOp};
use crate::history::{AcquireOp, Answer, Op};
use crate::things::{ThingAnswer, ThingOp};
use crate::world::{Phase, Tenant};

/// Others use one of them too.
const LOCKS: [&str; 3] = ["jobs", "jobs", "b"];
const CONDITIONS: [&str; 3] = ["", "", "not empty"];
/// No owners of anything else, so that these release only what they hold.
const PROCESSES: usize = 5;
/// What one does with a lock, at most, before it releases it.
const MAX_ACTIONS: usize = 4;
const WAITS_MS: [u64; 5] = [200, 700, 2_000, 2_000, MAX_WAIT_MS];
const RELOCKS_MS: [u64; 4] = [300, 1_000, 2_000, MAX_WAIT_MS];
/// Of signals under one hold: a repeat must wake nobody.
const SIGNAL_IDS: usize = 3;
/// How many in a hundred signals and awaits are of somebody who need not hold the lock.
const STRAY_PERCENT: u32 = 6;
/// How many in a hundred holds are left to expire.
const LEAVE_PERCENT: u32 = 10;

/// A lock of an owner, and where it is.
struct Guarded<'a> {
    tenant: &'a Tenant,
    namespace: &'static str,
    path: Path,
    owner: Owner,
}

impl Client {
    /// Uses conditions for as long as the run is in its working stage.
    pub(crate) async fn use_conditions(mut self) {
        let tenants = self.world.tenants();
        let mut last_token = 1;
        while self.world.phase() == Phase::Chaos {
            sleep(Duration::from_millis(self.rng.random_range(0..MAX_PAUSE_MS))).await;
            self.update_session(&tenants).await;
            let path = Path::flat(LOCKS[self.rng.random_range(0..LOCKS.len())]);
            let process = format!("w{}", self.rng.random_range(0..PROCESSES));
            let place = self.draw_place(tenants.len());
            let ((tenant, namespace), owner) = self.draw_owner(place, process);
            let guarded = Guarded { tenant: &tenants[tenant], namespace, path, owner };
            if self.rng.random_ratio(STRAY_PERCENT, 100) {
                let op = self.draw_for_condition(&guarded, last_token);
                self.call_guarded(&guarded, op).await;
                continue;
            }
            if let Some(token) = self.take_lock(&guarded).await {
                last_token = self.use_lock(&guarded, token).await;
            }
        }
    }

    async fn take_lock(&mut self, guarded: &Guarded<'_>) -> Option<u64> {
        let ttl_ms = self.draw_time(&TTLS_MS);
        let acquire = AcquireOp {
            owner: guarded.owner.clone(),
            claims: vec![Claim { path: guarded.path.clone(), mode: Mode::Write }],
            ttl_ms: matches!(guarded.owner, Owner::Process(_)).then_some(ttl_ms),
            transition_ms: TRANSITIONS_MS[self.rng.random_range(0..TRANSITIONS_MS.len())],
            wait_ms: self.draw_time(&WAITS_MS),
            token: None,
            allow_upgrade: false,
            at_least_ms: 0,
        };
        let answer = self.call_until_answered(guarded.tenant, guarded.namespace, &Op::Acquire(acquire)).await;
        if let Answer::Acquired { outcome: Ok(token), .. } = answer { Some(token) } else { None }
    }

    /// Returns the last token that the owner had.
    async fn use_lock(&mut self, guarded: &Guarded<'_>, mut token: u64) -> u64 {
        for _ in 0..self.rng.random_range(1..=MAX_ACTIONS) {
            let op = self.draw_for_condition(guarded, token);
            match self.call_guarded(guarded, op).await {
                Answer::Thing(ThingAnswer::Condition(ConditionAnswer::Awaited { outcome, .. })) => match outcome {
                    Ok((new, _)) => token = new,
                    Err(_) => return token,
                },
                Answer::Thing(ThingAnswer::Condition(ConditionAnswer::Signalled { counts: Some(_), .. })) => {}
                _ => return token,
            }
        }
        if !self.rng.random_ratio(LEAVE_PERCENT, 100) {
            let (owner, path) = (guarded.owner.clone(), guarded.path.clone());
            let release = Op::Release { owner, path, token: Some(token) };
            self.call_until_answered(guarded.tenant, guarded.namespace, &release).await;
        }
        token
    }

    async fn call_guarded(&mut self, guarded: &Guarded<'_>, op: ConditionOp) -> Answer {
        let op = Op::Thing(ThingOp::Condition(op));
        self.call_until_answered(guarded.tenant, guarded.namespace, &op).await
    }

    fn draw_for_condition(&mut self, guarded: &Guarded<'_>, token: u64) -> ConditionOp {
        let condition = CONDITIONS[self.rng.random_range(0..CONDITIONS.len())].to_owned();
        let (path, owner) = (guarded.path.clone(), guarded.owner.clone());
        if self.rng.random_bool(0.45) {
            let (wait_ms, relock_ms) = (self.draw_time(&WAITS_MS), self.draw_time(&RELOCKS_MS));
            let ttl_ms = self.draw_time(&TTLS_MS);
            let ttl_ms = matches!(owner, Owner::Process(_)).then_some(ttl_ms);
            return ConditionOp::Await(AwaitOp { path, owner, token, condition, wait_ms, relock_ms, ttl_ms });
        }
        let id = self.rng.random_range(0..SIGNAL_IDS);
        let signal_id = self.rng.random_bool(0.7).then(|| format!("signal-{id}"));
        let token = self.rng.random_bool(0.5).then_some(token);
        let all = self.rng.random_bool(0.2);
        ConditionOp::Signal(SignalOp { path, owner, condition, all, token, signal_id })
    }
}
