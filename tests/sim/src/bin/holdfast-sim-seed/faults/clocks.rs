//! Faults of wall clocks: they jump.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;

use super::random_delay;
use crate::world::{World, node_name};

/// Furthest that a wall clock is off, either way.
const MAX_SKEW_MS: i64 = 60_000;
/// Longest time between two jumps.
const MAX_INTERVAL_MS: u64 = 4_000;

pub(super) struct Clocks {
    world: Arc<World>,
}

impl Clocks {
    pub(super) fn new(world: &Arc<World>) -> Self {
        Self { world: Arc::clone(world) }
    }

    /// Sets the wall clock of a node. Answers that it did, and how long it is quiet then.
    pub(super) fn inject(&mut self, at: Duration, rng: &mut StdRng) -> (bool, Duration) {
        let number = rng.random_range(0..self.world.nodes.len());
        let skew_ms = rng.random_range(-MAX_SKEW_MS..=MAX_SKEW_MS);
        self.world.nodes[number].clocks.wall_skew_ms.store(skew_ms, Ordering::Relaxed);
        self.world.record_at(at, format!("the wall clock of {} is off by {skew_ms} ms", node_name(number)));
        (true, random_delay(rng, MAX_INTERVAL_MS) * self.world.plan.quiet_factor)
    }
}
