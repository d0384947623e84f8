//! A service with a quiet account in it, and a hostile one that attacks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures::future::join_all;
use holdfast_testkit::{Cluster, Program, Setup, Tenant, free_address, wait_out};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::attacker::{Attacker, is_retryable};
use super::attacks::{Attack, AttackFn, AttackResult};
use super::control_load::ControlLoad;
use super::grpc_client::{CallStats, GrpcClient};
use super::health;
use super::quiet_tenant::{QuietTenant, Window};
use super::report::{Row, mib};
use crate::resource_usage::{CpuSample, PeakMemory, rss};

/// Above this part of the time the processors are too busy for the quiet account's own pace to be compared with.
const BUSY_THRESHOLD: f64 = 2.0 / 3.0;
/// How soon everything has to be in order again after an attack.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(20);
/// How soon the nodes have to serve again after all were killed at once.
const MAX_RECOVERY: Duration = Duration::from_secs(10);
/// How soon an account has to be able to delete the namespace of an attack.
const DELETE_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Hostile accounts that may attack at once.
pub(crate) const MAX_HOSTILE_ACCOUNTS: usize = 2;
/// Namespaces beside the one of the attack.
const EXTRA_NAMESPACES: usize = 4;
/// Memory is back when it is at most this much above what it was: a tenth, and what the runtime, the log and its caches
/// take when a process has seen work for the first time.
const MAX_MEMORY_RATIO: f64 = 1.1;

/// Which service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deployment {
    Standalone,
    Cluster,
}

/// How large and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub is_full: bool,
    /// How long the account is measured alone and beside the polite one.
    pub baseline: Duration,
    /// An attack is repeated until so much time has passed.
    pub attack: Duration,
    /// An attack that takes longer is stuck.
    pub attack_timeout: Duration,
    /// How long memory has to come back, and what it may keep besides, in bytes.
    pub memory_timeout: Duration,
    pub retained_bytes: u64,
    /// Calls that a hostile account may have waiting at one gateway.
    pub max_held_calls: usize,
}

/// The service and who calls it.
pub(crate) struct TestBed {
    pub kind: Deployment,
    scale: Scale,
    cluster: Cluster,
    hostile: Vec<Tenant>,
    control: Tenant,
    quiet: QuietTenant,
    /// A namespace of a hostile account is where half of the quiet locks are.
    quiet_shard: String,
    /// Where the gateways listen for Locktopus clients.
    locktopus: Vec<SocketAddr>,
    /// Bytes of each process before all attacks.
    idle_memory: Vec<u64>,
    rounds: usize,
}

const QUIET_NAMESPACES: [&str; 2] = ["quiet-one", "quiet-two"];
const CONTROL_NAMESPACE: &str = "polite";

/// Three nodes and three gateways on one machine. Threads that outnumber its processors only wake one another; in
/// production each process has a machine of its own, and one thread a processor.
fn three_nodes() -> Setup {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (processors / 6).max(1);
    let environment = vec![("TOKIO_WORKER_THREADS", threads.to_string())];
    Setup { gateways: 3, environment, ..Setup::default() }
}

impl TestBed {
    /// Starts everything.
    pub(crate) async fn start(kind: Deployment, scale: Scale) -> Result<Self, String> {
        let mut cluster = match kind {
            Deployment::Standalone => Cluster::start_standalone().await,
            Deployment::Cluster => Cluster::start(three_nodes()).await,
        };
        health::wait_healthy(&mut cluster, HEALTH_TIMEOUT).await?;
        let quiet_tenant = cluster.create_tenant("quiet", &QUIET_NAMESPACES).await;
        let control = cluster.create_tenant("polite", &[CONTROL_NAMESPACE]).await;
        // Their limits are those that an account has from the start, but for two: each round of an attack has a
        // namespace of its own, and a short attack has to reach what a full one does.
        let limits = json!({"max_namespace_changes": 6_000, "max_held_calls": scale.max_held_calls});
        let mut hostile = Vec::new();
        for number in 1..=MAX_HOSTILE_ACCOUNTS {
            let tenant = cluster.create_tenant_with_default_limits(&format!("hostile-{number}")).await;
            cluster.update_account(&tenant, json!({"limits": limits})).await;
            hostile.push(tenant);
        }
        let locktopus = open_locktopus_ports(&mut cluster, &hostile[0]).await?;
        let gateways = addresses(&cluster.gateways);
        let namespaces = QUIET_NAMESPACES.map(str::to_owned).to_vec();
        let quiet = QuietTenant::start(gateways, quiet_tenant.key.clone(), namespaces).await?;
        let quiet_shard = cluster.locks_shard(&quiet_tenant, QUIET_NAMESPACES[0]);
        let (idle_memory, rounds) = (Vec::new(), 0);
        let mut arena =
            Self { kind, scale, cluster, hostile, control, quiet, quiet_shard, locktopus, idle_memory, rounds };
        // What a process takes when it works for the first time is no attack's.
        arena.measure_alone().await?;
        arena.idle_memory = arena.process_memory();
        Ok(arena)
    }

