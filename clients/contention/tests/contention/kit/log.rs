//! Notes of what contenders are told.

use std::sync::Arc;

use holdfast_contention::{MutexContender, MutexState, Timestamp};
use tokio::sync::watch;

use crate::support::in_time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerChange {
    Acquired,
    Released,
}

#[derive(Clone, Debug)]
pub(crate) struct LogEntry {
    pub(crate) who: String,
    pub(crate) what: OwnerChange,
    pub(crate) at: Timestamp,
    /// Of the owner that goes or comes.
    pub(crate) fencing_token: Option<u64>,
}

/// In the order in which contenders were told.
#[derive(Clone)]
pub(crate) struct Log(Arc<watch::Sender<Vec<LogEntry>>>);

impl Log {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }

    pub(crate) fn add(&self, who: &str, what: OwnerChange, state: &MutexState) {
        let owner = match what {
            OwnerChange::Acquired => state.after(),
            OwnerChange::Released => state.before(),
        };
        let entry = LogEntry { who: who.to_owned(), what, at: Timestamp::now(), fencing_token: owner.fencing_token() };
        self.0.send_modify(|entries| entries.push(entry));
    }

    pub(crate) fn entries(&self) -> Vec<LogEntry> {
        self.0.borrow().clone()
    }

    /// Waits until the notes are as they should be.
    pub(crate) async fn eventually(&self, what: &str, mut is_so: impl FnMut(&[LogEntry]) -> bool) {
        let mut changes = self.0.subscribe();
        in_time(what, changes.wait_for(|entries| is_so(entries))).await.unwrap();
    }

    /// Waits until this one was told that often.
    pub(crate) async fn eventually_notified(&self, who: &str, what: OwnerChange, times: usize) {
        let count =
            |entries: &[LogEntry]| entries.iter().filter(|entry| entry.who == who && entry.what == what).count();
        self.eventually(&format!("{who}: {what:?}"), |entries| count(entries) == times).await;
    }

    /// What this one was told, in order.
    pub(crate) fn changes_of(&self, who: &str) -> Vec<OwnerChange> {
        self.0.borrow().iter().filter(|entry| entry.who == who).map(|entry| entry.what).collect()
    }

    /// The last one that was told that it is the owner and not that it no longer is.
    pub(crate) fn owner(&self) -> Option<String> {
        let entries = self.0.borrow();
        entries.last().filter(|entry| entry.what == OwnerChange::Acquired).map(|entry| entry.who.clone())
    }

    /// There were never two owners: each release is that of the acquisition before it, and tokens rise.
    pub(crate) fn assert_one_at_a_time(&self) {
        let entries = self.entries();
        let mut token = 0;
        for (number, entry) in entries.iter().enumerate() {
            if number % 2 == 0 {
                assert_eq!(entry.what, OwnerChange::Acquired, "at {number} of {entries:#?}");
                assert!(entry.fencing_token > Some(token), "at {number} of {entries:#?}");
                token = entry.fencing_token.unwrap();
            } else {
                let before = &entries[number - 1];
                assert_eq!(
                    (entry.what, &entry.who),
                    (OwnerChange::Released, &before.who),
                    "at {number} of {entries:#?}"
                );
                assert_eq!(entry.fencing_token, Some(token), "at {number} of {entries:#?}");
            }
        }
    }
}

type Callback = Box<dyn Fn(OwnerChange, &MutexState) + Send + Sync>;

/// A contender that notes what it is told.
pub(crate) struct Recorder {
    mutex: String,
    contender_id: String,
    log: Log,
    callback: Callback,
}

impl Recorder {
    pub(crate) fn new(mutex: &str, name: &str, log: &Log) -> Self {
        // Ids are those of owners in the whole namespace.
        let contender_id = format!("{mutex}:{name}");
        Self { mutex: mutex.to_owned(), contender_id, log: log.clone(), callback: Box::new(|_, _| ()) }
    }

    /// What to do after each note.
    pub(crate) fn with_callback(self, also: impl Fn(OwnerChange, &MutexState) + Send + Sync + 'static) -> Self {
        Self { callback: Box::new(also), ..self }
    }

    fn record(&self, what: OwnerChange, state: &MutexState) {
        self.log.add(&self.contender_id, what, state);
        (self.callback)(what, state);
    }
}

impl MutexContender for Recorder {
    fn mutex(&self) -> &str {
        &self.mutex
    }

    fn contender_id(&self) -> &str {
        &self.contender_id
    }

    fn on_acquired(&self, state: &MutexState) {
        assert!(state.is_acquired(&self.contender_id) && state.after().is_owner(&self.contender_id));
        self.record(OwnerChange::Acquired, state);
    }

    fn on_released(&self, state: &MutexState) {
        assert!(state.is_released(&self.contender_id) && state.before().is_owner(&self.contender_id));
        self.record(OwnerChange::Released, state);
    }
}
