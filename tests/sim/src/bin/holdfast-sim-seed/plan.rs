//! What a seed determines before the run: the shape of the cluster, and the faults.

use std::time::Duration;

use holdfast_core::{Bounds, Rules};
use holdfast_node::MAX_SLICE_COMMANDS;
use holdfast_replication::{LogLimits, ReadMode};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Nodes, and replicas of each group.
const CLUSTER_SIZES: [(usize, u32); 6] = [(3, 3), (3, 3), (3, 3), (4, 3), (5, 3), (5, 5)];

/// The longest hold, wait and session of a short run.
const SHORT_RUN_MAX_MS: u64 = 1_500;

/// A run has three to five shards.
const MAX_GROUPS: u32 = 3;

/// In one of so many runs with clients of semaphores and latches, every message may be lost.
const LOSSY_ONE_IN: u32 = 4;

/// In one of so many runs without traps, leaderships return to preferred leaders.
const RETURNS_ONE_IN: u32 = 3;

/// In one of so many runs there is a hostile account.
const HOSTILE_ONE_IN: u32 = 4;

/// One run, before it begins.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Decides everything.
    pub(crate) seed: u64,
    /// Nodes of the cluster.
    pub(crate) nodes: usize,
    /// Replicas of each group.
    pub(crate) replicas: u32,
    /// Gateways, each with clients of its own.
    pub(crate) gateways: usize,
    /// Clients of each gateway.
    pub(crate) clients: usize,
    /// Shards of namespaces, and as many of locks.
    pub(crate) shards: u32,
    /// Raft groups, among which the shards are dealt out: with one, every shard shares the log with all others.
    pub(crate) groups: u32,
    /// For how long clients work and faults happen.
    pub(crate) chaos: Duration,
    /// Longest delay of a packet in good times; the shortest is 0.
    pub(crate) max_latency: Duration,
    /// How leaders answer reads.
    pub(crate) reads: ReadMode,
    /// How long a preferred leader is ready before it gets its leadership back, if it does in this run.
    pub(crate) leader_return_after: Option<Duration>,
    /// Entries after which a replica makes a snapshot.
    pub(crate) snapshot_interval_entries: u64,
    /// Entries that are kept behind a snapshot.
    pub(crate) retain_entries: u64,
    /// The same in bytes.
    pub(crate) log_limits: LogLimits,
    /// The bounds of the state machines, if they are not those of the rules.
    pub(crate) bounds: Option<Bounds>,
    /// Commands in an apply slice: readers see the state after each slice.
    pub(crate) slice_commands: usize,
    /// How much faster than the others each node's monotonic clock runs, in millionths.
    pub(crate) drift_ppm: Vec<u32>,
    /// Whether there are traps among the faults.
    pub(crate) scenarios: bool,
    /// Whether nearly all calls are about the same few locks, so that clients soon observe the effects of others.
    pub(crate) has_hot_paths: bool,
    /// A gateway whose clients read and send keep-alives, but change nothing: it is the last to learn of a new leader.
    pub(crate) read_only_gateway: Option<usize>,
    /// Whether panics are injected into tasks and state machines, which only a build with mutations can do.
    pub(crate) panics: bool,
    /// The point of all panics, if a mutation is about that.
    pub(crate) panics_at: Option<&'static str>,
    /// Whether there are clients of semaphores and latches beside the others.
    pub(crate) has_things: bool,
    /// Whether there are clients of pools beside the others.
    pub(crate) has_pools: bool,
    /// Whether there are clients of barriers beside the others.
    pub(crate) has_barriers: bool,
    /// Whether there are clients of conditions beside the others.
    pub(crate) has_conditions: bool,
    /// Whether there are clients that ask others to release what they hold, beside the others.
    pub(crate) has_asks: bool,
    /// Whether there are clients of a namespace whose locks are in the memory of a leader, and faults of such leaders.
    pub(crate) has_soft: bool,
    /// How likely a message is lost, between any two hosts and besides other faults; the link then loses the next ones
    /// too.
    pub(crate) loss_rate: f64,
    /// Whether there is a hostile account beside the others.
    pub(crate) hostile: bool,
    /// Whether one client makes the same calls again and again, and each time another of their messages is lost.
    pub(crate) lost_answers: bool,
    /// Whether anything goes wrong at all.
    pub(crate) faults: bool,
    /// Nothing is asked for longer than that, if there is a shorter choice.
    pub(crate) max_request_ms: u64,
    /// How many times as long it is quiet between faults than in the worst runs.
    pub(crate) quiet_factor: u32,
}

impl Plan {
    /// The same with as little in it as faults need: several times as many of them go through in an hour.
    pub(crate) fn shortened(self) -> Self {
        let mut rng = rng_of(self.seed, "short");
        Self {
            nodes: 3,
            replicas: 3,
            shards: 1,
            clients: rng.random_range(3..=5),
            chaos: Duration::from_millis(rng.random_range(3_000..5_000)),
            drift_ppm: self.drift_ppm.into_iter().take(3).collect(),
            quiet_factor: 1,
            max_request_ms: SHORT_RUN_MAX_MS,
            ..self
        }
    }

