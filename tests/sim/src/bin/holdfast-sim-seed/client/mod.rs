//! A client: draws calls, makes them through the service of a gateway, and records the answers.

mod asks;
mod barriers;
mod conditions;
mod draw;
mod hostile;
mod latency;
mod lost_answers;
mod lost_arrivals;
mod lost_on_streams;
mod lost_signals;
mod perform;
mod perform_asks;
mod perform_barriers;
mod perform_conditions;
mod perform_pools;
mod perform_things;
mod pools;
mod session;
mod soft;
mod soft_session;
mod stream;
mod stream_gateway;
mod stream_messages;
mod streamed_signals;
mod streamed_things;
mod things;
mod watcher;

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::Code;
use holdfast_backend::Service;
use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::sleep;

use crate::history::{Answer, Op};
use crate::plan::rng_of;
use crate::world::{Phase, Tenant, World, now};
use draw::KnownHold;
use latency::wait_of;
use session::Session;

pub(crate) use draw::STABLE_NAMESPACES;
pub(crate) use hostile::attack;
pub(crate) use soft::{MAX_SOFT_LIFE, create_soft_namespace, hold_asked_locks, use_soft_locks};
pub(crate) use soft_session::SOFT_NAMESPACE;
pub(crate) use watcher::watch;

const TIMEOUTS: [Duration; 3] = [Duration::from_millis(800), Duration::from_secs(3), Duration::from_secs(10)];
const MAX_PAUSE_MS: u64 = 150;
/// Of clients that only read.
const MAX_READ_ONLY_PAUSE_MS: u64 = 40;
/// How long a frontend waits beyond the deadline of a call before it answers by itself.
const RESPONSE_GRACE: Duration = Duration::from_secs(1);
/// How many in a hundred calls that wait are given up by their client.
const CANCEL_PERCENT: u32 = 25;
/// The same of calls that are made twice.
const DUPLICATE_CANCEL_PERCENT: u32 = 70;
/// Within which some of them are given up: about when one is answered that need not wait.
const EARLY_CANCEL_MS: u64 = 20;
/// How many in a hundred acquires that wait are made twice at once.
const DUPLICATE_PERCENT: u32 = 15;

/// One client of one gateway.
pub(crate) struct Client {
    world: Arc<World>,
    service: Service,
    name: String,
    rng: StdRng,
    /// For repeated calls, so that they do not change the other draws.
    duplicate_rng: StdRng,
    held: Vec<KnownHold>,
    session: Option<Session>,
    sessions: usize,
    has_long_deadlines: bool,
    is_read_only: bool,
}

impl Client {
    pub(crate) fn new(world: Arc<World>, service: Service, name: String) -> Self {
        let rng = rng_of(world.plan.seed, &name);
        let duplicate_rng = rng_of(world.plan.seed, &format!("{name}, twins"));
        Self {
            world,
            service,
            name,
            rng,
            duplicate_rng,
            held: Vec::new(),
            session: None,
            sessions: 0,
            has_long_deadlines: false,
            is_read_only: false,
        }
    }

    /// The same with the longest deadline for every call.
    pub(crate) fn with_long_deadlines(mut self) -> Self {
        self.has_long_deadlines = true;
        self
    }

    /// The same as one that changes nothing but its session.
    pub(crate) fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Calls for as long as the run is in its working stage.
    pub(crate) async fn run(mut self) {
        let tenants = self.world.tenants();
        let longest_pause_ms = if self.is_read_only { MAX_READ_ONLY_PAUSE_MS } else { MAX_PAUSE_MS };
        while self.world.phase() == Phase::Chaos {
            sleep(Duration::from_millis(self.rng.random_range(0..longest_pause_ms))).await;
            self.update_session(&tenants).await;
            let (tenant, namespace, op) = self.draw(tenants.len());
            if self.is_duplicated(&op) {
                let answer = self.call_duplicated(&tenants[tenant], &namespace, &op).await;
                self.record_holds(tenant, &namespace, op, &answer);
                continue;
            }
            let answer = self.call(&tenants[tenant], &namespace, op.clone()).await;
            if answer == Answer::Unknown && matches!(&op, Op::Acquire(_)) && self.rng.random_bool(0.5) {
                // A client that cancelled comes back: its position in the queue may still exist, or its grant.
                let again = self.call(&tenants[tenant], &namespace, op.clone()).await;
                self.record_holds(tenant, &namespace, op, &again);
                continue;
            }
            self.record_holds(tenant, &namespace, op, &answer);
        }
    }