    /// The quiet account alone.
    pub(crate) async fn measure_alone(&mut self) -> Result<Window, String> {
        let before = health::wait_healthy(&mut self.cluster, HEALTH_TIMEOUT).await?;
        self.quiet.begin_window().await;
        wait_out(self.scale.baseline).await;
        let mut window = self.quiet.end_window().await;
        window.slice_ms = health::wait_healthy(&mut self.cluster, HEALTH_TIMEOUT).await?.longest_slice_ms(&before);
        if window.lost.is_empty() { Ok(window) } else { Err(format!("nothing is calm: {:?}", window.lost)) }
    }

    fn pids(&self) -> Vec<u32> {
        self.cluster.nodes.iter().chain(&self.cluster.gateways).filter_map(|process| process.pid()).collect()
    }

    fn process_memory(&self) -> Vec<u64> {
        self.pids().into_iter().map(rss).collect()
    }

    /// Runs one attack by so many accounts at once. The row says what came of it; after one that is broken the arena is
    /// of no more use.
    pub(crate) async fn run(&mut self, attack: &Attack, accounts: usize, alone: &Window) -> Row {
        let before = match health::wait_healthy(&mut self.cluster, HEALTH_TIMEOUT).await {
            Ok(before) => before,
            Err(reason) => return Row::broken(self.kind, attack, accounts, format!("before the attack: {reason}")),
        };
        let (memory, peaks) = (self.process_memory(), PeakMemory::start(self.pids()));
        let calls = Arc::<CallStats>::default();
        self.quiet.begin_window().await;
        let (begun, processors) = (Instant::now(), CpuSample::now());
        let attacked = timeout(self.scale.attack_timeout, self.repeat_attack(attack, accounts, &calls)).await;
        let (took, busy) = (begun.elapsed(), processors.busy_fraction_since());
        let window = self.quiet.end_window().await;
        let (after, most) = (health::wait_healthy(&mut self.cluster, HEALTH_TIMEOUT).await, peaks.max());
        drop(peaks);
        let changes = health::changes(&before, &after);
        let mut row = Row::new(self.kind, attack, accounts, &window, &calls, took);
        row.failed = match attacked {
            Ok(Ok(())) => None,
            Ok(Err(reason)) => Some(reason),
            Err(_) => Some(format!("not done after {:?}", self.scale.attack_timeout)),
        };
        (row.deaths, row.leader_changes) = (changes.failures, changes.leader_changes);
        (row.slice_ms, row.snapshot_lag, row.busy) = (changes.slice_ms, changes.snapshot_lag, busy);
        let back = self.wait_memory_released(&memory).await;
        row.memory = memory.iter().zip(&most).zip(&back).map(|((a, b), c)| [mib(*a), mib(*b), mib(*c)]).collect();
        row.idle_memory = self.idle_memory.iter().map(|bytes| mib(*bytes)).collect();
        row.is_memory_back = back.iter().zip(&memory).all(|(now, before)| self.is_memory_released(*now, *before));
        row.set_calm(alone, false);
        if self.scale.is_full && busy > BUSY_THRESHOLD && row.deaths.is_empty() {
            match self.measure_beside_control(calls.total() as f64 / took.as_secs_f64(), busy).await {
                Ok(beside) => row.set_calm(&beside, true),
                Err(reason) => row.failed = Some(reason),
            }
        }
        row
    }

