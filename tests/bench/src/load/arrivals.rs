//! The times at which operations of an open loop are due.
//!
//! A thread of its own keeps them, because timers of the runtime are good to a millisecond only. Due operations wait in
//! a queue for a free worker; the queue has room for all of them, so that a system that stalls never slows them down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use async_channel::{Receiver, bounded};

/// Starts them: so many a second, for that long. The queue closes at the end.
pub(super) fn start(rate: f64, length: Duration, stop: Arc<AtomicBool>) -> Result<Receiver<Instant>> {
    let count = rate * length.as_secs_f64();
    ensure!((1.0..1e8).contains(&count), "an open loop of {rate}/s for {length:?} makes no sense");
    let count = count as u64;
    let (sender, receiver) = bounded(usize::try_from(count)?);
    let begun = Instant::now();
    let run = move || {
        for number in 0..count {
            let due = begun + Duration::from_secs_f64(number as f64 / rate);
            wait_until(due);
            if stop.load(Ordering::Relaxed) || sender.try_send(due).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("arrivals".to_owned()).spawn(run)?;
    Ok(receiver)
}

fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}
