//! What strangers and processes of the cluster may have of a node's port, in all and by address.
//!
//! A connection passes through kinds: it begins with its handshake, and then counts as what it turns out to be. Each
//! kind has bounds of its own, so no number of strangers takes the connections of processes, or the files of the store.
//! At a bound, a new connection ends the oldest of its kind: whoever says nothing must not keep out those that do. Of
//! those of HTTP, it ends idle ones first. Only processes keep their connections, and further ones are rejected.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use holdfast_types::limit::{self, Limit, counted_address};
use metrics::counter;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Addresses of processes in memory. A handshake from there has bounds that no stranger elsewhere can reach.
const MAX_KNOWN_ADDRESSES: usize = 1_024;

/// How many connections of one kind a port has at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBound {
    /// In all.
    pub total: usize,
    /// From one address; an IPv6 network of 64 bits counts as one.
    pub per_address: usize,
}

/// The bounds of a port. The defaults are those of the table of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLimits {
    /// Handshakes from addresses of which nothing is known.
    pub handshakes: PortBound,
    /// Handshakes from addresses from which a process of the cluster has connected or is expected.
    pub known_handshakes: PortBound,
    /// Connections without a client certificate, where TLS is on.
    pub anonymous: PortBound,
    /// Other connections that speak HTTP: those of operators, and of probes where TLS is off.
    pub http: PortBound,
    /// Connections of processes of the cluster.
    pub processes: usize,
}

/// What a connection counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Handshake,
    KnownHandshake,
    Anonymous,
    Http,
    Process,
}

/// The connections of a port.
#[derive(Debug, Default)]
pub struct PortConnections {
    limits: PortLimits,
    state: Mutex<PortState>,
}

/// A connection of a port, counted until this is dropped.
#[derive(Debug)]
pub struct PortConnection {
    port: Arc<PortConnections>,
    address: IpAddr,
    key: (Kind, u64),
    ended: CancellationToken,
    activity: ConnectionActivity,
}

/// The calls in progress on a connection of HTTP. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ConnectionActivity(Arc<AtomicUsize>);

/// A call in progress, until this is dropped.
#[derive(Debug)]
pub struct BusyGuard(ConnectionActivity);

#[derive(Debug, Default)]
struct PortState {
    next_id: u64,
    /// By kind, and then in the order in which they became one.
    connections: BTreeMap<(Kind, u64), CountedConnection>,
    /// The addresses from which processes connected or were expected last, the latest first.
    known: VecDeque<IpAddr>,
}

#[derive(Clone, Debug)]
struct CountedConnection {
    address: IpAddr,
    ended: CancellationToken,
    activity: ConnectionActivity,
}

impl ConnectionActivity {
    /// Notes that a call begins.
    pub fn begin(&self) -> BusyGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        BusyGuard(self.clone())
    }

    /// Returns whether calls are in progress.
    pub fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for PortLimits {
    fn default() -> Self {
        let value = |limit: &Limit| usize::try_from(limit.default_value()).unwrap_or(usize::MAX);
        let bound = |total, per_address| PortBound { total: value(total), per_address: value(per_address) };
        Self {
            handshakes: bound(&limit::NODE_HANDSHAKES, &limit::NODE_HANDSHAKES_OF_ADDRESS),
            known_handshakes: bound(&limit::NODE_HANDSHAKES, &limit::NODE_HANDSHAKES),
            anonymous: bound(&limit::NODE_PROBES, &limit::NODE_PROBES),
            http: bound(&limit::NODE_HTTP_CONNECTIONS, &limit::NODE_HTTP_CONNECTIONS_OF_ADDRESS),
            processes: value(&limit::NODE_PROCESSES),
        }
    }
}

impl PortLimits {
    /// Returns the bound of a kind. Processes are rejected at theirs, and end no other.
    fn bound(&self, kind: Kind) -> PortBound {
        match kind {
            Kind::Handshake => self.handshakes,
            Kind::KnownHandshake => self.known_handshakes,
            Kind::Anonymous => self.anonymous,
            Kind::Http => self.http,
            Kind::Process => PortBound { total: self.processes, per_address: self.processes },
        }
    }
}

