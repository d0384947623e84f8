//! The events that watchers received.

use holdfast_api::{EventInfo, EventPage};
use holdfast_core::AccountId;
use parking_lot::Mutex;

/// All events of one watcher.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    pub(crate) name: String,
    pub(crate) account: AccountId,
    pub(crate) namespace: &'static str,
    /// The first revision that it would have received.
    pub(crate) from_revision: Option<u64>,
    /// The first revision that it has not received.
    pub(crate) next_revision: u64,
    pub(crate) events: Vec<EventInfo>,
}

/// All watchers of a run.
#[derive(Default)]
pub(crate) struct WatchLog(Mutex<Vec<Watch>>);

impl WatchLog {
    /// Another watcher; answers its number.
    pub(crate) fn add_watcher(&self, name: &str, account: AccountId, namespace: &'static str) -> usize {
        let mut watches = self.0.lock();
        watches.push(Watch {
            name: name.to_owned(),
            account,
            namespace,
            from_revision: None,
            next_revision: 0,
            events: Vec::new(),
        });
        watches.len() - 1
    }

    /// The revision at which it resumes, if it has begun.
    pub(crate) fn resume_revision(&self, watch: usize) -> Option<u64> {
        let watch = &self.0.lock()[watch];
        watch.from_revision.map(|_| watch.next_revision)
    }

    /// Records that it receives everything from that revision on.
    pub(crate) fn record_start(&self, watch: usize, revision: u64) {
        let watch = &mut self.0.lock()[watch];
        if watch.from_revision.is_none() {
            (watch.from_revision, watch.next_revision) = (Some(revision), revision);
        }
    }

    /// Records an event.
    pub(crate) fn record_page(&self, watch: usize, page: EventPage) {
        let watch = &mut self.0.lock()[watch];
        watch.events.extend(page.events);
        watch.next_revision = page.next_revision;
    }

    pub(crate) fn watches(&self) -> Vec<Watch> {
        self.0.lock().clone()
    }
}
