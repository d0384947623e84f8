//! One run: its phases, and the checks during it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use holdfast_mutations::INJECTED_PANIC;
use sha2::{Digest, Sha256};
use turmoil::{Builder, Sim};

use crate::barrier_calls::BarrierOp;
use crate::faults::Faults;
use crate::history::Op;
use crate::leaders::{LeadersByTerm, LeaseOverlaps};
use crate::plan::Plan;
use crate::things::ThingOp;
use crate::world::{Phase, World, gateway_name, node_name};
use crate::{check, gateway_host, node_host};

/// One step of the simulation.
const TICK: Duration = Duration::from_millis(1);
/// How often leaders are checked, in steps.
const CHECK_INTERVAL_STEPS: u64 = 5;
/// How long a new cluster may take until it serves.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to lose each message of some calls in turn.
const LOST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(1_200);
/// How long a repaired cluster may take until every node is ready and every gateway serves every namespace.
const HEAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long replicas may take to be equal, and holds to end, after the last call.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long questions about latches and barriers may stay without an answer, after the last call: until then all
/// latches are final, and all arrivals have ended.
const QUESTIONS_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the last event may take to reach watchers.
const EVENT_DELIVERY_TIMEOUT: Duration = Duration::from_secs(1);
/// The shortest time without calls.
const MIN_QUIET: Duration = Duration::from_secs(2);

/// The result of a run.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    /// The seed.
    pub(crate) seed: u64,
    /// The violations, in the order in which they were found.
    pub(crate) violations: Vec<String>,
    /// The journal, in lines.
    pub(crate) journal: Vec<String>,
    /// Of the journal and all applied entries: two runs with equal digests were the same.
    pub(crate) digest: String,
    /// Calls of clients.
    pub(crate) calls: usize,
    /// Applied entries of all shards.
    pub(crate) entries: usize,
    /// Events that watchers received.
    pub(crate) events: usize,
    /// Grants of locks in the memory of leaders that clients took.
    pub(crate) soft_grants: u64,
    /// Injected faults, lost messages among them.
    pub(crate) faults: usize,
    /// Injected panics that occurred.
    pub(crate) panics: u64,
    /// Attacks of a hostile account.
    pub(crate) attacks: u64,
    /// How long clients worked and faults happened.
    pub(crate) chaos: Duration,
    /// Simulated time that it took.
    pub(crate) simulated: Duration,
    /// Simulated time from the repair to the return of service.
    pub(crate) healed_after: Duration,
}

/// Runs a plan to its end, or to the first violation.
///
/// # Errors
/// When the simulation itself fails, which says nothing about the cluster.
pub(crate) fn run(plan: Plan) -> Result<Report> {
    let world = World::new(plan)?;
    install_panic_hook(&world);
    let sim = build(&world);
    let faults = Faults::new(&world);
    let (leaders, leases) = (LeadersByTerm::default(), LeaseOverlaps::default());
    let mut running = Runner { world: Arc::clone(&world), sim, faults, steps: 0, leaders, leases };
    let healed_after = running.run_phases()?;
    let (simulated, injected) = (running.sim.elapsed(), running.faults.injected() + world.lost.lost());
    if world.violations().is_empty() {
        check::check_all(&world);
    }
    let shards = world.ledger.shards();
    let mut journal = world.journal();
    if !world.violations().is_empty() {
        journal.extend(world.ledger.to_lines());
    }
    Ok(Report {
        seed: world.plan.seed,
        violations: world.violations(),
        digest: digest(&world, &journal),
        journal,
        calls: world.history.len(),
        entries: shards.iter().map(|shard| world.ledger.entries(shard).len()).sum(),
        events: world.watched.watches().iter().map(|watch| watch.events.len()).sum(),
        soft_grants: world.claims.grants(),
        faults: injected,
        panics: world.panics.load(Ordering::Relaxed),
        attacks: world.attacks.load(Ordering::Relaxed),
        chaos: world.plan.chaos,
        simulated,
        healed_after: healed_after.unwrap_or_default(),
    })
}