impl Kind {
    /// The limits of its number in all and from one address.
    fn limits(self) -> (&'static Limit, &'static Limit) {
        match self {
            Self::Handshake => (&limit::NODE_HANDSHAKES, &limit::NODE_HANDSHAKES_OF_ADDRESS),
            Self::KnownHandshake => (&limit::NODE_HANDSHAKES, &limit::NODE_HANDSHAKES),
            Self::Anonymous => (&limit::NODE_PROBES, &limit::NODE_PROBES),
            Self::Http => (&limit::NODE_HTTP_CONNECTIONS, &limit::NODE_HTTP_CONNECTIONS_OF_ADDRESS),
            Self::Process => (&limit::NODE_PROCESSES, &limit::NODE_PROCESSES),
        }
    }
}

impl PortConnections {
    /// Creates a port without connections.
    pub fn new(limits: PortLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// Notes addresses from which processes of the cluster may connect, so that no stranger elsewhere keeps them out.
    pub fn expect_processes(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        let mut state = self.state.lock();
        addresses.into_iter().for_each(|address| state.remember(counted_address(address)));
    }

    /// Counts a connection that was accepted from this address and is in its handshake.
    pub fn accept(self: &Arc<Self>, address: IpAddr) -> PortConnection {
        let counted = CountedConnection {
            address: counted_address(address),
            ended: CancellationToken::new(),
            activity: ConnectionActivity::default(),
        };
        let CountedConnection { address, ended, activity } = counted.clone();
        let mut state = self.state.lock();
        let kind = if state.known.contains(&address) { Kind::KnownHandshake } else { Kind::Handshake };
        state.evict_for(kind, self.limits.bound(kind), address);
        let key = state.insert(kind, counted);
        drop(state);
        PortConnection { port: Arc::clone(self), address, key, ended, activity }
    }
}

impl PortState {
    /// Ends as many connections of a kind as one more from this address needs.
    fn evict_for(&mut self, kind: Kind, bound: PortBound, address: IpAddr) {
        let (in_all, of_address) = kind.limits();
        while self.count(kind, |connection| connection.address == address) >= bound.per_address.max(1) {
            self.end_oldest(kind, of_address, |connection| connection.address == address);
        }
        while self.count(kind, |_| true) >= bound.total.max(1) {
            self.end_oldest(kind, in_all, |_| true);
        }
    }

    fn count(&self, kind: Kind, is_meant: impl Fn(&CountedConnection) -> bool) -> usize {
        self.of_kind(kind).filter(|(_, connection)| is_meant(connection)).count()
    }

    fn end_oldest(&mut self, kind: Kind, limit: &'static Limit, is_meant: impl Fn(&CountedConnection) -> bool) {
        let meant = self.of_kind(kind).filter(|(_, connection)| is_meant(connection));
        // A long call of an operator, such as a backup, goes on beside many short ones. Without a certificate, a
        // connection has little time anyway.
        let is_kept = |connection: &CountedConnection| kind == Kind::Http && connection.activity.is_busy();
        let oldest = meant.map(|(key, connection)| (is_kept(connection), *key)).min().map(|(_, key)| key);
        if let Some(connection) = oldest.and_then(|key| self.connections.remove(&key)) {
            connection.ended.cancel();
            counter!("holdfast_node_connections_refused_total", "limit" => limit.name).increment(1);
        }
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&(Kind, u64), &CountedConnection)> {
        self.connections.range((kind, 0)..=(kind, u64::MAX))
    }

    fn insert(&mut self, kind: Kind, connection: CountedConnection) -> (Kind, u64) {
        let key = (kind, self.next_id);
        self.next_id += 1;
        self.connections.insert(key, connection);
        key
    }

