//! What watchers were told against what happened: everything, once, in order.

use std::collections::BTreeMap;

use holdfast_gateway::events::EventInfo;

use super::replay::Replayed;
use crate::world::World;

pub(crate) fn check(world: &World, locks: &BTreeMap<String, Replayed>, findings: &mut Vec<String>) {
    for watch in world.watched.watches() {
        let Some(from) = watch.from else { continue };
        let replayed = &locks[world.locks_shard(watch.account, watch.namespace)];
        let last = replayed.revisions.len() - 1;
        let Some(life) = replayed.open_life(last, watch.account, watch.namespace) else { continue };
        let events = replayed.events.get(&life).map(Vec::as_slice).unwrap_or_default();
        let meant = events.iter().filter(|event| (from..watch.until).contains(&event.revision));
        let meant: Vec<EventInfo> = meant.cloned().map(EventInfo::from).collect();
        if let Some(differs) =
            (0..meant.len().max(watch.events.len())).find(|at| meant.get(*at) != watch.events.get(*at))
        {
            findings.push(format!(
                "[events] {} of {} was told {:?} where it should have been told {:?}",
                watch.name,
                watch.namespace,
                watch.events.get(differs),
                meant.get(differs)
            ));
        }
        let newest = events.last().map_or(0, |event| event.revision);
        if world.is_current_run(&watch.name) && watch.until <= newest {
            findings.push(format!(
                "[events] {} of {} was told nothing from revision {} on, though there is {newest}",
                watch.name, watch.namespace, watch.until
            ));
        }
    }
}
