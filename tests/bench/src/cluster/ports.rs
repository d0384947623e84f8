//! Addresses for the processes of a run.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

/// Below the ports that the system gives to outgoing connections: while a process is down, nothing else must take its
/// port.
const FIRST: u16 = 29_100;
const COUNT: u16 = 3_500;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback address that nobody listens on.
pub(crate) fn free_address() -> Result<SocketAddr> {
    for _ in 0..COUNT {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let address = SocketAddr::from(([127, 0, 0, 1], FIRST + offset));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT);
}