    /// Makes a call and writes it down.
    pub(crate) async fn call(&mut self, tenant: &Tenant, namespace: &str, op: Op) -> Answer {
        let drawn = TIMEOUTS[self.rng.random_range(0..TIMEOUTS.len())];
        let waits = wait_of(&op);
        let limit = waits + if self.has_long_deadlines { TIMEOUTS[TIMEOUTS.len() - 1] } else { drawn };
        let max_wait = if !waits.is_zero() && self.rng.random_ratio(CANCEL_PERCENT, 100) {
            match self.rng.random_bool(0.5) {
                true => waits.mul_f64(self.rng.random_range(0.0..1.5)),
                false => Duration::from_millis(self.rng.random_range(0..EARLY_CANCEL_MS)),
            }
        } else {
            limit + RESPONSE_GRACE
        };
        self.execute(tenant, namespace, &op, limit, max_wait).await
    }

    fn is_duplicated(&mut self, op: &Op) -> bool {
        let is_own = matches!(op, Op::Acquire(acquiring) if acquiring.wait_ms > 0);
        is_own && self.duplicate_rng.random_ratio(DUPLICATE_PERCENT, 100)
    }

    /// Makes a call twice at once, as a client does that does not trust the first; each may be given up at any moment.
    async fn call_duplicated(&mut self, tenant: &Tenant, namespace: &str, op: &Op) -> Answer {
        let waits = wait_of(op);
        let limit = waits + TIMEOUTS[TIMEOUTS.len() - 1];
        let max_wait = |rng: &mut StdRng| match rng.random_ratio(DUPLICATE_CANCEL_PERCENT, 100) {
            true => waits.mul_f64(rng.random_range(0.0..1.0)),
            false => limit + RESPONSE_GRACE,
        };
        let max_waits = [max_wait(&mut self.duplicate_rng), max_wait(&mut self.duplicate_rng)];
        let calls = max_waits.map(|max_wait| self.execute(tenant, namespace, op, limit, max_wait));
        let [first, second] = calls;
        let (first, second) = tokio::join!(first, second);
        if matches!(first, Answer::Acquired { outcome: Ok(_), .. }) { first } else { second }
    }

    async fn execute(&self, tenant: &Tenant, namespace: &str, op: &Op, limit: Duration, max_wait: Duration) -> Answer {
        self.execute_until(tenant, namespace, op, limit, sleep(max_wait)).await
    }

    /// Makes a call, unless the client has gone away first, and writes it down.
    async fn execute_until(
        &self,
        tenant: &Tenant,
        namespace: &str,
        op: &Op,
        limit: Duration,
        goes_away: impl Future<Output = ()>,
    ) -> Answer {
        let world = Arc::clone(&self.world);
        let asked = now();
        let id = world.history.invoke(&self.name, tenant.account, namespace, op.clone());
        let performed = tokio::select! {
            biased;
            performed = self.perform(tenant, namespace, op, id, limit) => Some(performed),
            () = goes_away => None,
        };
        let answer = match performed {
            // The client disconnected, or the frontend answers by itself.
            None => Answer::Unknown,
            Some(Ok(answer)) => answer,
            Some(Err(error)) => match error.code {
                Code::Unavailable => Answer::Unavailable,
                Code::DeadlineExceeded => Answer::Unknown,
                Code::Internal => {
                    world.record_violation(format!(
                        "[fault of the service] call {id} {op:?} failed with a fault of the service: {}",
                        error.detail
                    ));
                    Answer::Unknown
                }
                code => Answer::Refused(code),
            },
        };
        self.check_latency(id, op, &answer, asked);
        world.history.finish(id, answer.clone(), world.ledger.progress());
        world.record(format!("{} call {id} {} {namespace} {op:?} -> {answer:?}", self.name, tenant.account));
        answer
    }
}
