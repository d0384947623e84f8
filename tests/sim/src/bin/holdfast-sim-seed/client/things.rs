//! A client of semaphores and latches: few names, owners and ids, so that clients meet. It goes away at any point of a
//! call, and then asks the same again: that must take no permits and count no job twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Owner, Path};
use rand::Rng;
use tokio::time::sleep;

use super::draw::{TRANSITIONS_MS, TTLS_MS, WAITS_MS};
use super::{Client, MAX_PAUSE_MS, STABLE_NAMESPACES, TIMEOUTS, wait_of};
use crate::history::{Answer, Op};
use crate::things::{PermitsOp, ThingOp, WantedOp};
use crate::world::{Phase, Tenant};

/// Names, and how many permits each has as long as nobody configures it.
const SEMAPHORES: [(&str, u64); 2] = [("narrow", 2), ("wide", 5)];
/// With 0 nobody is granted anything.
const CONFIGURED_PERMITS: [u64; 4] = [0, 1, 3, 5];
const MAX_WEIGHT: u64 = 3;
pub(super) const PRIORITIES: [u32; 4] = [0, 0, 0, 1];
/// No owners of locks, so that these release only what they hold.
const PROCESSES: usize = 3;
/// Of an owner for one semaphore.
const REQUESTS: usize = 2;
const LATCHES: [&str; 2] = ["build", "deploy"];
const TOTALS: [u64; 3] = [0, 3, 6];
const JOBS: usize = 8;
const MAX_JOBS_AT_ONCE: usize = 3;
const LATCH_EXPIRES_IN_MS: [u64; 2] = [1_000, 3_000];
/// Of the longest questions: longer than any run.
pub(super) const QUESTION_MS: u64 = 600_000;
/// How many in a hundred times a client asks one beside its calls.
pub(super) const QUESTION_PERCENT: u32 = 5;
/// How many in a hundred calls are given up by their client within [`LEAVE_WITHIN_MS`].
const LEAVE_PERCENT: u32 = 20;
const LEAVE_WITHIN_MS: u64 = 60;
/// How many in a hundred calls are made twice at once.
const TWICE_PERCENT: u32 = 10;
const MAX_REPEATS: usize = 3;

