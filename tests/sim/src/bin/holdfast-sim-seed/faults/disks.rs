//! Faults of disks.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;

use super::random_delay;
use crate::world::{World, node_name};

/// Longest fault.
const MAX_DURATION_MS: u64 = 4_000;
/// Longest quiet between two.
const MAX_INTERVAL_MS: u64 = 5_000;

pub(super) struct Disks {
    world: Arc<World>,
    is_active: bool,
}

impl Disks {
    pub(super) fn new(world: &Arc<World>) -> Self {
        Self { world: Arc::clone(world), is_active: false }
    }

    /// Injects a fault. Returns whether it did, and how long the fault lasts.
    pub(super) fn inject_or_heal(&mut self, at: Duration, rng: &mut StdRng) -> (bool, Duration) {
        if self.is_active {
            self.heal();
            self.world.record_at(at, "disks are mended");
            return (false, random_delay(rng, MAX_INTERVAL_MS) * self.world.plan.quiet_factor);
        }
        let number = rng.random_range(0..self.world.nodes.len());
        let disk = self.world.nodes[number].disk.clone();
        let what = match rng.random_range(0..10) {
            0..6 => {
                let delay = Duration::from_millis(rng.random_range(1..250));
                disk.set_sync_delay(delay);
                format!("is slow, {delay:?} a sync")
            }
            6..8 => {
                disk.fail_next_sync();
                "fails its next sync".to_owned()
            }
            _ => {
                disk.set_capacity(Some(disk.used_bytes() + rng.random_range(0..4_000)));
                "is full".to_owned()
            }
        };
        let lasts = random_delay(rng, MAX_DURATION_MS);
        self.world.record_at(at, format!("the disk of {} {what}, for {lasts:?}", node_name(number)));
        self.is_active = true;
        (true, lasts)
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.is_active = false;
        for slot in &self.world.nodes {
            slot.disk.set_sync_delay(Duration::ZERO);
            slot.disk.set_capacity(None);
        }
    }
}
