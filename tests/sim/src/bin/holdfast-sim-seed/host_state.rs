//! The state of a host, as a connection to it finds it.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// The state of a host, as a connection to it finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum HostState {
    /// A process listens.
    Up,
    /// The host runs without the process: it refuses connections.
    ConnectionRefused,
    /// The host is off: it does not answer.
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
