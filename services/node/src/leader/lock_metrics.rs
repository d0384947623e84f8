//! Counters of the leader's decisions, for `/metrics`.

use holdfast_core::{AcquireOutcome, Reason};
use metrics::{Counter, Unit, counter, describe_counter, describe_histogram};

/// Every reason for which an acquire is refused.
const REASONS: [Reason; 10] = [
    Reason::Upgrade,
    Reason::Held,
    Reason::Ancestor,
    Reason::Descendant,
    Reason::Transition,
    Reason::Queued,
    Reason::Deadlock,
    Reason::TimedOut,
    Reason::NotHeld,
    Reason::Ended,
];

/// Counters, looked up once per leadership because they are incremented under the state lock.
pub(crate) struct LockMetrics {
    acquires: OutcomeCounters,
    waits: OutcomeCounters,
}

struct OutcomeCounters {
    granted: Counter,
    enqueued: Counter,
    refused: [(Reason, Counter); REASONS.len()],
}

/// Registers the metric descriptions.
pub(crate) fn describe() {
    describe_counter!("holdfast_acquires_total", "Acquires decided without waiting, by outcome.");
    describe_counter!("holdfast_lock_waits_total", "Ended waits, by outcome.");
    let waited = "Time that calls waited for their locks at one leader.";
    describe_histogram!("holdfast_lock_wait_seconds", Unit::Seconds, waited);
}

impl LockMetrics {
    pub(super) fn new() -> Self {
        Self {
            acquires: OutcomeCounters::new("holdfast_acquires_total"),
            waits: OutcomeCounters::new("holdfast_lock_waits_total"),
        }
    }

    /// Counts an applied acquire.
    pub(super) fn acquired(&self, outcome: &AcquireOutcome) {
        self.acquires.count(outcome);
    }

    /// Counts an ended wait.
    pub(super) fn wait_resolved(&self, outcome: &AcquireOutcome) {
        self.waits.count(outcome);
    }
}

impl OutcomeCounters {
    fn new(name: &'static str) -> Self {
        let refused = REASONS.map(|reason| (reason, counter!(name, "outcome" => reason.name().to_lowercase())));
        Self {
            granted: counter!(name, "outcome" => "granted"),
            enqueued: counter!(name, "outcome" => "enqueued"),
            refused,
        }
    }

    fn count(&self, outcome: &AcquireOutcome) {
        match outcome {
            AcquireOutcome::Granted { .. } => self.granted.increment(1),
            AcquireOutcome::Enqueued(_) => self.enqueued.increment(1),
            AcquireOutcome::Refused(refusal) => {
                let found = self.refused.iter().find(|(reason, _)| *reason == refusal.reason);
                if let Some((_, counter)) = found {
                    counter.increment(1);
                }
            }
        }
    }
}
