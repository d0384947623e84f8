//! What the lock engine costs: bytes for a hold, and time for what must not grow with what waits. The figures are
//! printed; only those that do not depend on the machine are asserted.
//!
//! `cargo test --release -p holdfast-core --test measure -- --ignored --nocapture --test-threads 1`

#![expect(clippy::disallowed_methods, reason = "time is what is measured here")]

mod allocations;
mod charge;
mod charge_of_things;
mod cost;
mod ends;
mod memory;
mod pairs;
mod pools;
mod shard;
mod speed;

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Tests measure one at a time: bytes are counted for the whole process.
fn exclusive() -> MutexGuard<'static, ()> {
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner)
}
