//! The checks at the end of a run, over everything that was applied and everything that clients saw.

mod calls;
mod events;
mod invariants;
mod look;
mod names;
mod namespaces;
mod places;
mod promises;
mod replay;
#[cfg(test)]
mod tests;
mod times;
mod twins;

use std::collections::BTreeMap;

use holdfast_cluster::Application;
use rand::Rng;

use crate::plan::rng_of;
use crate::world::World;
use twins::Twin;

/// Steps after which a twin is restored, at most.
const RESTORED_EVERY: usize = 12;

/// Replays what was applied against models, and compares what clients saw with that.
pub(crate) fn everything(world: &World) {
    let calls = world.history.calls();
    let mut findings = Vec::new();
    let mut locks = BTreeMap::new();
    for shard in world.map.shards(Application::Locks) {
        let (entries, restores) = (world.ledger.entries(&shard.id), world.ledger.restores(&shard.id));
        let core = twins::begin(&shard.id, world.plan.bounds.clone());
        let replayed = replay::replay((&shard.id, core), &entries, restores, twins(world, &shard.id), &mut findings);
        times::check(&shard.id, &replayed, &calls, &mut findings);
        promises::check(&shard.id, &replayed, &calls, &mut findings);
        locks.insert(shard.id.clone(), replayed);
    }
    let mut names = BTreeMap::new();
    for shard in world.map.shards(Application::Namespaces) {
        let replayed = namespaces::replay(&shard.id, &world.ledger.entries(&shard.id), &mut findings);
        names.insert(shard.id.clone(), replayed);
    }
    // What comes to light above explains what would not fit below.
    if findings.is_empty() {
        events::check(world, &locks, &mut findings);
    }
    if findings.is_empty() {
        calls::check(world, &calls, &locks, &names, &mut findings);
    }
    for finding in findings {
        world.violation(finding);
    }
}

/// One that is restored again and again, and one that gets other numbers besides.
fn twins(world: &World, shard: &str) -> Vec<Twin> {
    let mut rng = rng_of(world.plan.seed, "twins");
    let bounds = || world.plan.bounds.clone();
    let restored = Twin::new(shard, bounds(), rng.random_range(1..=RESTORED_EVERY), None);
    let renumbered = Twin::new(shard, bounds(), rng.random_range(1..=RESTORED_EVERY), Some(rng.random()));
    vec![restored, renumbered]
}
