//! The checks at the end of a run, over everything that was applied and everything that clients saw.

mod calls;
mod events;
mod invariants;
mod look;
mod names;
mod namespaces;
mod places;
mod replay;
mod times;

use std::collections::BTreeMap;

use holdfast_cluster::Application;

use crate::world::World;

/// Replays what was applied against models, and compares what clients saw with that.
pub(crate) fn everything(world: &World) {
    let calls = world.history.calls();
    let mut findings = Vec::new();
    let mut locks = BTreeMap::new();
    for shard in world.map.shards(Application::Locks) {
        let (entries, restores) = (world.ledger.entries(&shard.id), world.ledger.restores(&shard.id));
        let replayed = replay::replay(&shard.id, &entries, restores, &mut findings);
        times::check(&shard.id, &replayed, &calls, &mut findings);
        locks.insert(shard.id.clone(), replayed);
    }
    let mut names = BTreeMap::new();
    for shard in world.map.shards(Application::Namespaces) {
        let replayed = namespaces::replay(&shard.id, &world.ledger.entries(&shard.id), &mut findings);
        names.insert(shard.id.clone(), replayed);
    }
    events::check(world, &locks, &mut findings);
    // What comes to light above explains what would not fit below.
    if findings.is_empty() {
        calls::check(world, &calls, &locks, &names, &mut findings);
    }
    for finding in findings {
        world.violation(finding);
    }
}
