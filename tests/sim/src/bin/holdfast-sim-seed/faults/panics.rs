//! Injected panics, in runs that have them: in the state machine of a replica, or in a task of a node or gateway. Each
//! occurs once, where its point is passed next: a panic that every replica repeats ends the shard, as it should.

use std::sync::Arc;
use std::time::Duration;

use holdfast_mutations::{PANIC_POINTS, inject_panic, pending_panics};
use rand::Rng;
use rand::rngs::StdRng;

use super::random_delay;
use crate::plan::rng_of;
use crate::world::World;

/// Longest time between two.
const MAX_INTERVAL_MS: u64 = 3_000;
/// How often a point is passed at most before the panic occurs there.
const MAX_PASSES: u64 = 40;
/// So many in a hundred are in the state machine, which is one point of many.
const APPLY_PERCENT: u32 = 30;
const APPLY: &str = "apply";
/// A shard that panics twice in a row at the same entry has failed for good on that replica, as it should. So it gets
/// time to pass the entry: a second until a restart, and the time to apply the log again.
const MIN_APPLY_PANIC_INTERVAL: Duration = Duration::from_secs(8);

pub(super) struct Panics {
    world: Arc<World>,
    /// Of its own: up to the first panic a run is the same as that of the seed without any.
    rng: StdRng,
    next: Option<Duration>,
    /// When a panic in the state machine was last seen to be planned.
    last_apply_panic: Option<Duration>,
}

impl Panics {
    pub(super) fn new(world: &Arc<World>) -> Self {
        Self { world: Arc::clone(world), rng: rng_of(world.plan.seed, "panics"), next: None, last_apply_panic: None }
    }

    pub(super) fn start(&mut self, at: Duration) {
        if self.world.plan.panics {
            self.next = Some(at + random_delay(&mut self.rng, MAX_INTERVAL_MS));
        }
    }

    /// Injects the next one if that is due. Returns whether it did.
    pub(super) fn step(&mut self, at: Duration) -> bool {
        if self.next.is_none_or(|next| next > at) {
            return false;
        }
        self.next = Some(at + random_delay(&mut self.rng, MAX_INTERVAL_MS));
        let in_apply = self.rng.random_ratio(APPLY_PERCENT, 100);
        let drawn = if in_apply { APPLY } else { PANIC_POINTS[self.rng.random_range(0..PANIC_POINTS.len())] };
        let point = self.world.plan.panics_at.unwrap_or(drawn);
        if point == APPLY {
            if pending_panics().iter().any(|pending| pending == APPLY) {
                self.last_apply_panic = Some(at);
            }
            if self.last_apply_panic.is_some_and(|planned| at < planned + MIN_APPLY_PANIC_INTERVAL) {
                return false;
            }
            self.last_apply_panic = Some(at);
        }
        // A point that is seldom passed must panic soon, one that is passed all the time must not do so at once.
        let most = self.rng.random_range(0..MAX_PASSES);
        let passed = self.rng.random_range(0..=most);
        self.world.record_at(at, format!("a panic is planned where {point} has been passed {passed} times from now"));
        inject_panic(point, passed)
    }

    /// Injects no more.
    pub(super) fn stop(&mut self) {
        self.next = None;
    }
}
