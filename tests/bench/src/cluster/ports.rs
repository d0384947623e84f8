//! Addresses for the processes of a run.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

/// Below the ports that the system gives to outgoing connections: while a process is down, nothing else must take its
/// port.
const FIRST_PORT: u16 = 29_100;
const PORT_COUNT: u16 = 3_500;

static NEXT_OFFSET: AtomicU16 = AtomicU16::new(0);

/// A loopback address that nobody listens on.
pub(crate) fn free_address() -> Result<SocketAddr> {
    for _ in 0..PORT_COUNT {
        let offset = NEXT_OFFSET.fetch_add(1, Ordering::Relaxed) % PORT_COUNT;
        let address = SocketAddr::from(([127, 0, 0, 1], FIRST_PORT + offset));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port between {FIRST_PORT} and {}", FIRST_PORT + PORT_COUNT);
}
