//! What the shard tells of its events after each step.

use holdfast_core::shard::ShardState;
use holdfast_core::{Event, Kind, Kinds, NamespaceRef, Path, Query, Response};

use super::locks_replay::LocksReplay;
use super::shard_view::AffectedNamespaces;

/// A response has fewer if it would have to look at too many others.
const MAX_EVENTS_IN_PAGE: u32 = 1_000;

impl LocksReplay {
    /// Returns the events of locks since the last time.
    pub(super) fn poll_events(
        &mut self,
        core: &ShardState,
        touched: AffectedNamespaces<'_>,
    ) -> Vec<(NamespaceRef, Event)> {
        let mut all = Vec::new();
        for life in self.open_and(touched) {
            let known = self.events.entry(life.clone()).or_default();
            let mut next = known.last().map_or(0, |event| event.revision) + 1;
            let events = events_from(core, &life, &mut next, Kinds::LOCKS);
            known.extend(events.iter().cloned());
            all.extend(events.into_iter().map(|event| (life.clone(), event)));
        }
        all
    }

    /// Returns the events of things of some kinds since the last time: always the same ones with the first.
    pub(super) fn poll_events_of(
        &mut self,
        kinds: &[Kind],
        core: &ShardState,
        touched: AffectedNamespaces<'_>,
    ) -> Vec<(NamespaceRef, Event)> {
        let mut all = Vec::new();
        let Some(first) = kinds.first() else { return all };
        for life in self.open_and(touched) {
            let next = self.next_events.entry((*first, life.clone())).or_insert(1);
            let events = events_from(core, &life, next, Kinds::from_iter(kinds.iter().copied()));
            all.extend(events.into_iter().map(|event| (life.clone(), event)));
        }
        all
    }

    fn open_and(&self, touched: AffectedNamespaces<'_>) -> Vec<NamespaceRef> {
        self.open_namespaces().filter(|life| touched.contains(life)).collect()
    }
}

/// Returns the events from a revision on, however many others are between them, and sets the revision to the next one.
fn events_from(core: &ShardState, life: &NamespaceRef, next: &mut u64, kinds: Kinds) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        let (namespace, prefix, from_revision) = (life.clone(), Path::default(), Some(*next));
        let query = Query::Events { namespace, from_revision, prefix, kinds, limit: MAX_EVENTS_IN_PAGE };
        let Ok(Response::Events { events, next_revision, more }) = core.query(0, &query).outcome else { return all };
        all.extend(events);
        *next = next_revision;
        if !more {
            return all;
        }
    }
}
