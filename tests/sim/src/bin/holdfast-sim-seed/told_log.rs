//! What clients of connected sessions were told of requests to release their holds and of holds that ended by force,
//! and when they were connected.

use std::collections::BTreeSet;
use std::time::Duration;

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

/// A connection of a session, as long as its client had it.
#[derive(Debug, Clone)]
pub(crate) struct Connected {
    pub(crate) session: String,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    /// The tokens of what its client listed when it resumed the session.
    pub(crate) listed: BTreeSet<u64>,
}

/// All of a run.
#[derive(Default)]
pub(crate) struct ToldLog {
    told: Mutex<Vec<Told>>,
    connections: Mutex<Vec<Connected>>,
}

impl ToldLog {
    pub(crate) fn add(&self, told: Told) {
        self.told.lock().push(told);
    }

    pub(crate) fn add_connection(&self, connected: Connected) {
        self.connections.lock().push(connected);
    }

    pub(crate) fn all(&self) -> Vec<Told> {
        self.told.lock().clone()
    }

    pub(crate) fn connections(&self) -> Vec<Connected> {
        self.connections.lock().clone()
    }
}
