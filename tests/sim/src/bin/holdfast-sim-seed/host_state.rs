//! What a connection to a host meets.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// What a connection to a host meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum HostState {
    /// A process listens.
    Up,
    /// The host runs, and nobody listens: it refuses.
    ConnectionRefused,
    /// The host itself is off: it keeps silent.
    #[default]
    Unreachable,
}

/// Of all hosts.
#[derive(Default)]
pub(crate) struct Hosts(Mutex<BTreeMap<String, HostState>>);

impl Hosts {
    pub(crate) fn get(&self, host: &str) -> HostState {
        self.0.lock().get(host).copied().unwrap_or_default()
    }

    pub(crate) fn set(&self, host: &str, state: HostState) {
        self.0.lock().insert(host.to_owned(), state);
    }
}