/// A task that panics ends without a trace; here that is a violation, unless the panic was injected.
fn install_panic_hook(world: &Arc<World>) {
    let (world, before) = (Arc::clone(world), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        let what = panic.to_string();
        if what.contains(INJECTED_PANIC) {
            world.panics.fetch_add(1, Ordering::Relaxed);
            world.record(what);
            return;
        }
        world.record_violation(format!("[panic] {what}"));
        before(panic);
    }));
}

fn build(world: &Arc<World>) -> Sim<'static> {
    let plan = &world.plan;
    let mut sim = Builder::new()
        .rng_seed(plan.seed)
        .tick_duration(TICK)
        .simulation_duration(Duration::from_secs(3_600))
        .min_message_latency(Duration::ZERO)
        .max_message_latency(plan.max_latency)
        .tcp_capacity(4_096)
        .enable_random_order()
        // How likely a lossy link comes back with each packet that it loses.
        .repair_rate(0.05)
        .build();
    for number in 0..plan.nodes {
        let world = Arc::clone(world);
        sim.host(node_name(number), move || node_host::run(Arc::clone(&world), number));
    }
    for number in 0..plan.gateways {
        let world = Arc::clone(world);
        sim.host(gateway_name(number), move || gateway_host::run(Arc::clone(&world), number));
    }
    sim
}

struct Runner {
    world: Arc<World>,
    sim: Sim<'static>,
    faults: Faults,
    steps: u64,
    leaders: LeadersByTerm,
    leases: LeaseOverlaps,
}

impl Runner {
    /// Returns how long the repaired cluster took to serve again, if it got that far.
    fn run_phases(&mut self) -> Result<Option<Duration>> {
        let world = Arc::clone(&self.world);
        let works = || world.phase() == Phase::Chaos;
        if !self.run_until("[serves again] a new cluster did not serve", SETUP_TIMEOUT, works)? {
            return Ok(None);
        }
        self.faults.start(self.sim.elapsed());
        let is_over = || world.phase() > Phase::Chaos;
        let has_passed = match world.plan.lost_answers {
            true => self.run_until("[lost answers] the calls did not end", LOST_ANSWERS_TIMEOUT, is_over)?,
            false => self.run_for(world.plan.chaos)?,
        };
        if !has_passed {
            return Ok(None);
        }
        let healed_at = self.sim.elapsed();
        self.faults.heal(&mut self.sim, healed_at);
        world.set_phase(Phase::Healed);
        let gateways = world.plan.gateways;
        let soft = if world.plan.has_soft { gateways } else { 0 };
        let has_served = || world.served.lock().len() >= gateways && world.soft_served.lock().len() >= soft;
        let serves = || has_served() && not_ready(&world).is_none();
        if !self.run_until("[serves again] a repaired cluster did not serve again", HEAL_TIMEOUT, serves)? {
            return Ok(None);
        }
        let healed_after = self.sim.elapsed() - healed_at;
        world.set_phase(Phase::Quiet);
        if !self.run_for(MIN_QUIET)? {
            return Ok(None);
        }
        let is_answered = || open_question(&world).is_none();
        if !self.run_until("[questions end] a question was not answered", QUESTIONS_TIMEOUT, is_answered)? {
            return Ok(None);
        }
        let is_over = || world.ledger.first_non_empty().is_none() && find_divergence(&world).is_none();
        let otherwise = "[serves again] replicas did not become equal, or something did not end";
        self.run_until(otherwise, QUIESCE_TIMEOUT, is_over)?;
        self.run_for(EVENT_DELIVERY_TIMEOUT)?;
        Ok(Some(healed_after))
    }

