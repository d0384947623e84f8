//! What the shard tells of its events after each step.

use holdfast_core::shard::ShardState;
use holdfast_core::{Event, Kind, Kinds, NamespaceRef, Path, Query, Response};

use super::locks_replay::LocksReplay;
use super::shard_view::AffectedNamespaces;

/// Most events that one step can make here.
const MAX_EVENTS_PER_STEP: u32 = 1_000;

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
            let events = events_after(core, &life, known.last().map_or(0, |event| event.revision), Kinds::LOCKS);
            known.extend(events.iter().cloned());
            all.extend(events.into_iter().map(|event| (life.clone(), event)));
        }
        all
    }

    /// Returns the events of pools since the last time.
    pub(super) fn poll_pool_events(
        &mut self,
        core: &ShardState,
        touched: AffectedNamespaces<'_>,
    ) -> Vec<(NamespaceRef, Event)> {
        let mut all = Vec::new();
        for life in self.open_and(touched) {
            let last = self.last_pool_events.entry(life.clone()).or_default();
            let events = events_after(core, &life, *last, Kinds::from_iter([Kind::Pool]));
            *last = events.last().map_or(*last, |event| event.revision);
            all.extend(events.into_iter().map(|event| (life.clone(), event)));
        }
        all
    }

    fn open_and(&self, touched: AffectedNamespaces<'_>) -> Vec<NamespaceRef> {
        self.open_namespaces().filter(|life| touched.contains(life)).collect()
    }
}

fn events_after(core: &ShardState, life: &NamespaceRef, revision: u64, kinds: Kinds) -> Vec<Event> {
    let (namespace, prefix, from_revision) = (life.clone(), Path::default(), Some(revision + 1));
    let query = Query::Events { namespace, from_revision, prefix, kinds, limit: MAX_EVENTS_PER_STEP };
    match core.query(0, &query).outcome {
        Ok(Response::Events { events, .. }) => events,
        _ => Vec::new(),
    }
}
