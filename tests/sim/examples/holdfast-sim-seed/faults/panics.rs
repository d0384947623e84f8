//! Panics in the midst of work, in runs that have them: of the state machine of a replica, or of a task of a node or a
//! gateway. One strikes wherever its point is passed next, and once: a panic that comes back on every replica would be
//! the end of the shard, as it should be.

use std::sync::Arc;
use std::time::Duration;

use holdfast_plant::{POINTS, arm_panic, armed_panics};
use rand::Rng;
use rand::rngs::StdRng;

use super::soon;
use crate::plan::rng_of;
use crate::world::World;

/// Longest time between two.
const LONGEST_QUIET_MS: u64 = 3_000;
/// How often a point is passed at most before the panic strikes there.
const MOST_PASSED: u64 = 40;
/// So many in a hundred are in the state machine, which is one point of many.
const IN_APPLY_OF_HUNDRED: u32 = 30;
const APPLY: &str = "apply";
/// A replica that breaks twice in a row at the same entry has failed for good, as it should. So it gets so long to get
/// past it: a second for its new start, and what it takes to apply everything again.
const PAST_AN_ENTRY: Duration = Duration::from_secs(8);

pub(super) struct Panics {
    world: Arc<World>,
    /// Of its own: up to the first panic a run is the same as that of the seed without any.
    rng: StdRng,
    next: Option<Duration>,
    /// When a panic in the state machine was last seen to be planned.
    in_apply: Option<Duration>,
}

impl Panics {
    pub(super) fn new(world: &Arc<World>) -> Self {
        Self { world: Arc::clone(world), rng: rng_of(world.plan.seed, "panics"), next: None, in_apply: None }
    }

    pub(super) fn begin(&mut self, at: Duration) {
        if self.world.plan.panics {
            self.next = Some(at + soon(&mut self.rng, LONGEST_QUIET_MS));
        }
    }

    /// Plans the next one when that is due. Answers whether it did.
    pub(super) fn step(&mut self, at: Duration) -> bool {
        if self.next.is_none_or(|next| next > at) {
            return false;
        }
        self.next = Some(at + soon(&mut self.rng, LONGEST_QUIET_MS));
        let in_apply = self.rng.random_ratio(IN_APPLY_OF_HUNDRED, 100);
        let drawn = if in_apply { APPLY } else { POINTS[self.rng.random_range(0..POINTS.len())] };
        let point = self.world.plan.panics_at.unwrap_or(drawn);
        if point == APPLY {
            if armed_panics().iter().any(|armed| armed == APPLY) {
                self.in_apply = Some(at);
            }
            if self.in_apply.is_some_and(|planned| at < planned + PAST_AN_ENTRY) {
                return false;
            }
            self.in_apply = Some(at);
        }
        // What is passed now and then only must be met soon, what is passed all the time must not be met at once.
        let most = self.rng.random_range(0..MOST_PASSED);
        let passed = self.rng.random_range(0..=most);
        self.world.note_at(at, format!("a panic is planned where {point} has been passed {passed} times from now"));
        arm_panic(point, passed)
    }

    /// No more are planned.
    pub(super) fn end(&mut self) {
        self.next = None;
    }
}
