//! What clients asked and were answered.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_api::{Code, Holder, Lock};
use holdfast_core::{AccountId, Claim, LockState, Mode, Owner, Path, Phase, Reason};
use parking_lot::Mutex;

use crate::apply_log::ShardProgress;
use crate::ask_calls::ObservedAsk;
use crate::things::{ThingAnswer, ThingOp};
use crate::world::now;

/// The key under which an acquire names itself in the metadata of its hold.
pub(crate) const CALL_KEY: &str = "call";
/// The key under which it says how long its hold is kept from others at least, in milliseconds.
pub(crate) const AT_LEAST_KEY: &str = "at least";

/// An acquire as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcquireOp {
    pub(crate) owner: Owner,
    pub(crate) claims: Vec<Claim>,
    /// Absent for sessions.
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) transition_ms: u64,
    pub(crate) wait_ms: u64,
    pub(crate) token: Option<u64>,
    pub(crate) allow_upgrade: bool,
    /// How long what was granted is kept from others at least.
    pub(crate) at_least_ms: u64,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Acquire(AcquireOp),
    Release { owner: Owner, path: Path, token: Option<u64> },
    ReleaseAll { owner: Owner },
    Get { path: Path },
    Check { path: Path, token: u64 },
    Delete { path: Path },
    OpenSession { process: String, ttl_ms: u64 },
    KeepAlive { session: String, ttl_ms: u64 },
    CloseSession { session: String },
    CreateNamespace,
    GetNamespace,
    DeleteNamespace { id: Option<String> },
    Thing(ThingOp),
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Acquired {
        outcome: Result<u64, Reason>,
        locks: Vec<ObservedLock>,
    },
    Released {
        released: bool,
        locks: Vec<ObservedLock>,
    },
    Lock(ObservedLock),
    Checked {
        current: bool,
        lock: ObservedLock,
    },
    /// A session was opened.
    Session {
        id: String,
    },
    /// The keep-alive of a session was accepted; so many milliseconds are left.
    KeptAlive {
        remaining_ms: u64,
    },
    Namespace {
        id: String,
    },
    Done,
    Thing(ThingAnswer),
    /// Refused by the shard or the gateway: nothing was done.
    Refused(Code),
    /// `UNAVAILABLE`: nothing was done.
    Unavailable,
    /// `DEADLINE_EXCEEDED`, or the client went away: it may have been done.
    Unknown,
}

/// A lock as a client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedLock {
    pub(crate) path: Path,
    pub(crate) state: LockState,
    pub(crate) revision: u64,
    pub(crate) holders: Vec<ObservedHolder>,
}

/// A holder as a client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedHolder {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) token: u64,
    pub(crate) phase: Phase,
    /// The latest request to release it.
    pub(crate) asked: Option<ObservedAsk>,
}

impl From<Lock> for ObservedLock {
    fn from(lock: Lock) -> Self {
        let holders = lock.write_lock_holder.into_iter().chain(lock.read_lock_holders);
        let holders = holders.map(ObservedHolder::from);
        Self { path: Path(lock.path), state: lock.state, revision: lock.revision, holders: holders.collect() }
    }
}

impl From<Holder> for ObservedHolder {
    fn from(holder: Holder) -> Self {
        let owner = match holder.session_id {
            Some(session_id) => Owner::Session { session_id, holder: holder.holder },
            None => Owner::Process(holder.process_id),
        };
        let asked = holder.release_requested.map(ObservedAsk::from);
        Self { owner, mode: holder.mode, token: holder.fencing_token, phase: holder.phase, asked }
    }
}

/// A place in the history: events are numbered in the order in which they happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryPoint {
    pub(crate) number: usize,
    pub(crate) at: Duration,
}

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Unique in the run.
    pub(crate) id: usize,
    pub(crate) client: String,
    pub(crate) account: AccountId,
    pub(crate) namespace: String,
    pub(crate) op: Op,
    pub(crate) invoked: HistoryPoint,
    /// Absent when the client went away first.
    pub(crate) returned: Option<CallReturn>,
}

/// The end of a call.
#[derive(Debug, Clone)]
pub(crate) struct CallReturn {
    pub(crate) point: HistoryPoint,
    pub(crate) answer: Answer,
    /// How much of each shard had been applied anywhere by then.
    pub(crate) applied: BTreeMap<String, ShardProgress>,
}

#[derive(Default)]
struct CallLog {
    calls: Vec<Call>,
    next_number: usize,
}

impl CallLog {
    fn next_point(&mut self) -> HistoryPoint {
        self.next_number += 1;
        HistoryPoint { number: self.next_number, at: now().unwrap_or_default() }
    }
}

/// All calls of a run, in the order in which they were made.
#[derive(Default)]
pub(crate) struct History(Mutex<CallLog>);

impl History {
    /// A call begins. Answers its id.
    pub(crate) fn invoke(&self, client: &str, account: AccountId, namespace: &str, op: Op) -> usize {
        let mut calls = self.0.lock();
        let (id, invoked) = (calls.calls.len(), calls.next_point());
        calls.calls.push(Call {
            id,
            client: client.to_owned(),
            account,
            namespace: namespace.to_owned(),
            op,
            invoked,
            returned: None,
        });
        id
    }

    /// A call ends.
    pub(crate) fn finish(&self, id: usize, answer: Answer, applied: BTreeMap<String, ShardProgress>) {
        let mut calls = self.0.lock();
        let point = calls.next_point();
        calls.calls[id].returned = Some(CallReturn { point, answer, applied });
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.0.lock().calls.clone()
    }

    /// Returns the first call without an answer that is meant.
    pub(crate) fn first_open(&self, is_meant: impl Fn(&Call) -> bool) -> Option<Call> {
        self.0.lock().calls.iter().find(|call| call.returned.is_none() && is_meant(call)).cloned()
    }

    /// Returns what a call asked.
    pub(crate) fn op(&self, id: usize) -> Option<Op> {
        self.0.lock().calls.get(id).map(|call| call.op.clone())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().calls.len()
    }
}
