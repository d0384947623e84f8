//! Addresses for the processes of a test.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the system gives to outgoing connections: while a process is down, nothing else must take its
/// port, least of all a peer that tries to connect to it and would meet itself.
const FIRST_PORT: u16 = 17_000;
const PORT_COUNT: u16 = 12_000;

static NEXT_OFFSET: AtomicU16 = AtomicU16::new(0);

/// A loopback address that nobody listens on.
pub(crate) fn free_address() -> SocketAddr {
    // Where to begin differs from process to process, so that two test runs seldom look at the same ports.
    let spread = u16::try_from(u32::from(PORT_COUNT) * (std::process::id() % 97) / 97).expect("it is below COUNT");
    for _ in 0..PORT_COUNT {
        let offset = (spread + NEXT_OFFSET.fetch_add(1, Ordering::Relaxed) % PORT_COUNT) % PORT_COUNT;
        let address = SocketAddr::from(([127, 0, 0, 1], FIRST_PORT + offset));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port between {FIRST_PORT} and {}", FIRST_PORT + PORT_COUNT);
}
