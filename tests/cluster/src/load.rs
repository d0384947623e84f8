//! Many clients that acquire, extend, read and release locks, each one call after the other, and record the answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use holdfast_testkit::{CallOutcome, RestClient, wait_before_retry};
use holdfast_types::Mode;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinHandle;

use crate::history::{Answer, Call, History, LockId, Outcome, Record};
use crate::lock_calls::call_lock;

/// Longer than any test.
const LONG_TTL_MS: u64 = 3_600_000;
/// Over before a test is, unless it is extended.
const SHORT_TTL_MS: u64 = 3_000;
/// The deadline of clients that can't wait for a failover; their calls then have an unknown outcome.
const SHORT_DEADLINE: Duration = Duration::from_millis(800);
/// Locks that one client holds at a time.
const MAX_HOLDS: usize = 2;

/// What the clients do.
#[derive(Clone)]
pub struct LoadPlan {
    /// How many.
    pub clients: usize,
    /// On which locks. Each client keeps to one namespace.
    pub locks: Vec<LockId>,
    /// Through these gateways, in turn.
    pub gateways: Vec<RestClient>,
    /// Whether some of them give up long before a failover is over.
    pub some_have_short_deadlines: bool,
}

/// Running clients.
pub struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

struct Client {
    owner: Arc<str>,
    api: RestClient,
    locks: Arc<[LockId]>,
    history: History,
    random: SmallRng,
    ttl_ms: u64,
    /// Of a thousand calls while it holds something, how many release.
    release_per_mille: u32,
    holds: Vec<HeldLock>,
    /// Other gateways, for calls that its own does not accept.
    fallback_gateways: Vec<RestClient>,
    is_paced: bool,
}

#[derive(Clone)]
struct HeldLock {
    lock: LockId,
    mode: Mode,
    token: u64,
}

impl Load {
    /// Starts the clients.
    pub fn start(plan: &LoadPlan, history: &History) -> Self {
        Self::spawn_clients(plan, history, false)
    }

    /// Starts clients that make a constant load: each pauses after every call, and goes to the next gateway when its own
    /// does not listen, as a balancer would have it do.
    pub fn start_paced(plan: &LoadPlan, history: &History) -> Self {
        Self::spawn_clients(plan, history, true)
    }

    fn spawn_clients(plan: &LoadPlan, history: &History, is_paced: bool) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let mut namespaces: BTreeMap<Arc<str>, Vec<LockId>> = BTreeMap::new();
        for lock in &plan.locks {
            namespaces.entry(lock.namespace.clone()).or_default().push(lock.clone());
        }
        // Each client keeps to one namespace, so that those of one do not all wait for another's shard.
        let namespaces: Vec<Arc<[LockId]>> = namespaces.into_values().map(Arc::from).collect();
        let start = |number: usize| {
            let api = &plan.gateways[number / namespaces.len() % plan.gateways.len()];
            let client = Client {
                owner: format!("client-{number}").into(),
                api: if plan.some_have_short_deadlines && number % 7 == 3 {
                    api.with_timeout(SHORT_DEADLINE)
                } else {
                    api.clone()
                },
                locks: namespaces[number % namespaces.len()].clone(),
                history: history.clone(),
                random: SmallRng::seed_from_u64(number as u64),
                // Some have little patience, some live by extending, and some hold on for long.
                ttl_ms: if number % 5 == 1 { SHORT_TTL_MS } else { LONG_TTL_MS },
                release_per_mille: if number.is_multiple_of(19) { 5 } else { 400 },
                holds: Vec::new(),
                fallback_gateways: if is_paced { plan.gateways.clone() } else { Vec::new() },
                is_paced,
            };
            tokio::spawn(client.run(stop.clone()))
        };
        let clients = (0..plan.clients).map(start).collect();
        Self { stop, clients }
    }

    /// Stops the clients, and waits until each has its last answer. They keep their holds.
    pub async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for ended in join_all(self.clients).await {
            ended.expect("no client panics");
        }
    }
}

impl Client {
    async fn run(mut self, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            self.step().await;
            if self.is_paced {
                wait_before_retry().await;
            }
        }
    }

    async fn step(&mut self) {
        let wants_more = self.holds.is_empty() || self.holds.len() < MAX_HOLDS && self.random.random_ratio(1, 5);
        if wants_more {
            return self.acquire().await;
        }
        let at = self.random.random_range(0..self.holds.len());
        let holding = self.holds[at].clone();
        let HeldLock { lock, mode, token } = &holding;
        // Now and then without the token, as clients do that have none.
        let named = self.random.random_ratio(4, 5).then_some(*token);
        if self.random.random_ratio(self.release_per_mille, 1_000) {
            self.call_until_answered(lock, Call::Release { token: named }).await;
            self.holds.swap_remove(at);
            return;
        }
        if self.random.random_ratio(1, 3) {
            self.call(lock, Call::Get).await;
            return;
        }
        let extend = Call::Acquire { mode: *mode, ttl_ms: self.ttl_ms, token: named };
        let answer = self.call_until_answered(lock, extend).await;
        match answer.token {
            // Without the token named this may be a new hold, after the old one's time was over.
            Some(token) => self.holds[at].token = token,
            None => drop(self.holds.swap_remove(at)),
        }
    }

    async fn acquire(&mut self) {
        let lock = self.locks[self.random.random_range(0..self.locks.len())].clone();
        if self.holds.iter().any(|holding| holding.lock == lock) {
            return;
        }
        let mode = if self.random.random_bool(0.5) { Mode::Read } else { Mode::Write };
        let answer = self.call_until_answered(&lock, Call::Acquire { mode, ttl_ms: self.ttl_ms, token: None }).await;
        if let Some(token) = answer.token {
            self.holds.push(HeldLock { lock, mode, token });
        }
    }

    /// Calls, and repeats the call until it is answered.
    async fn call_until_answered(&self, lock: &LockId, call: Call) -> Answer {
        loop {
            if let Some(answer) = self.call(lock, call).await {
                return answer;
            }
            wait_before_retry().await;
        }
    }

    async fn call(&self, lock: &LockId, call: Call) -> Option<Answer> {
        let start = self.history.now();
        let mut result = call_lock(&self.api, &lock.namespace, &lock.name, &self.owner, call).await;
        for other in &self.fallback_gateways {
            let never_sent =
                result.as_ref().is_err_and(|error| error.status == 0 && error.outcome == CallOutcome::NotDone);
            if !never_sent {
                break;
            }
            result = call_lock(other, &lock.namespace, &lock.name, &self.owner, call).await;
        }
        let end = self.history.now();
        let outcome = match result {
            Ok(answer) => Outcome::Answered(answer),
            Err(error) => {
                let is_refused = (400..500).contains(&error.status);
                assert!(!is_refused, "{call:?} of {lock:?} by {} is refused: {error}", self.owner);
                self.history.record_error(&error);
                if error.outcome == CallOutcome::NotDone { Outcome::NotDone } else { Outcome::Unknown }
            }
        };
        let answer = if let Outcome::Answered(answer) = &outcome { Some(answer.clone()) } else { None };
        self.history.add(Record { owner: self.owner.clone(), lock: lock.clone(), call, start, end, outcome });
        answer
    }
}