    /// Steps for that time. Returns false after a violation.
    fn run_for(&mut self, time: Duration) -> Result<bool> {
        let until = self.sim.elapsed() + time;
        while self.sim.elapsed() < until {
            if !self.step()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Steps until a condition holds. Returns false if that takes too long, or after a violation.
    fn run_until(&mut self, otherwise: &str, within: Duration, holds: impl Fn() -> bool) -> Result<bool> {
        let deadline = self.sim.elapsed() + within;
        loop {
            if self.steps.is_multiple_of(CHECK_INTERVAL_STEPS) && holds() {
                return Ok(true);
            }
            if self.sim.elapsed() >= deadline {
                let world = &self.world;
                let (asked, left) = (|| open_question(world), || world.ledger.first_non_empty());
                let state = not_ready(world).or_else(asked).or_else(left).or_else(|| find_divergence(world));
                world.record_violation(format!("{otherwise} within {within:?}: {}", state.unwrap_or_default()));
                return Ok(false);
            }
            if !self.step()? {
                return Ok(false);
            }
        }
    }

    /// Returns false after a violation.
    fn step(&mut self) -> Result<bool> {
        self.sim.step().map_err(|error| anyhow::anyhow!("the simulation failed: {error}"))?;
        self.steps += 1;
        let at = self.sim.elapsed();
        self.faults.step(&mut self.sim, at);
        if self.steps.is_multiple_of(CHECK_INTERVAL_STEPS) {
            self.check_leaders(at);
            self.check_leases(at);
        }
        Ok(self.world.violations().is_empty())
    }

    /// One lease at a time: no other leader can change what the holder of the lease answers from memory.
    fn check_leases(&mut self, at: Duration) {
        let told = self.world.nodes.iter().map(|slot| slot.leases.lock().clone());
        for what in self.leases.find_overlaps(at, told) {
            self.world.record_violation(what);
        }
    }

    /// One leader a term.
    fn check_leaders(&mut self, at: Duration) {
        for (number, slot) in self.world.nodes.iter().enumerate() {
            let Some(node) = slot.node.lock().clone() else { continue };
            for (group, id, term) in node.elected() {
                let name = node_name(number);
                match self.leaders.observe(&group, term, id) {
                    Ok(true) => {
                        self.world.record_at(at, format!("{name} leads {group} in term {term} as replica {id}"))
                    }
                    Ok(false) => {}
                    Err(what) => self.world.record_violation(what),
                }
            }
        }
    }
}

/// Returns a node that can't serve, and why.
fn not_ready(world: &World) -> Option<String> {
    world.nodes.iter().enumerate().find_map(|(number, slot)| {
        let name = node_name(number);
        let node = slot.node.lock().clone();
        match node {
            None => Some(format!("{name} is down")),
            Some(node) => node.not_ready()().map(|reason| format!("{name}: {reason}")),
        }
    })
}

/// Returns a question about a latch or a barrier that waits for its answer. Those of a gateway that crashed never end.
fn open_question(world: &World) -> Option<String> {
    let is_question =
        |op: &Op| matches!(op, Op::Thing(ThingOp::WaitForLatch { .. } | ThingOp::Barrier(BarrierOp::Arrive(_))));
    let open = world.history.first_open(|call| is_question(&call.op) && world.is_client_of_current_run(&call.client));
    open.map(|call| format!("call {} of {}, {:?}, waits since {:?}", call.id, call.client, call.op, call.invoked.at))
}

/// Returns a shard whose state differs between replicas, or a replica that is not up to date.
fn find_divergence(world: &World) -> Option<String> {
    let mut seen: BTreeMap<String, (u64, Vec<u8>)> = BTreeMap::new();
    for (number, slot) in world.nodes.iter().enumerate() {
        let name = node_name(number);
        let Some(node) = slot.node.lock().clone() else { return Some(format!("{name} is down")) };
        for replica in node.status(true).replicas {
            let (shard, applied) = (replica.shard, replica.applied_index);
            if replica.last_log_index != applied || replica.state_digest.is_empty() {
                return Some(format!("{name} has applied {applied} of {} of {shard}", replica.last_log_index));
            }
            let here = (applied, replica.state_digest.to_vec());
            let first = seen.entry(shard.clone()).or_insert_with(|| here.clone());
            if *first != here {
                return Some(format!("{name} is at {applied} of {shard}, another node at {}", first.0));
            }
        }
    }
    None
}

fn digest(world: &World, journal: &[String]) -> String {
    let mut hasher = Sha256::new();
    for line in journal {
        hasher.update(line);
        hasher.update("\n");
    }
    for shard in world.ledger.shards() {
        for entry in world.ledger.entries(&shard) {
            hasher.update(entry.state.unwrap_or_default());
            for reply in &entry.replies {
                hasher.update(reply);
            }
            hasher.update(entry.applied_at.as_nanos().to_be_bytes());
        }
    }
    hex::encode(hasher.finalize())
}
