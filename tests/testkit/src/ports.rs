//! Addresses for the processes of a test.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the system gives to outgoing connections. While a process is down nothing else must take its
/// port, least of all a peer that tries to connect to it, which would then connect to itself.
const FIRST_PORT: u16 = 17_000;
const PORT_COUNT: u16 = 12_000;
/// Test programs that run at the same time have a number below this in `HOLDFAST_TEST_LANE`, and ports of their own.
const LANES: u16 = 8;

static NEXT_OFFSET: AtomicU16 = AtomicU16::new(0);

/// Returns a loopback address on which no process listens, another one each time.
///
/// # Panics
/// If all ports are taken.
pub fn free_address() -> SocketAddr {
    let lane = std::env::var("HOLDFAST_TEST_LANE").ok().and_then(|lane| lane.parse().ok()).unwrap_or(LANES - 1) % LANES;
    let (first, count) = (FIRST_PORT + lane * (PORT_COUNT / LANES), PORT_COUNT / LANES);
    // Each process starts at another port, so that two test runs seldom try the same ones.
    let spread = u16::try_from(u32::from(count) * (std::process::id() % 97) / 97).expect("it is below the count");
    for _ in 0..count {
        let offset = (spread + NEXT_OFFSET.fetch_add(1, Ordering::Relaxed) % count) % count;
        let address = SocketAddr::from(([127, 0, 0, 1], first + offset));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port between {first} and {}", first + count);
}