    /// Rounds of it, each in a namespace of its own that goes with the round.
    async fn repeat_attack(&mut self, attack: &Attack, accounts: usize, calls: &Arc<CallStats>) -> AttackResult {
        let until = Instant::now() + self.scale.attack;
        loop {
            let mut rounds = JoinSet::new();
            for account in 0..accounts {
                rounds.spawn(run_round(attack.run, self.attacker(account, calls)));
            }
            while let Some(done) = rounds.join_next().await {
                done.map_err(|error| error.to_string())??;
            }
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }

    /// One of the hostile accounts in its next round.
    fn attacker(&mut self, account: usize, calls: &Arc<CallStats>) -> Attacker {
        let mut names = self.new_namespace_names(account, EXTRA_NAMESPACES + 1);
        let (namespace, key) = (names.remove(0), self.hostile[account].key.clone());
        Attacker {
            gateways: addresses(&self.cluster.gateways),
            nodes: addresses(&self.cluster.nodes),
            locktopus: self.locktopus.clone(),
            api: self.cluster.rest_client(0, &key),
            key,
            namespace,
            extra_namespaces: names,
            is_full: self.scale.is_full,
            max_held_calls: self.scale.max_held_calls,
            calls: Arc::clone(calls),
            next_gateway: Arc::new(AtomicUsize::new(account)),
        }
    }

    /// Names of namespaces of a hostile account in the quiet one's shard, none of them used before.
    fn new_namespace_names(&mut self, account: usize, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        while names.len() < count {
            self.rounds += 1;
            let name = format!("hostile-{}", self.rounds);
            if self.cluster.locks_shard(&self.hostile[account], &name) == self.quiet_shard {
                names.push(name);
            }
        }
        names
    }

    async fn measure_beside_control(&mut self, calls: f64, busy: f64) -> Result<Window, String> {
        let gateways = addresses(&self.cluster.gateways);
        let frontends = GrpcClient::connect_to_all(&gateways, &self.control.key).await?;
        let _polite = ControlLoad::start(frontends, CONTROL_NAMESPACE.to_owned(), calls, busy);
        // The rate is found first.
        wait_out(self.scale.baseline / 2).await;
        self.measure_alone().await
    }

    fn is_memory_released(&self, now: u64, before: u64) -> bool {
        now as f64 <= before as f64 * MAX_MEMORY_RATIO + self.scale.retained_bytes as f64
    }

    /// Waits until memory is back, or for as long as that may take; what each process has then.
    async fn wait_memory_released(&self, before: &[u64]) -> Vec<u64> {
        let deadline = Instant::now() + self.scale.memory_timeout;
        loop {
            let now = self.process_memory();
            let is_back = now.iter().zip(before).all(|(now, before)| self.is_memory_released(*now, *before));
            if is_back || Instant::now() > deadline {
                return now;
            }
            wait_out(POLL_INTERVAL).await;
        }
    }

    /// Kills all nodes at once and starts them again. Returns how long it took until they served.
    ///
    /// # Errors
    /// If that took too long, or the quiet account lost something.
    ///
    /// # Panics
    /// If their states differ then.
    pub(crate) async fn restart_nodes(&mut self) -> Result<Duration, String> {
        let killed_at = Instant::now();
        join_all(self.cluster.nodes.iter_mut().map(Program::kill)).await;
        // Those who lead from now on go on to lead: an attack must not be the reason of a change.
        self.cluster.nodes.iter_mut().for_each(|node| node.set_argument("--leader-return-after-s", "0"));
        self.cluster.nodes.iter_mut().for_each(Program::start);
        let healthy = health::wait_healthy(&mut self.cluster, HEALTH_TIMEOUT).await;
        healthy.map_err(|reason| format!("after a kill of all nodes: {reason}"))?;
        let took = killed_at.elapsed();
        // While it calls, replicas are seldom at the same entry.
        self.quiet.set_paused(true);
        self.cluster.wait_equal_states().await;
        self.quiet.set_paused(false);
        // Its calls failed meanwhile; it lost nothing.
        let lost = self.quiet.end_window().await.lost;
        if took > MAX_RECOVERY {
            return Err(format!("after a kill of all nodes they served after {took:.1?}, not within {MAX_RECOVERY:?}"));
        }
        if lost.is_empty() { Ok(took) } else { Err(format!("lost in a kill of all nodes: {lost:?}")) }
    }

    /// Checks at the end that everything is in order and, where there are nodes, that they keep all of it in a kill.
    pub(crate) async fn finish(mut self) -> Result<(), String> {
        health::wait_healthy(&mut self.cluster, HEALTH_TIMEOUT).await?;
        if self.kind == Deployment::Cluster {
            let took = self.restart_nodes().await?;
            println!("all nodes were killed at once, and served again after {took:.1?}");
        }
        Ok(())
    }
}

/// One round of an attack in a namespace of its own, which goes with the round.
async fn run_round(run: AttackFn, enemy: Attacker) -> AttackResult {
    let (grpc, namespace) = (enemy.connect().await?, enemy.namespace.clone());
    grpc.create_namespace(&namespace).await.map_err(|status| format!("no namespace: {status}"))?;
    let done = run(enemy).await;
    // The account's own queues may still be full.
    let deadline = Instant::now() + DELETE_TIMEOUT;
    while let Err(status) = grpc.delete_namespace(&namespace).await {
        if !is_retryable(&status) || Instant::now() > deadline {
            return done.and(Err(format!("it can't be deleted: {status}")));
        }
        wait_out(POLL_INTERVAL).await;
    }
    done
}

fn addresses(processes: &[Program]) -> Vec<SocketAddr> {
    processes.iter().map(Program::address).collect()
}

/// Starts the gateways again, each with a port for Locktopus clients, which act for this account. Returns the ports.
async fn open_locktopus_ports(cluster: &mut Cluster, account: &Tenant) -> Result<Vec<SocketAddr>, String> {
    let mut ports = Vec::new();
    for gateway in &mut cluster.gateways {
        let port = free_address();
        gateway.set_argument("--locktopus-listen", &port.to_string());
        gateway.set_argument("--locktopus-account", &account.account.to_string());
        gateway.kill().await;
        gateway.start();
        ports.push(port);
    }
    health::wait_healthy(cluster, HEALTH_TIMEOUT).await?;
    Ok(ports)
}