    fn remember(&mut self, address: IpAddr) {
        self.known.retain(|known| *known != address);
        self.known.truncate(MAX_KNOWN_ADDRESSES - 1);
        self.known.push_front(address);
    }
}

impl PortConnection {
    /// Cancelled when the connection must end, because others need its place.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Its calls, if it speaks HTTP.
    pub fn activity(&self) -> ConnectionActivity {
        self.activity.clone()
    }

    /// The handshake is over, and the peer speaks HTTP.
    pub fn became_http(&mut self, has_client_cert: bool) {
        self.become_kind(if has_client_cert { Kind::Http } else { Kind::Anonymous });
    }

    /// The peer has proven that it belongs to the cluster.
    ///
    /// # Errors
    /// Why it is rejected: too many others are connected.
    pub fn became_process(&mut self) -> Result<(), String> {
        let (port, row) = (Arc::clone(&self.port), &limit::NODE_PROCESSES);
        let mut state = port.state.lock();
        state.remember(self.address);
        if state.count(Kind::Process, |_| true) < port.limits.processes {
            self.count_as(&mut state, Kind::Process);
            return Ok(());
        }
        counter!("holdfast_node_connections_refused_total", "limit" => row.name).increment(1);
        let (what, max) = (row.what.first().unwrap_or(&row.name), port.limits.processes);
        Err(format!("{what} is limited to {max} ({}); stop gateways that are not needed", row.name))
    }

    fn become_kind(&mut self, kind: Kind) {
        let port = Arc::clone(&self.port);
        let mut state = port.state.lock();
        // One that was ended meanwhile no longer counts, and ends no other.
        if state.connections.contains_key(&self.key) {
            state.evict_for(kind, port.limits.bound(kind), self.address);
            self.count_as(&mut state, kind);
        }
    }

