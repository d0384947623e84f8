//! What the service reported about the leaders of namespaces, and when a session moves to its leader's gateway: pure
//! bookkeeping, without clocks or connections.
//!
//! A hint is never more than that: any gateway serves every call, and a wrong hint costs some milliseconds.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use http::uri::Authority;
use tokio::time::Instant;

/// Namespaces with a hint. Further ones evict others, whose next response brings the hint back.
const MAX_NAMESPACES: usize = 1_024;
/// Gateways at leaders that a client knows: as many as a cluster has nodes, and some.
pub(crate) const MAX_ADDRESSES: usize = 64;
/// How long an address is not tried again after a connection to it failed.
const AVOID_FOR: Duration = Duration::from_secs(30);
/// The shortest time between two moves of a session, however often the leader changes.
const MOVE_INTERVAL: Duration = Duration::from_secs(5);

/// Parses the address of a leader's gateway: `host:port`, and nothing else.
pub(crate) fn parse_address(text: &str) -> Option<Authority> {
    let address: Authority = text.parse().ok()?;
    let is_plain = !text.contains('@') && !address.host().is_empty() && address.port_u16().is_some();
    is_plain.then_some(address)
}

/// Evicts some entry if there is no capacity for another one.
pub(crate) fn evict_if_full<K: Clone + Eq + Hash, V>(map: &mut HashMap<K, V>, capacity: usize) {
    if map.len() >= capacity
        && let Some(key) = map.keys().next().cloned()
    {
        map.remove(&key);
    }
}

/// The gateways at the leaders of namespaces.
#[derive(Debug, Default)]
pub(crate) struct LeaderHints {
    by_namespace: HashMap<String, Authority>,
    /// Addresses that could not be reached, and until when they are not used.
    avoided_until: HashMap<Authority, Instant>,
}

impl LeaderHints {
    /// Remembers an address that the service reported for a namespace. Ignores it if it is invalid, or avoided.
    pub(crate) fn learn(&mut self, namespace: &str, reported: &str, now: Instant) {
        // Nearly every response repeats the hint.
        if self.leader(namespace).is_some_and(|known| known.as_str() == reported) {
            return;
        }
        let address = parse_address(reported).filter(|address| self.usable_at(address, now) <= now);
        let Some(address) = address else { return };
        evict_if_full(&mut self.by_namespace, MAX_NAMESPACES);
        self.by_namespace.insert(namespace.to_owned(), address);
    }

    /// Returns the address to prefer for calls about a namespace.
    pub(crate) fn leader(&self, namespace: &str) -> Option<&Authority> {
        self.by_namespace.get(namespace)
    }

    pub(crate) fn remove(&mut self, namespace: &str) {
        self.by_namespace.remove(namespace);
    }

    /// Stops using an address for 30 s, after a connection to it failed.
    pub(crate) fn avoid(&mut self, address: &Authority, now: Instant) {
        self.by_namespace.retain(|_, known| known != address);
        self.avoided_until.retain(|_, until| *until > now);
        evict_if_full(&mut self.avoided_until, MAX_ADDRESSES);
        self.avoided_until.insert(address.clone(), now + AVOID_FOR);
    }

    /// Returns when the address may be used: `now`, unless it is avoided.
    pub(crate) fn usable_at(&self, address: &Authority, now: Instant) -> Instant {
        self.avoided_until.get(address).map_or(now, |until| now.max(*until))
    }
}

/// When a session moves to its leader's gateway.
#[derive(Debug)]
pub(crate) struct MovePlan {
    /// Where the session is to move, and from when on the address may be used.
    target: Option<(Authority, Instant)>,
    next_move_at: Instant,
}

impl MovePlan {
    /// Creates a plan without a move. The first one may begin at once.
    pub(crate) fn new(now: Instant) -> Self {
        Self { target: None, next_move_at: now }
    }

    /// Plans the move of a session at the gateway `in_use` to its leader's, if that is known and another one.
    pub(crate) fn set_target(&mut self, leader: Option<(Authority, Instant)>, in_use: &Authority) {
        self.target = leader.filter(|(address, _)| address != in_use);
    }

