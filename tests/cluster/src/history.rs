//! What callers did and saw: one record a call, with the instants between which it took effect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_types::Mode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use holdfast_testkit::CallError;

/// Which lock: its namespace and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockId {
    /// The shard that keeps it; revisions count there.
    pub shard: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// A call and what came of it. Instants count from the beginning of the history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Who called.
    pub owner: Arc<str>,
    /// About which lock.
    pub lock: LockId,
    /// What was asked.
    pub call: Call,
    /// Before it was sent.
    pub start: Duration,
    /// After its answer was there, or was given up.
    pub end: Duration,
    /// What came of it.
    pub outcome: Outcome,
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// To take the lock, or, with a token, to extend that very hold.
    Acquire {
        /// How.
        mode: Mode,
        /// For how long, in milliseconds.
        ttl_ms: u64,
        /// Only extend the hold of this token.
        token: Option<u64>,
    },
    /// To end the caller's hold.
    Release {
        /// Only the hold of this token.
        token: Option<u64>,
    },
    /// To end all holds.
    Delete,
    /// To look.
    Get,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The service answered.
    Answered(Answer),
    /// The service says that nothing was done, or was never reached.
    NotDone,
    /// It may have been done, or may still be.
    Unknown,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the acquire was granted, or the release ended a hold. True for the rest.
    pub success: bool,
    /// The token of an acquire that was granted.
    pub token: Option<u64>,
    /// Why an acquire was not granted.
    pub reason: Option<String>,
    /// The lock as it then was.
    pub lock: View,
}

/// A lock as a caller saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Of the lock's last change; of a free lock the shard's revision at that time.
    pub revision: u64,
    /// Who held it.
    pub holds: Vec<Hold>,
    /// Whether all holders are among them: some answers show the first few only.
    pub is_whole: bool,
}

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hold {
    /// The revision of its grant.
    pub token: u64,
    /// Whose.
    pub owner: Arc<str>,
    /// How.
    pub mode: Mode,
}

/// Collects records from many callers.
#[derive(Clone)]
pub struct History {
    started: Instant,
    records: Arc<Mutex<Vec<Record>>>,
    errors: Arc<Mutex<BTreeMap<String, (usize, String)>>>,
}

impl Default for History {
    fn default() -> Self {
        Self { started: Instant::now(), records: Arc::default(), errors: Arc::default() }
    }
}

impl History {
    /// The time on the history's clock.
    pub fn now(&self) -> Duration {
        self.at(Instant::now())
    }

    /// An instant on the history's clock.
    pub fn at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.started)
    }

    /// The instant of a time on the history's clock.
    pub fn instant(&self, time: Duration) -> Instant {
        self.started + time
    }

    /// Adds a record.
    pub fn add(&self, record: Record) {
        self.records.lock().push(record);
    }

    /// Counts a call that was not answered, with what was said instead.
    pub fn record_error(&self, error: &CallError) {
        let kind = format!("{} {}", error.status, error.code);
        let mut troubles = self.errors.lock();
        let (count, _) = troubles.entry(kind).or_insert_with(|| (0, error.detail.clone()));
        *count += 1;
    }

    /// Every kind of call that was not answered: how many, and the words of the first.
    pub fn error_summaries(&self) -> Vec<String> {
        let troubles = self.errors.lock();
        troubles.iter().map(|(kind, (count, first))| format!("{count} x {kind}, first: {first}")).collect()
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.records.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Inspects the records.
    pub fn with_records<T>(&self, look: impl FnOnce(&[Record]) -> T) -> T {
        look(&self.records.lock())
    }
}
