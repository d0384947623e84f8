//! What to measure.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::clients::Target;
use crate::cluster::EntryPoint;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// Uncontended pairs over many namespaces.
    Pairs,
    /// Uncontended pairs in one namespace, and so in one shard.
    PairsOneNamespace,
    /// Readers and writers, nine to one, on shared locks.
    ReadersWriters,
    /// One lock that all clients wait for.
    Contended,
    /// Uncontended pairs and hand-offs of permits, each beside the same work with locks.
    Permits,
    /// Extensions of held locks, and keep-alives of sessions.
    Extend,
    /// Linearizable reads of locks that are held.
    Get,
    /// Many holds at once: memory, disk, restart.
    Holds,
    /// A cluster without calls: CPU, memory.
    Idle,
    /// Nodes are killed.
    Failover,
    /// More shards busy, and more locks held.
    Growth,
    /// Many watchers of one namespace.
    Watchers,
    /// Many who wait for one latch.
    LatchWaiters,
    /// The next leader of a lock table in memory is told it by gateways.
    Rebuild,
    /// A quiet tenant beside a loud one.
    Neighbours,
    /// Ten times as many clients as do best.
    Overload,
}

/// What to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// Three nodes, from this machine's packages.
    Etcd,
    /// One process that syncs before it answers, from this machine's packages.
    Redis,
    /// The same without a file: it forgets everything with its process.
    RedisMemory,
}

/// Flags of a run.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// What to measure.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "pairs,pairs-one-namespace,contended,readers-writers,extend,get"
    )]
    pub workloads: Vec<WorkloadName>,
    /// Through which frontends of this service: rest, grpc, stream, and memory, which is the stream in namespaces whose
    /// lock tables are in the memory of leaders.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rest,grpc,stream")]
    pub doors: Vec<Target>,
    /// Do the same work on these in the same run: etcd, redis, redis-memory.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub compare: Vec<Peer>,
    /// Measure one process with everything in it, where a workload starts no cluster of its own.
    #[arg(long)]
    pub standalone: bool,
    /// Where clients of this service connect, unless a workload starts a cluster of its own: to a gateway, or each to
    /// the node that leads the shard of its namespace. Nodes serve gateways then, there is no other, and the locks of a
    /// client are in one namespace through every frontend.
    #[arg(long, value_enum, default_value_t = EntryPoint::Gateway, conflicts_with = "standalone")]
    pub at: EntryPoint,
    /// How many clients take and release locks at a time.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256,1000")]
    pub clients: Vec<usize>,
    /// How many clients fight over one lock.
    #[arg(long, value_delimiter = ',', default_value = "16,64")]
    pub fighters: Vec<usize>,
    /// How many clients do anything else, and serve an open loop.
    #[arg(long, default_value_t = 64)]
    pub other_clients: usize,
    /// Further rounds of pairs in an open loop: so many pairs a second, whatever the answers.
    #[arg(long, value_delimiter = ',')]
    pub rates: Vec<f64>,
    /// Over how many namespaces locks are spread.
    #[arg(long, default_value_t = 64)]
    pub namespaces: usize,
    /// Shards of locks.
    #[arg(long, default_value_t = 16)]
    pub shards: u32,
    /// Seconds that each measurement counts.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Seconds of load before that.
    #[arg(long, default_value_t = 0.5)]
    pub warm_up: f64,
    /// How often each is measured, in turns with all others; medians are reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Sessions with locks in the workload rebuild.
    #[arg(long, default_value_t = 10_000)]
    pub rebuild_sessions: usize,
    /// Locks of each of these sessions.
    #[arg(long, default_value_t = 10)]
    pub rebuild_holds: usize,
    /// Locks held at once in the workload holds, and at most in the workload growth.
    #[arg(long, default_value_t = 100_000)]
    pub holds: usize,
    /// Nodes killed, one after the other, in the workload failover.
    #[arg(long, default_value_t = 10)]
    pub kills: usize,
    /// Watchers in the workload watchers.
    #[arg(long, default_value_t = 1_000)]
    pub watchers: usize,
    /// Callers that wait for the latch in the workload latch-waiters.
    #[arg(long, default_value_t = 10_000)]
    pub latch_waiters: usize,
    /// Requests a second that the loud tenant in the workload neighbours may make; half of what the service does when
    /// absent.
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub loud_rate: u32,
    /// Clients of the loud tenant that wait for one lock.
    #[arg(long, default_value_t = 2_000)]
    pub loud_waiting: usize,
    /// Event streams of the loud tenant that are not read.
    #[arg(long, default_value_t = 100)]
    pub slow_readers: usize,
    /// Threads that the load may use.
    #[arg(long, default_value_t = 1)]
    pub load_threads: usize,
    /// Where servers keep their data while they run; it should be on the disk that is meant.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub data_dir: PathBuf,
    /// Write the results into this folder, as a table, as JSON and as a picture.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}
