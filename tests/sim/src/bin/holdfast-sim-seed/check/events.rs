//! The events of watchers, against the history: every event, once, in order.

use std::collections::BTreeMap;

use holdfast_api::EventInfo;
use holdfast_core::Event;

use super::locks_replay::LocksReplay;
use crate::watch_log::Watch;
use crate::world::World;

pub(crate) fn check(world: &World, locks: &BTreeMap<String, LocksReplay>, findings: &mut Vec<String>) {
    for watch in world.watched.watches() {
        if watch.from_revision.is_none() {
            continue;
        }
        let replayed = &locks[world.locks_shard(watch.account, watch.namespace)];
        let last = replayed.revisions.len() - 1;
        let Some(life) = replayed.open_incarnation(last, watch.account, watch.namespace) else { continue };
        let events = replayed.events.get(&life).map(Vec::as_slice).unwrap_or_default();
        findings.extend(compare_events(&watch, events, world.is_current_run(&watch.name)));
    }
}

/// Compares the events of a watcher with the history. If its gateway still runs, it has received all of them.
fn compare_events(watch: &Watch, events: &[Event], is_current: bool) -> Vec<String> {
    let (mut findings, name) = (Vec::new(), format!("{} of {}", watch.name, watch.namespace));
    let from = watch.from_revision.unwrap_or_default();
    let meant = events.iter().filter(|event| (from..watch.next_revision).contains(&event.revision));
    let meant: Vec<EventInfo> = meant.cloned().map(EventInfo::from).collect();
    let longest = meant.len().max(watch.events.len());
    if let Some(differs) = (0..longest).find(|at| meant.get(*at) != watch.events.get(*at)) {
        let (told, meant) = (watch.events.get(differs), meant.get(differs));
        findings.push(format!("[events] {name} received {told:?}, but should have received {meant:?}"));
    }
    let newest = events.last().map_or(0, |event| event.revision);
    if is_current && watch.next_revision <= newest {
        let until = watch.next_revision;
        findings.push(format!("[events] {name} received nothing from revision {until} on, though {newest} exists"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountId, EventKind, Owner};

    use super::*;

    fn event(revision: u64) -> Event {
        Event {
            revision,
            at_ms: 0,
            kind: EventKind::Acquired,
            owner: Owner::Process("p".to_owned()),
            process_id: "p".to_owned(),
            fencing_token: Some(revision),
            claims: Vec::new(),
        }
    }

    /// Of a watcher that received these revisions of 1 to 3.
    fn count_findings(told: &[u64], next_revision: u64, is_current: bool) -> usize {
        let (account, events) = (AccountId(1), told.iter().map(|revision| event(*revision).into()).collect());
        let watch =
            Watch { name: "w".to_owned(), account, namespace: "alpha", from_revision: Some(1), next_revision, events };
        compare_events(&watch, &[event(1), event(2), event(3)], is_current).len()
    }

    #[test]
    fn everything_once_and_in_order_is_right() {
        assert_eq!(count_findings(&[1, 2, 3], 4, true), 0);
        assert_eq!(count_findings(&[1, 2], 3, false), 0);
    }

    #[test]
    fn gaps_repeats_disorder_and_silence_are_found() {
        for told in [&[1, 3][..], &[1, 2, 2, 3], &[2, 1, 3], &[1, 2]] {
            assert_eq!(count_findings(told, 4, true), 1, "{told:?}");
        }
        assert_eq!(count_findings(&[1, 2], 3, true), 1);
    }
}
