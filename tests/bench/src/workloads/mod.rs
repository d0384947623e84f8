//! What clients do. Each workload is a step that a worker takes again and again; a new one is a file and a line in each
//! table here.

mod contended;
mod extend;
mod get;
mod pairs;
mod readers_writers;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Result;
use futures::future::try_join_all;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::clients::{Client, LockName, Target, session_count};
use crate::cluster::EntryPoint;
use crate::load::Recorder;
use crate::systems::System;

/// Locks that each client takes in turns.
const LOCKS_PER_CLIENT: usize = 16;
/// Trees that all readers and writers share, each in a namespace, with so many inner nodes and leaves below each.
const TREES: usize = 16;
const INNER_NODES: usize = 4;
const LEAVES: usize = 4;

/// Counts the measurements: each has locks of its own, so that what one leaves behind does not disturb the next.
static NEXT_MEASUREMENT: AtomicUsize = AtomicUsize::new(0);

/// What a worker does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Acquires and releases a lock without contention.
    Pairs,
    /// Takes a leaf of a shared tree for reading, or, one time of ten, the node above it for writing, and gives it
    /// back; a refusal is an operation too.
    ReadersWriters,
    /// Waits for the one lock that all want, and gives it back.
    Contended,
    /// Acquires and releases a permit without contention.
    PermitPairs,
    /// Waits for the one permit that all want, and gives it back.
    PermitHandOffs,
    /// Holds a lock for longer.
    Extend,
    /// Sends a keep-alive for all its holds.
    KeepAlive,
    /// Looks who holds a lock.
    Look,
}

impl Kind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pairs => "acquire + release",
            Self::ReadersWriters => "readers and writers 9:1 on a tree",
            Self::Contended => "hand-off of one lock",
            Self::PermitPairs => "acquire + release of a permit",
            Self::PermitHandOffs => "hand-off of one permit",
            Self::Extend => "extend",
            Self::KeepAlive => "keep-alive",
            Self::Look => "get",
        }
    }

    /// The phase whose latency is shown first.
    pub fn main_phase(self) -> &'static str {
        match self {
            Self::Pairs | Self::PermitPairs | Self::ReadersWriters => "acquire",
            Self::Contended | Self::PermitHandOffs => "wait",
            Self::Extend | Self::KeepAlive => "extend",
            Self::Look => "get",
        }
    }

    /// Whether it can be done through a door.
    pub fn runs_on(self, door: Target) -> bool {
        match self {
            Self::Pairs => true,
            Self::Extend | Self::Look => !door.has_sessions(),
            Self::KeepAlive => door.has_sessions() || door == Target::Etcd,
            Self::Contended => !matches!(door, Target::Redis | Target::RedisMemory),
            Self::ReadersWriters => door.is_holdfast(),
            Self::PermitPairs | Self::PermitHandOffs => door.is_holdfast() && door != Target::Memory,
        }
    }

    /// The same work with locks, if this is done with permits.
    pub fn with_locks(self) -> Option<Self> {
        match self {
            Self::PermitPairs => Some(Self::Pairs),
            Self::PermitHandOffs => Some(Self::Contended),
            _ => None,
        }
    }
}

/// A client with what it does.
pub struct Worker {
    client: Client,
    kind: Kind,
    locks: Vec<LockName>,
    /// Tokens of the locks that it holds all the time, in the same order.
    tokens: Vec<u64>,
    next: usize,
    random: SmallRng,
}

impl Worker {
    /// Connects workers and has each take the locks that it holds all the time. Their locks are spread over that many
    /// namespaces.
    ///
    /// # Errors
    /// When a client can't connect, or a lock is not free.
    pub async fn prepare(
        system: &System,
        door: Target,
        kind: Kind,
        count: usize,
        names: &[String],
    ) -> Result<Vec<Self>> {
        // Trees are shared through sessions as through the other frontends: no more namespaces than there are trees.
        let names = if kind == Kind::ReadersWriters { &names[..names.len().min(TREES)] } else { names };
        let clients = system.connect(door, count, names).await?;
        let sessions = session_count(count, names.len());
        let turn = NEXT_MEASUREMENT.fetch_add(1, Ordering::Relaxed);
        let is_at_leader = system.entry_point() == Some(EntryPoint::Leader);
        let workers = clients.into_iter().enumerate().map(|(number, client)| {
            // The clients of a session, and each that is connected to a leader, use the locks of one namespace.
            let own = match door {
                Target::Stream | Target::Memory => Some(number % sessions),
                _ => is_at_leader.then_some(number),
            };
            let own_names = own.map_or(names, |own| std::slice::from_ref(&names[own % names.len()]));
            let lock = |at: usize| match kind {
                Kind::ReadersWriters => leaf(own_names, turn, at),
                Kind::Contended => LockName::flat(&names[0], format!("wanted-{turn}")),
                Kind::PermitHandOffs => LockName::permit(&names[0], format!("wanted-{turn}")),
                _ => {
                    let namespace = &own_names[(number + at) % own_names.len()];
                    let name = format!("client-{turn}-{number}-{at}");
                    match kind {
                        Kind::PermitPairs => LockName::permit(namespace, name),
                        _ => LockName::flat(namespace, name),
                    }
                }
            };
            let locks = match kind {
                Kind::ReadersWriters => TREES * INNER_NODES * LEAVES,
                Kind::Contended | Kind::PermitHandOffs => 1,
                _ => LOCKS_PER_CLIENT,
            };
            let mut worker = Self {
                client,
                kind,
                locks: (0..locks).map(lock).collect(),
                tokens: Vec::new(),
                next: number,
                random: SmallRng::seed_from_u64(number as u64),
            };
            async move {
                if matches!(kind, Kind::Extend | Kind::KeepAlive | Kind::Look) {
                    extend::acquire_all(&mut worker).await?;
                }
                Ok(worker)
            }
        });
        try_join_all(workers).await
    }

    /// Does one operation, which was due then, and records it.
    ///
    /// # Errors
    /// When it was not answered, or not as it must be.
    pub async fn step(&mut self, due: Instant, recorder: &Recorder) -> Result<()> {
        match self.kind {
            Kind::Pairs | Kind::PermitPairs => pairs::step(self, due, recorder).await,
            Kind::Contended | Kind::PermitHandOffs => contended::step(self, due, recorder).await,
            Kind::ReadersWriters => readers_writers::step(self, due, recorder).await,
            Kind::Extend | Kind::KeepAlive => extend::step(self, due, recorder).await,
            Kind::Look => get::step(self, due, recorder).await,
        }
    }

    /// Gives back what it holds.
    pub async fn finish(&mut self) {
        for (lock, token) in self.locks.iter().zip(std::mem::take(&mut self.tokens)) {
            // The system may be down; its data goes with the run.
            let _ = self.client.release(lock, token).await;
        }
    }

    /// The next of its locks, in turns.
    fn next_lock(&mut self) -> usize {
        self.next += 1;
        self.next % self.locks.len()
    }
}

/// A leaf of the trees of a measurement, by its number among all.
/// With one namespace, all are leaves of the one tree there.
fn leaf(names: &[String], turn: usize, at: usize) -> LockName {
    let (tree, inner, leaf) = (at / (INNER_NODES * LEAVES), at / LEAVES % INNER_NODES, at % LEAVES);
    let path = vec![format!("shared-{turn}"), format!("inner-{inner}"), format!("leaf-{leaf}")];
    LockName::in_tree(&names[tree % names.len()], path)
}