    fn count_as(&mut self, state: &mut PortState, kind: Kind) {
        if let Some(connection) = state.connections.remove(&self.key) {
            self.key = state.insert(kind, connection);
        }
    }
}

impl Drop for PortConnection {
    fn drop(&mut self) {
        self.port.state.lock().connections.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: PortBound = PortBound { total: 1, per_address: 1 };

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn limits() -> PortLimits {
        let handshakes = PortBound { total: 3, per_address: 2 };
        PortLimits { handshakes, known_handshakes: ONE, anonymous: ONE, http: ONE, processes: 2 }
    }

    fn ended(connections: &[PortConnection]) -> Vec<bool> {
        connections.iter().map(|connection| connection.ended.is_cancelled()).collect()
    }

    #[test]
    fn a_handshake_too_many_ends_the_oldest_of_its_address_or_of_all() {
        let port = PortConnections::new(limits());
        let mut connections: Vec<_> = [1, 2, 2].map(|last| port.accept(address(last))).into();
        assert_eq!(ended(&connections), [false; 3]);
        connections.push(port.accept(address(2)));
        assert_eq!(ended(&connections), [false, true, false, false], "the oldest of the address");
        connections.push(port.accept(address(3)));
        assert_eq!(ended(&connections), [true, true, false, false, false], "the oldest of all");
    }

    #[test]
    fn many_handshakes_of_one_address_end_none_of_another() {
        let port = PortConnections::new(PortLimits::default());
        let neighbour = port.accept(address(1));
        let silent: Vec<_> = (0..1_000).map(|_| port.accept(address(2))).collect();
        assert_eq!(ended(&silent).iter().filter(|ended| !**ended).count(), 8);
        assert!(!neighbour.ended.is_cancelled());
        let others: Vec<_> = (3..=57).map(|last| port.accept(address(last))).collect();
        assert_eq!(1 + 8 + others.len(), 64, "as many as there may be");
        assert!(!neighbour.ended.is_cancelled());
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let port = PortConnections::new(limits());
        let network = ["2001:db8::1", "2001:db8::2", "2001:db8::3"];
        let connections = network.map(|address| port.accept(address.parse().unwrap()));
        assert_eq!(ended(&connections), [true, false, false]);
    }

    #[test]
    fn strangers_end_no_handshake_from_an_address_of_a_process() {
        let port = PortConnections::new(limits());
        let mut process = port.accept(address(1));
        process.became_process().unwrap();
        let back = port.accept(address(1));
        let _strangers: Vec<_> = (2..20).map(|last| port.accept(address(last))).collect();
        assert!(!back.ended.is_cancelled() && !process.ended.is_cancelled());
    }

    #[test]
    fn strangers_end_no_handshake_from_an_address_where_a_process_is_expected() {
        let port = PortConnections::new(limits());
        port.expect_processes([address(1)]);
        let node = port.accept(address(1));
        let _strangers: Vec<_> = (2..20).map(|last| port.accept(address(last))).collect();
        assert!(!node.ended.is_cancelled());
    }

    #[test]
    fn as_many_addresses_are_known_as_there_may_be_and_those_in_use_stay() {
        let mut state = PortState::default();
        let address = |number: usize| IpAddr::from(u32::try_from(number).unwrap().to_be_bytes());
        for number in 0..MAX_KNOWN_ADDRESSES * 2 {
            state.remember(address(number));
            state.remember(address(0));
        }
        assert_eq!(state.known.len(), MAX_KNOWN_ADDRESSES);
        assert!(state.known.contains(&address(0)) && !state.known.contains(&address(1)));
    }

    #[test]
    fn each_kind_has_a_bound_of_its_own_and_no_process_or_other_kind_gives_way() {
        let port = PortConnections::new(limits());
        let accept_http = |has_client_cert| {
            let mut connection = port.accept(address(1));
            connection.became_http(has_client_cert);
            connection
        };
        let connections = [true, false, true, false].map(accept_http);
        assert_eq!(ended(&connections), [true, true, false, false]);
        let accept_process = || {
            let mut connection = port.accept(address(1));
            connection.became_process().map(|()| connection)
        };
        let processes = [accept_process().unwrap(), accept_process().unwrap()];
        let rejected = accept_process().err().unwrap();
        assert!(rejected.contains("limited to 2") && rejected.contains("node_processes"), "{rejected}");
        assert_eq!((ended(&connections), ended(&processes)), (vec![true, true, false, false], vec![false; 2]));
        drop(processes);
        assert!(accept_process().is_ok());
    }

    #[test]
    fn connections_of_http_that_are_idle_end_before_busy_ones() {
        let port = PortConnections::new(PortLimits { http: PortBound { total: 2, per_address: 2 }, ..limits() });
        let accept_http = || {
            let mut connection = port.accept(address(1));
            connection.became_http(true);
            connection
        };
        let mut connections = vec![accept_http(), accept_http()];
        let _backup = connections[0].activity().begin();
        drop(connections[1].activity().begin());
        connections.push(accept_http());
        assert_eq!(ended(&connections), [false, true, false]);
        let _other = connections[2].activity().begin();
        connections.push(accept_http());
        assert_eq!(ended(&connections), [true, true, false, false], "the oldest if all are busy");
    }

    #[test]
    fn connections_of_http_from_one_address_end_none_of_another() {
        let port = PortConnections::new(PortLimits { http: PortBound { total: 4, per_address: 2 }, ..limits() });
        let connections = [1, 2, 2, 2].map(|last| {
            let mut connection = port.accept(address(last));
            connection.became_http(true);
            connection
        });
        assert_eq!(ended(&connections), [false, true, false, false]);
    }

    #[test]
    fn nothing_is_kept_of_connections_that_are_gone() {
        let port = PortConnections::new(limits());
        let mut connections: Vec<_> = (0..6).map(|last| port.accept(address(last))).collect();
        connections[4].became_http(true);
        connections[0].became_http(true);
        assert_eq!(ended(&connections), [true, true, true, false, false, false], "one that is gone ends no other");
        drop(connections);
        assert!(port.state.lock().connections.is_empty());
    }

    #[test]
    fn the_limits_of_a_port_add_up_to_a_thousand_connections() {
        let PortLimits { handshakes, known_handshakes, anonymous, http, processes } = PortLimits::default();
        let total = handshakes.total + known_handshakes.total + anonymous.total + http.total + processes;
        assert_eq!(total, 1_024);
    }
}
