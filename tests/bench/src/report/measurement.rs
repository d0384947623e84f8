//! One measurement of one round.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::clients::Target;
use crate::cluster::EntryPoint;
use crate::load::{LoadShape, Outcome};
use crate::workloads::Kind;

/// Quantiles of a latency, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Quantiles {
    /// Half of all are shorter.
    pub p50_us: f64,
    /// 99 of 100 are shorter.
    pub p99_us: f64,
    /// 999 of 1,000 are shorter.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Quantiles {
    /// Of a histogram in nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        Self { p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us: histogram.max() as f64 / 1_000.0 }
    }
}

/// What one load on one system came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// What was done.
    pub workload: String,
    /// The same work with locks, if this is done with permits.
    pub beside: Option<String>,
    /// The phase of an operation whose latency is shown first.
    pub main_phase: String,
    /// On what.
    pub door: Target,
    /// Where the clients of this service connected; nothing for a peer.
    pub at: Option<EntryPoint>,
    /// By how many at a time.
    pub clients: usize,
    /// Over how many namespaces.
    pub namespaces: usize,
    /// Operations due a second in an open loop; nothing in a closed one.
    pub due_per_second: Option<f64>,
    /// How long was measured.
    pub seconds: f64,
    /// Operations in that time.
    pub operations: u64,
    /// Operations a second.
    pub rate: f64,
    /// Refused by another owner's hold, warm-up excluded.
    pub refused: u64,
    /// Failed.
    pub errors: u64,
    /// What the first of these said.
    pub first_error: Option<String>,
    /// Due and not begun at the end of an open loop.
    pub unserved: u64,
    /// By phase.
    pub latency: BTreeMap<String, Quantiles>,
    /// CPU time of all servers for an operation, in microseconds.
    pub server_cpu_us: f64,
    /// The same by process.
    pub cpu_us_by_process: BTreeMap<String, f64>,
    /// CPU time of the load for an operation.
    pub load_cpu_us: f64,
    /// Bytes for an operation that the kernel wrote to the disk, whole pages, over all servers.
    pub written_bytes: f64,
    /// Bytes for an operation that the servers say they stored.
    pub stored_bytes: Option<f64>,
    /// Syncs of files for an operation, over all servers.
    pub syncs: Option<f64>,
    /// Resident memory of all servers.
    pub rss_mib: f64,
}

impl Measurement {
    /// From what a load came to.
    pub fn new(
        kind: Kind,
        door: Target,
        at: Option<EntryPoint>,
        clients: usize,
        namespaces: usize,
        pace: LoadShape,
        outcome: Outcome,
    ) -> Self {
        let Outcome { recorded, seconds, operations, usage, storage } = outcome;
        let each = |value: f64| if operations == 0 { 0.0 } else { value / operations as f64 };
        let micros = |seconds: f64| each(seconds * 1e6);
        let by_process = usage.cpu_seconds.iter().map(|(name, seconds)| (name.clone(), micros(*seconds)));
        let latency = recorded.phases.iter().map(|(phase, all)| ((*phase).to_owned(), Quantiles::of(all)));
        Self {
            workload: kind.name().to_owned(),
            beside: kind.with_locks().map(|locks| locks.name().to_owned()),
            main_phase: kind.main_phase().to_owned(),
            door,
            at,
            clients,
            namespaces,
            due_per_second: match pace {
                LoadShape::Closed => None,
                LoadShape::Open(rate) => Some(rate),
            },
            seconds,
            operations,
            rate: operations as f64 / seconds,
            refused: recorded.refused,
            errors: recorded.errors,
            first_error: recorded.first_error,
            unserved: recorded.unserved,
            latency: latency.collect(),
            server_cpu_us: micros(usage.cpu_seconds.values().sum()),
            cpu_us_by_process: by_process.collect(),
            load_cpu_us: micros(usage.own_cpu_seconds),
            written_bytes: each(usage.written_bytes),
            stored_bytes: storage.bytes.map(each),
            syncs: storage.syncs.map(each),
            rss_mib: usage.rss_bytes / 1_048_576.0,
        }
    }

    /// The system, with where its clients connected unless that was a gateway in a process of its own.
    pub fn system(&self) -> String {
        match self.at {
            Some(EntryPoint::Leader) => format!("{} at the leader", self.door),
            Some(EntryPoint::Gateway) | None => self.door.to_string(),
        }
    }

    /// The latency that is shown first.
    pub fn main_latency(&self) -> Quantiles {
        self.latency.get(&self.main_phase).copied().unwrap_or_default()
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, clients, namespaces, rate, server_cpu_us, .. } = self;
        let system = self.system();
        let due = self.due_per_second.map(|due| format!(", {due:.0}/s due")).unwrap_or_default();
        let Quantiles { p50_us, p99_us, .. } = self.main_latency();
        write!(
            f,
            "{system}, {workload}, {clients} clients, {namespaces} namespaces{due}: {rate:.0}/s, p50 {p50_us:.0} µs, \
             p99 {p99_us:.0} µs, {server_cpu_us:.0} µs of CPU"
        )?;
        match &self.first_error {
            None => Ok(()),
            Some(first) => write!(f, "; {} ERRORS, first: {first}", self.errors),
        }
    }
}
