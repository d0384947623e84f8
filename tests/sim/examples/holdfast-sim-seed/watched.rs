//! What watchers were told.

use holdfast_core::AccountId;
use holdfast_gateway::events::{EventInfo, EventPage};
use parking_lot::Mutex;

/// Everything that one watcher was told.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    pub(crate) name: String,
    pub(crate) account: AccountId,
    pub(crate) namespace: &'static str,
    /// The first revision that it would have been told of.
    pub(crate) from: Option<u64>,
    /// The first revision that it has not been told of.
    pub(crate) until: u64,
    pub(crate) events: Vec<EventInfo>,
}

/// All watchers of a run.
#[derive(Default)]
pub(crate) struct Watched(Mutex<Vec<Watch>>);

impl Watched {
    /// Another watcher; answers its number.
    pub(crate) fn begin(&self, name: &str, account: AccountId, namespace: &'static str) -> usize {
        let mut watches = self.0.lock();
        watches.push(Watch { name: name.to_owned(), account, namespace, from: None, until: 0, events: Vec::new() });
        watches.len() - 1
    }

    /// From where it goes on, when it has begun.
    pub(crate) fn from(&self, watch: usize) -> Option<u64> {
        let watch = &self.0.lock()[watch];
        watch.from.map(|_| watch.until)
    }

    /// It is told of everything from that revision on.
    pub(crate) fn started(&self, watch: usize, revision: u64) {
        let watch = &mut self.0.lock()[watch];
        if watch.from.is_none() {
            (watch.from, watch.until) = (Some(revision), revision);
        }
    }

    /// It was told.
    pub(crate) fn page(&self, watch: usize, page: EventPage) {
        let watch = &mut self.0.lock()[watch];
        watch.events.extend(page.events);
        watch.until = page.next_revision;
    }

    pub(crate) fn watches(&self) -> Vec<Watch> {
        self.0.lock().clone()
    }
}
