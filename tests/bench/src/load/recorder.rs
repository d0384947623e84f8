//! Where workers put their latencies.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// Bounds of a latency, in nanoseconds, and its precision in digits. What is longer counts as the longest.
const MIN_LATENCY_NS: u64 = 100;
const MAX_LATENCY_NS: u64 = 120_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// Latencies by phase of an operation, and counts.
#[derive(Default)]
pub struct Recorded {
    /// In nanoseconds.
    pub phases: BTreeMap<&'static str, Histogram<u64>>,
    /// Operations that were answered, refusals included.
    pub operations: u64,
    /// Of these, refused by another owner's hold.
    pub refused: u64,
    /// Operations that failed.
    pub errors: u64,
    /// What the first of these said.
    pub first_error: Option<String>,
    /// Operations of an open loop for which no client was free, or that were not answered in time.
    pub unserved: u64,
}

/// A place for all workers to record in.
#[derive(Default)]
pub struct Recorder {
    recorded: Mutex<Recorded>,
}

impl Recorder {
    /// An operation was answered, its phases after so long.
    pub fn record(&self, phases: &[(&'static str, Duration)]) {
        let mut recorded = self.recorded.lock();
        recorded.operations += 1;
        phases.iter().for_each(|(phase, latency)| recorded.record_latency(phase, *latency));
    }

    /// An operation was refused.
    pub fn refused(&self, phase: &'static str, latency: Duration) {
        self.record(&[(phase, latency)]);
        self.recorded.lock().refused += 1;
    }

    /// An operation failed.
    pub fn record_error(&self, error: &str) {
        let mut recorded = self.recorded.lock();
        recorded.errors += 1;
        recorded.first_error.get_or_insert_with(|| error.to_owned());
    }

    /// An operation was due so long ago and has not ended: every phase would have taken at least that.
    pub fn unserved(&self, waited: Duration) {
        let mut recorded = self.recorded.lock();
        recorded.unserved += 1;
        let phases: Vec<&'static str> = recorded.phases.keys().copied().collect();
        phases.into_iter().for_each(|phase| recorded.record_latency(phase, waited));
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.recorded.lock().operations
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.take();
    }

    /// Takes everything out.
    pub fn take(&self) -> Recorded {
        std::mem::take(&mut self.recorded.lock())
    }
}

impl Recorded {
    /// Adds a latency of a phase.
    pub fn record_latency(&mut self, phase: &'static str, latency: Duration) {
        let new = || {
            Histogram::new_with_bounds(MIN_LATENCY_NS, MAX_LATENCY_NS, SIGNIFICANT_DIGITS)
                .expect("the bounds above are in order")
        };
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(MAX_LATENCY_NS);
        self.phases.entry(phase).or_insert_with(new).saturating_record(nanoseconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_nobody_had_time_for_is_charged_for_its_wait() {
        let recorder = Recorder::default();
        recorder.record(&[("acquire", Duration::from_micros(500))]);
        recorder.unserved(Duration::from_secs(3));
        let recorded = recorder.take();
        assert_eq!((recorded.operations, recorded.unserved), (1, 1));
        let longest = recorded.phases["acquire"].max();
        assert!((2_990_000_000..3_010_000_000).contains(&longest), "{longest}");
    }
}