    /// Returns when the planned move is due.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.target.as_ref().map(|(_, usable_at)| self.next_move_at.max(*usable_at))
    }

    /// Starts the planned move if it is due, and returns where it goes. The next one is due 5 s later or more.
    pub(crate) fn start_if_due(&mut self, now: Instant) -> Option<Authority> {
        if self.due_at().is_none_or(|due_at| due_at > now) {
            return None;
        }
        self.next_move_at = now + MOVE_INTERVAL;
        self.target.take().map(|(address, _)| address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "127.0.0.1:1001";
    const B: &str = "127.0.0.1:1002";

    fn address(text: &str) -> Authority {
        parse_address(text).unwrap()
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for text in ["127.0.0.1:8080", "node-1.example:443", "[::1]:8080"] {
            assert_eq!(address(text), text);
        }
        let others = ["", "host", "host:", ":80", "host:99999", "ho st:80", "me@host:80", "host:80/x", "http://host"];
        for text in others {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }

    #[test]
    fn the_latest_report_counts_and_invalid_ones_are_ignored() {
        let (mut hints, now) = (LeaderHints::default(), Instant::now());
        assert_eq!(hints.leader("n"), None);
        hints.learn("n", A, now);
        hints.learn("n", "http://127.0.0.1:1003", now);
        assert_eq!((hints.leader("n"), hints.leader("other")), (Some(&address(A)), None));
        hints.learn("n", B, now);
        assert_eq!(hints.leader("n"), Some(&address(B)));
        hints.remove("n");
        assert_eq!(hints.leader("n"), None);
    }

    #[test]
    fn an_address_that_failed_is_not_used_for_a_while() {
        let (mut hints, now) = (LeaderHints::default(), Instant::now());
        for (namespace, reported) in [("n", A), ("m", A), ("o", B)] {
            hints.learn(namespace, reported, now);
        }
        hints.avoid(&address(A), now);
        assert_eq!((hints.leader("n"), hints.leader("m"), hints.leader("o")), (None, None, Some(&address(B))));
        let end = now + AVOID_FOR;
        hints.learn("n", A, end - Duration::from_millis(1));
        assert_eq!((hints.leader("n"), hints.usable_at(&address(A), now)), (None, end));
        hints.learn("n", A, end);
        assert_eq!((hints.leader("n"), hints.usable_at(&address(A), end)), (Some(&address(A)), end));
    }

    #[test]
    fn hints_are_bounded() {
        let (mut hints, now) = (LeaderHints::default(), Instant::now());
        for number in 0..2 * MAX_NAMESPACES {
            let namespace = format!("n{number}");
            hints.learn(&namespace, A, now);
            assert!(hints.leader(&namespace).is_some(), "the newest is known");
        }
        assert_eq!(hints.by_namespace.len(), MAX_NAMESPACES);
        for port in 1..=2 * MAX_ADDRESSES {
            hints.avoid(&address(&format!("127.0.0.1:{port}")), now);
        }
        assert_eq!(hints.avoided_until.len(), MAX_ADDRESSES);
        hints.avoid(&address(A), now + AVOID_FOR);
        assert_eq!(hints.avoided_until.len(), 1, "those that are over are gone");
    }

    #[test]
    fn a_session_moves_at_once_and_then_stays() {
        let now = Instant::now();
        let mut plan = MovePlan::new(now);
        assert_eq!((plan.due_at(), plan.start_if_due(now)), (None, None));
        plan.set_target(Some((address(A), now)), &address(B));
        assert_eq!((plan.due_at(), plan.start_if_due(now)), (Some(now), Some(address(A))));
        assert_eq!(plan.due_at(), None, "it has begun");
        plan.set_target(Some((address(A), now)), &address(A));
        assert_eq!(plan.due_at(), None, "it is there");
        plan.set_target(None, &address(A));
        assert_eq!(plan.due_at(), None, "no leader is known");
    }

    #[test]
    fn two_gateways_that_name_each_other_do_not_move_a_session_to_and_fro() {
        let began = Instant::now();
        let mut plan = MovePlan::new(began);
        let (mut in_use, mut other, mut moves) = (address(A), address(B), 0);
        for ms in 0..20_000 {
            let now = began + Duration::from_millis(ms);
            plan.set_target(Some((other.clone(), now)), &in_use);
            if plan.start_if_due(now).is_some() {
                std::mem::swap(&mut in_use, &mut other);
                moves += 1;
            }
        }
        assert_eq!(moves, 4, "at 0, 5, 10 and 15 s");
    }

    #[test]
    fn a_move_waits_until_its_address_may_be_used() {
        let now = Instant::now();
        let (mut plan, later) = (MovePlan::new(now), now + AVOID_FOR);
        plan.set_target(Some((address(A), later)), &address(B));
        assert_eq!((plan.due_at(), plan.start_if_due(now)), (Some(later), None));
        assert_eq!(plan.start_if_due(later), Some(address(A)));
    }
}