/// The latches that a client knows, by tenant, namespace and path.
type KnownLatches = BTreeMap<(usize, &'static str, Path), u64>;

impl Client {
    /// Uses semaphores and latches for as long as the run is in its working stage.
    pub(crate) async fn use_things(mut self) {
        let tenants = self.world.tenants();
        let (mut known, mut questions) = (KnownLatches::new(), 0);
        while self.world.phase() == Phase::Chaos {
            sleep(Duration::from_millis(self.rng.random_range(0..MAX_PAUSE_MS))).await;
            self.update_session(&tenants).await;
            let (tenant, namespace) = self.draw_place(tenants.len());
            if self.rng.random_ratio(QUESTION_PERCENT, 100) {
                questions += 1;
                let latch = self.draw_latch(tenant, namespace, &known);
                self.spawn_question(&tenants[tenant], namespace, latch, questions);
                continue;
            }
            let (tenant, namespace, op) = self.draw_thing(tenant, namespace, &known);
            let answer = self.call_until_answered(&tenants[tenant], namespace, &Op::Thing(op)).await;
            if let Answer::Thing(answer) = answer
                && let Some(latch) = answer.latch()
            {
                known.insert((tenant, namespace, latch.path.clone()), latch.id);
            }
        }
    }

    /// Asks about a latch for longer than the run lasts, beside everything else.
    fn spawn_question(&self, tenant: &Tenant, namespace: &'static str, (path, id): (Path, Option<u64>), number: usize) {
        self.spawn_call(tenant, namespace, ThingOp::WaitForLatch { path, id, wait_ms: QUESTION_MS }, number);
    }

    /// Makes a call beside all others.
    pub(super) fn spawn_call(&self, tenant: &Tenant, namespace: &'static str, op: ThingOp, number: usize) {
        let name = format!("{}.question{number}", self.name);
        let asking = Client::new(Arc::clone(&self.world), self.service.clone(), name);
        let (tenant, op) = (tenant.clone(), Op::Thing(op));
        let limit = wait_of(&op) + TIMEOUTS[TIMEOUTS.len() - 1];
        // Nobody gives it up.
        tokio::spawn(async move { asking.execute(&tenant, namespace, &op, limit, limit * 2).await });
    }

    /// Makes a call, and the same again while the answer is lost.
    pub(super) async fn call_until_answered(&mut self, tenant: &Tenant, namespace: &str, op: &Op) -> Answer {
        for _ in 0..=MAX_REPEATS {
            let answer = match self.rng.random_range(0..100) {
                ..LEAVE_PERCENT => {
                    let (limit, leave_ms) = (TIMEOUTS[TIMEOUTS.len() - 1], self.rng.random_range(0..LEAVE_WITHIN_MS));
                    self.execute(tenant, namespace, op, limit, Duration::from_millis(leave_ms)).await
                }
                percent if percent < LEAVE_PERCENT + TWICE_PERCENT => self.call_duplicated(tenant, namespace, op).await,
                _ => self.call(tenant, namespace, op.clone()).await,
            };
            if answer != Answer::Unknown || self.world.phase() != Phase::Chaos {
                return answer;
            }
        }
        Answer::Unknown
    }

    /// A tenant and a namespace, mostly the same.
    pub(super) fn draw_place(&mut self, tenants: usize) -> (usize, &'static str) {
        match self.rng.random_bool(0.7) {
            true => (0, STABLE_NAMESPACES[0]),
            false => {
                let tenant = self.rng.random_range(0..tenants);
                (tenant, STABLE_NAMESPACES[self.rng.random_range(0..STABLE_NAMESPACES.len())])
            }
        }
    }

    fn draw_thing(
        &mut self,
        tenant: usize,
        namespace: &'static str,
        known: &KnownLatches,
    ) -> (usize, &'static str, ThingOp) {
        let kind = self.rng.random_range(0..100);
        if kind < 65 {
            return self.draw_for_semaphore(kind, (tenant, namespace));
        }
        let (path, id) = self.draw_latch(tenant, namespace, known);
        let op = match kind {
            65..73 => ThingOp::CreateLatch {
                path,
                total: TOTALS[self.rng.random_range(0..TOTALS.len())],
                expires_in_ms: LATCH_EXPIRES_IN_MS[self.rng.random_range(0..LATCH_EXPIRES_IN_MS.len())],
            },
            73..90 => {
                let jobs = 1 + self.rng.random_range(0..MAX_JOBS_AT_ONCE);
                let jobs = (0..jobs).map(|_| format!("job-{}", self.rng.random_range(0..JOBS))).collect();
                ThingOp::CountDown { path, id, jobs }
            }
            90..96 => ThingOp::WaitForLatch { path, id, wait_ms: self.draw_time(&WAITS_MS) },
            _ => ThingOp::DeleteLatch { path, id },
        };
        (tenant, namespace, op)
    }

    /// A latch, half of the time the one that the client knows, which may be gone.
    fn draw_latch(&mut self, tenant: usize, namespace: &'static str, known: &KnownLatches) -> (Path, Option<u64>) {
        let path = Path::flat(LATCHES[self.rng.random_range(0..LATCHES.len())]);
        let key = (tenant, namespace, path);
        let id = known.get(&key).copied().filter(|_| self.rng.random_bool(0.5));
        (key.2, id)
    }

    fn draw_for_semaphore(
        &mut self,
        kind: u32,
        (mut tenant, mut namespace): (usize, &'static str),
    ) -> (usize, &'static str, ThingOp) {
        let (name, permits) = SEMAPHORES[self.rng.random_range(0..SEMAPHORES.len())];
        let path = Path::flat(name);
        // A session's ids are unique among all that it requests.
        let request_id = format!("{name}-{}", self.rng.random_range(0..REQUESTS));
        let mut owner = Owner::Process(format!("q{}", self.rng.random_range(0..PROCESSES)));
        if let Some(session) = &self.session
            && self.rng.random_bool(0.3)
        {
            (tenant, namespace) = (session.tenant, session.namespace);
            owner = Owner::Session { session_id: session.id.clone(), holder: None };
        }
        let op = match kind {
            0..42 => {
                let ttl_ms = self.draw_time(&TTLS_MS);
                let weight = self.rng.random_range(1..=MAX_WEIGHT);
                ThingOp::Acquire(PermitsOp {
                    path,
                    request_id,
                    wanted: WantedOp::Permits { weight, permits },
                    priority: PRIORITIES[self.rng.random_range(0..PRIORITIES.len())],
                    ttl_ms: matches!(owner, Owner::Process(_)).then_some(ttl_ms),
                    owner,
                    transition_ms: TRANSITIONS_MS[self.rng.random_range(0..TRANSITIONS_MS.len())],
                    wait_ms: self.draw_time(&WAITS_MS),
                })
            }
            42..54 => ThingOp::Release { path, owner, request_id },
            54..58 => {
                let permits = CONFIGURED_PERMITS[self.rng.random_range(0..CONFIGURED_PERMITS.len())];
                ThingOp::Configure { path, permits }
            }
            _ => ThingOp::GetSemaphore { path },
        };
        (tenant, namespace, op)
    }
}
