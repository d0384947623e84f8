//! The gateways in the nodes of leaders, which the service reports. All channels and sessions of a client share them.

use std::collections::HashMap;
use std::time::Duration;

use http::uri::Authority;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::gateway::Gateway;
use crate::leader_hint::{LeaderHints, MAX_ADDRESSES, evict_if_full};

/// Shorter than for configured gateways: a call need not wait long for a gateway that it can do without.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Leaders {
    scheme: &'static str,
    ca_certificate: Option<String>,
    hints: Mutex<LeaderHints>,
    /// Made once for each address: TLS settings are read from the system's files.
    gateways: Mutex<HashMap<Authority, Gateway>>,
}

impl Leaders {
    /// `scheme` is `http` or `https`; the CA certificate is in PEM.
    pub(crate) fn new(scheme: &'static str, ca_certificate: Option<String>) -> Self {
        Self { scheme, ca_certificate, hints: Mutex::default(), gateways: Mutex::default() }
    }

    /// Remembers an address that the service reported for a namespace.
    pub(crate) fn learn(&self, namespace: &str, reported: &str) {
        self.hints.lock().learn(namespace, reported, Instant::now());
    }

    /// Returns the address to prefer for calls about a namespace.
    pub(crate) fn leader(&self, namespace: &str) -> Option<Authority> {
        self.hints.lock().leader(namespace).cloned()
    }

    pub(crate) fn remove(&self, namespace: &str) {
        self.hints.lock().remove(namespace);
    }

    /// Stops using an address for a while, after a connection to it failed.
    pub(crate) fn avoid(&self, address: &Authority) {
        self.hints.lock().avoid(address, Instant::now());
    }

    /// Returns when the address may be used: now, unless it is avoided.
    pub(crate) fn usable_at(&self, address: &Authority) -> Instant {
        self.hints.lock().usable_at(address, Instant::now())
    }

    /// Returns the gateway at an address, with the scheme and the TLS settings of the configured ones.
    pub(crate) fn gateway(&self, address: &Authority) -> Option<Gateway> {
        let mut gateways = self.gateways.lock();
        if let Some(gateway) = gateways.get(address) {
            return Some(gateway.clone());
        }
        let url = format!("{}://{address}", self.scheme);
        let gateway = Gateway::new(&url, self.ca_certificate.as_deref(), CONNECT_TIMEOUT).ok()?;
        evict_if_full(&mut gateways, MAX_ADDRESSES);
        gateways.insert(address.clone(), gateway.clone());
        Some(gateway)
    }
}
