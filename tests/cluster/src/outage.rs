//! How long the service was away after something was done to it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::{Call, History, LockId, Outcome};

/// How far records may be out of order.
const REORDER_SLACK: Duration = Duration::from_secs(1);
/// A shard that is not back after so long is taken to be away for good.
const OBSERVATION_WINDOW: Duration = Duration::from_secs(60);
/// How many times as long as it should be the service may be away on a busy machine.
const MAX_SLOWDOWN: u32 = 3;

/// Something that was done to the cluster, and the shards that had their leader there.
#[derive(Clone, Debug)]
struct Event {
    at: Duration,
    led_shards: Vec<String>,
}

/// Events, and when each shard answered a write after them.
#[derive(Clone, Debug, Default)]
pub struct Outages {
    events: Vec<Event>,
}

/// A set of times.
#[derive(Clone, Debug)]
pub struct DurationStats {
    sorted: Vec<Duration>,
}

impl Outages {
    /// Something was done at that time of the history to the node that led these shards.
    pub fn add(&mut self, at: Duration, led_shards: Vec<String>) {
        self.events.push(Event { at, led_shards });
    }

    /// Whether since the last event every one of these shards has answered a write that began after it; else one that
    /// has not.
    pub fn check_recovered<'a>(&self, history: &History, shards: &'a [String]) -> Result<(), &'a str> {
        let Some(last) = self.events.last() else { return Ok(()) };
        let back = first_writes(history, last.at);
        shards.iter().find(|shard| !back.contains_key(*shard)).map_or(Ok(()), |shard| Err(shard))
    }

    /// For each event the times until each shard answered a write that began after it: of the shards that had lost
    /// their leader, and of the others.
    pub fn stats(&self, history: &History, shards: &[String]) -> (DurationStats, DurationStats) {
        let mut lost = Vec::new();
        let mut others = Vec::new();
        for event in &self.events {
            let back = first_writes(history, event.at);
            for shard in shards {
                let answered = back.get(shard).copied().unwrap_or(Duration::MAX);
                let took = answered.saturating_sub(event.at);
                if event.led_shards.contains(shard) { lost.push(took) } else { others.push(took) }
            }
        }
        (DurationStats::from_durations(lost), DurationStats::from_durations(others))
    }
}

/// Of each shard when the first write was answered that began after that time.
fn first_writes(history: &History, after: Duration) -> BTreeMap<String, Duration> {
    let mut first: BTreeMap<String, Duration> = BTreeMap::new();
    history.with_records(|records| {
        // Records come in about the order of their ends.
        let from = records.partition_point(|record| record.end + REORDER_SLACK < after);
        let until = records.partition_point(|record| record.end < after + OBSERVATION_WINDOW);
        for record in records[from..until.max(from)].iter().filter(|record| record.start >= after) {
            let LockId { shard, .. } = &record.lock;
            if matches!(record.outcome, Outcome::Answered(_)) && record.call != Call::Get {
                let end = first.entry(shard.to_string()).or_insert(record.end);
                *end = record.end.min(*end);
            }
        }
    });
    first
}

impl DurationStats {
    /// Of these times.
    pub fn from_durations(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { sorted: times }
    }

    /// The longest; nothing of none.
    pub fn max(&self) -> Duration {
        self.sorted.last().copied().unwrap_or_default()
    }

    /// Whether half of the times are within a limit, and all within three times that: where a disk stalls or processes
    /// are not run for a while, some take longer.
    pub fn is_mostly_within(&self, limit: Duration) -> bool {
        self.percentile(50) <= limit && self.max() <= limit * MAX_SLOWDOWN
    }

    /// The time that so many of a hundred do not exceed.
    pub fn percentile(&self, of_a_hundred: usize) -> Duration {
        let not_more = (self.sorted.len() * of_a_hundred).div_ceil(100);
        self.sorted.get(not_more.saturating_sub(1)).copied().unwrap_or_default()
    }
}

impl std::fmt::Display for DurationStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (count, p50, p99, max) = (self.sorted.len(), self.percentile(50), self.percentile(99), self.max());
        write!(f, "{count} times, p50 {p50:.1?}, p99 {p99:.1?}, max {max:.1?}")
    }
}
