//! The checks at the end of a run, over everything that was applied and everything that clients saw.

mod ask_calls;
mod ask_holds;
#[cfg(test)]
mod ask_tests;
mod asks;
mod barrier_calls;
#[cfg(test)]
mod barrier_tests;
mod barriers;
mod calls;
mod condition_calls;
#[cfg(test)]
mod condition_tests;
mod conditions;
mod early_expiry;
mod events;
mod invariants;
mod latches;
mod linearization;
mod locks_replay;
mod lost_holds;
mod namespace_model;
mod namespaces_replay;
mod outcomes;
mod permits;
mod polled_events;
mod pools;
mod rebuilds;
mod resolved_waits;
mod session_requests;
mod shard_view;
#[cfg(test)]
mod slice_tests;
#[cfg(test)]
mod tests;
mod thing_calls;
mod timelines;
mod twins;

use std::collections::BTreeMap;

use holdfast_cluster::Application;
use rand::Rng;

use crate::plan::rng_of;
use crate::told_log::Told;
use crate::world::World;
use twins::Twin;

/// The most steps after which a copy is restored.
const MAX_RESTORE_INTERVAL: usize = 12;

/// Replays the applied entries against models, and compares the observations of clients with them.
pub(crate) fn check_all(world: &World) {
    let calls = world.history.calls();
    let mut findings = Vec::new();
    let mut locks = BTreeMap::new();
    let is_of = |told: &Told, shard: &str| world.locks_shard(told.account, told.namespace) == shard;
    for shard in world.map.shards(Application::Locks) {
        let (entries, restores) = (world.ledger.entries(&shard.id), world.ledger.restores(&shard.id));
        let core = twins::new_shard(&shard.id, world.plan.bounds.clone());
        let of_shard = (shard.id.as_str(), core, world.plan.slice_commands);
        let replayed = locks_replay::replay(of_shard, &entries, restores, new_twins(world, &shard.id), &mut findings);
        early_expiry::check(&shard.id, &replayed, &calls, &mut findings);
        lost_holds::check(&shard.id, &replayed, &calls, &mut findings);
        ask_calls::check_times(&shard.id, &replayed, (&calls, world.plan.is_calm()), &mut findings);
        // A replay that has found something has not come to the end.
        if findings.is_empty() {
            let told: Vec<Told> = world.told.all().into_iter().filter(|told| is_of(told, &shard.id)).collect();
            ask_calls::check_told(&replayed, &told, &calls, &mut findings);
            if world.plan.is_calm() {
                let asked = &replayed.asks.of_sessions;
                ask_calls::check_heard(asked, &told, &world.told.connections(), &mut findings);
            }
        }
        locks.insert(shard.id.clone(), replayed);
    }
    let mut names = BTreeMap::new();
    for shard in world.map.shards(Application::Namespaces) {
        let of_shard = (shard.id.as_str(), world.plan.slice_commands);
        let replayed = namespaces_replay::replay(of_shard, &world.ledger.entries(&shard.id), &mut findings);
        names.insert(shard.id.clone(), replayed);
    }
    barrier_calls::check(&calls, &locks, &mut findings);
    // A finding above explains those that would follow below.
    if findings.is_empty() {
        events::check(world, &locks, &mut findings);
    }
    if findings.is_empty() {
        calls::check(world, &calls, &locks, &names, &mut findings);
    }
    for finding in findings {
        world.record_violation(finding);
    }
}

/// One copy that is restored repeatedly, and one that also gets other internal numbers.
fn new_twins(world: &World, shard: &str) -> Vec<Twin> {
    let mut rng = rng_of(world.plan.seed, "twins");
    let bounds = || world.plan.bounds.clone();
    let restored = Twin::new(shard, bounds(), rng.random_range(1..=MAX_RESTORE_INTERVAL), None);
    let renumbered = Twin::new(shard, bounds(), rng.random_range(1..=MAX_RESTORE_INTERVAL), Some(rng.random()));
    vec![restored, renumbered]
}