    /// The same with one client that loses answers, and nothing else.
    pub(crate) fn for_lost_answers(self) -> Self {
        Self {
            nodes: 3,
            replicas: 3,
            gateways: 1,
            clients: 0,
            shards: 1,
            groups: 1,
            max_latency: Duration::from_millis(1),
            drift_ppm: vec![0; 3],
            scenarios: false,
            read_only_gateway: None,
            has_things: false,
            has_pools: false,
            has_barriers: false,
            has_conditions: false,
            has_asks: false,
            has_soft: false,
            leader_return_after: None,
            loss_rate: 0.0,
            hostile: false,
            lost_answers: true,
            faults: false,
            ..self
        }
    }

    /// Whether nothing goes wrong.
    pub(crate) fn is_calm(&self) -> bool {
        !self.faults && !self.panics && !self.lost_answers && self.loss_rate <= 0.0
    }

    /// The plan of a seed.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let has_things = rng_of(seed, "things").random_bool(0.5);
        let mut loss_rng = rng_of(seed, "loss");
        let is_lossy = has_things && loss_rng.random_ratio(1, LOSSY_ONE_IN);
        let mut return_rng = rng_of(seed, "leader return");
        let mut rng = rng_of(seed, "plan");
        // Scenarios need one gateway that learns of a new leader at once, and one that does not.
        let scenarios = rng.random_bool(0.4);
        let gateways = if scenarios { 2 } else { rng.random_range(1..=2) };
        // Traps are made for three.
        let (nodes, replicas) =
            if scenarios { (3, 3) } else { CLUSTER_SIZES[rng.random_range(0..CLUSTER_SIZES.len())] };
        Self {
            seed,
            nodes,
            replicas,
            gateways,
            clients: rng.random_range(3..=8),
            shards: rng.random_range(1..=2),
            groups: rng_of(seed, "groups").random_range(1..=MAX_GROUPS),
            chaos: Duration::from_millis(rng.random_range(8_000..20_000)),
            max_latency: Duration::from_millis(rng.random_range(1..=8)),
            reads: if rng.random_bool(0.2) { ReadMode::Quorum } else { ReadMode::Lease },
            // Traps decide themselves who leads.
            leader_return_after: (!scenarios && return_rng.random_ratio(1, RETURNS_ONE_IN))
                .then(|| Duration::from_millis(return_rng.random_range(500..3_000))),
            // Small, so that snapshots and purged logs are part of most runs.
            snapshot_interval_entries: rng.random_range(10..200),
            retain_entries: rng.random_range(0..50),
            log_limits: random_log_limits(&mut rng_of(seed, "log limits")),
            bounds: rng_of(seed, "bounds").random_bool(0.5).then(tiny_bounds),
            slice_commands: random_slice(&mut rng_of(seed, "slices")),
            drift_ppm: (0..nodes).map(|_| [0, 0, 300, 900][rng.random_range(0..4)]).collect(),
            scenarios,
            has_hot_paths: rng.random_bool(if scenarios { 0.8 } else { 0.2 }),
            read_only_gateway: (scenarios || rng.random_bool(0.3)).then_some(1),
            panics: false,
            panics_at: None,
            has_things,
            has_pools: rng_of(seed, "pools").random_bool(0.5),
            has_barriers: rng_of(seed, "barriers").random_bool(0.5),
            has_conditions: rng_of(seed, "conditions").random_bool(0.5),
            has_asks: rng_of(seed, "asks").random_bool(0.25),
            has_soft: rng_of(seed, "soft").random_bool(0.5),
            loss_rate: if is_lossy { loss_rng.random_range(0.0001..0.001) } else { 0.0 },
            hostile: rng_of(seed, "hostile").random_ratio(1, HOSTILE_ONE_IN),
            lost_answers: false,
            faults: true,
            max_request_ms: u64::MAX,
            quiet_factor: [1, 2, 4, 8][rng.random_range(0..4)],
        }
    }
}

/// So small that nearly every run reaches each of them. Bounds of answers and events, on which the checks depend, stay
/// large: the checks can't distinguish an event that was dropped from one that never happened.
fn tiny_bounds() -> Bounds {
    let whole = Bounds::of(Rules::HIGHEST);
    Bounds {
        // There are six owners, which sometimes wait for one another.
        tangled_owners: 1,
        tangled_claims: 4,
        cached_creations: whole.cached_creations,
        cached_creations_per_account: whole.cached_creations_per_account,
        retained_events: whole.retained_events,
        pending_messages_per_account: whole.pending_messages_per_account,
        max_readers_in_reply: whole.max_readers_in_reply,
        max_locks_in_reply: whole.max_locks_in_reply,
        ..Bounds::tiny()
    }
}

/// So small in every other run that they are met before those of entries.
fn random_log_limits(rng: &mut StdRng) -> LogLimits {
    if rng.random_bool(0.5) {
        return LogLimits::default();
    }
    LogLimits { snapshot_interval_bytes: rng.random_range(2_000..40_000), retain_bytes: rng.random_range(0..10_000) }
}

/// So few in every other run that reads come between the commands of an entry.
fn random_slice(rng: &mut StdRng) -> usize {
    if rng.random_bool(0.5) { rng.random_range(1..=4) } else { MAX_SLICE_COMMANDS }
}

/// A generator for one purpose: what one part of the simulation draws does not change what another one does.
pub(crate) fn rng_of(seed: u64, purpose: &str) -> StdRng {
    // FNV-1a: any fixed mixing will do.
    let mixed = purpose
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mixed)
}
