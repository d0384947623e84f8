//! What clients of connected sessions were told of requests to release their holds, and of holds that ended by force.

use holdfast_core::{AccountId, Path};
use parking_lot::Mutex;

/// What a client was told of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// That call asks for it.
    Asked { call: usize, within_ms: Option<u64>, force: bool },
    /// It ended as by a deletion.
    Deleted,
}

/// One message to a client.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) account: AccountId,
    pub(crate) namespace: &'static str,
    pub(crate) path: Path,
    pub(crate) token: u64,
    pub(crate) what: What,
}

/// All of a run.
#[derive(Default)]
pub(crate) struct ToldLog(Mutex<Vec<Told>>);

impl ToldLog {
    pub(crate) fn add(&self, told: Told) {
        self.0.lock().push(told);
    }

    pub(crate) fn all(&self) -> Vec<Told> {
        self.0.lock().clone()
    }
}
