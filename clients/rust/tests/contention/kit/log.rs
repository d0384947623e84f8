//! Notes of what contenders are told.

use std::sync::Arc;

use holdfast_client::contention::{Moment, MutexContender, MutexState};
use tokio::sync::watch;

use crate::support::soon;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Acquired,
    Released,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) who: String,
    pub(crate) what: What,
    pub(crate) at: Moment,
    /// Of the owner that goes or comes.
    pub(crate) fencing_token: Option<u64>,
}

/// In the order in which contenders were told.
#[derive(Clone)]
pub(crate) struct Log(Arc<watch::Sender<Vec<Entry>>>);

impl Log {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }

    pub(crate) fn add(&self, who: &str, what: What, state: &MutexState) {
        let owner = match what {
            What::Acquired => state.after(),
            What::Released => state.before(),
        };
        let entry = Entry { who: who.to_owned(), what, at: Moment::now(), fencing_token: owner.fencing_token() };
        self.0.send_modify(|entries| entries.push(entry));
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.0.borrow().clone()
    }

    /// Waits until the notes are as they should be.
    pub(crate) async fn eventually(&self, what: &str, mut is_so: impl FnMut(&[Entry]) -> bool) {
        let mut changes = self.0.subscribe();
        soon(what, changes.wait_for(|entries| is_so(entries))).await.unwrap();
    }

    /// Waits until this one was told that often.
    pub(crate) async fn eventually_told(&self, who: &str, what: What, times: usize) {
        let count = |entries: &[Entry]| entries.iter().filter(|entry| entry.who == who && entry.what == what).count();
        self.eventually(&format!("{who}: {what:?}"), |entries| count(entries) == times).await;
    }

    /// What this one was told, in order.
    pub(crate) fn of(&self, who: &str) -> Vec<What> {
        self.0.borrow().iter().filter(|entry| entry.who == who).map(|entry| entry.what).collect()
    }

    /// The last one that was told that it is the owner and not that it no longer is.
    pub(crate) fn owner(&self) -> Option<String> {
        let entries = self.0.borrow();
        entries.last().filter(|entry| entry.what == What::Acquired).map(|entry| entry.who.clone())
    }

    /// There were never two owners: each release is that of the acquisition before it, and tokens rise.
    pub(crate) fn assert_one_at_a_time(&self) {
        let entries = self.entries();
        let mut token = 0;
        for (number, entry) in entries.iter().enumerate() {
            if number % 2 == 0 {
                assert_eq!(entry.what, What::Acquired, "at {number} of {entries:#?}");
                assert!(entry.fencing_token > Some(token), "at {number} of {entries:#?}");
                token = entry.fencing_token.unwrap();
            } else {
                let before = &entries[number - 1];
                assert_eq!((entry.what, &entry.who), (What::Released, &before.who), "at {number} of {entries:#?}");
                assert_eq!(entry.fencing_token, Some(token), "at {number} of {entries:#?}");
            }
        }
    }
}

type Also = Box<dyn Fn(What, &MutexState) + Send + Sync>;

/// A contender that notes what it is told.
pub(crate) struct Recorder {
    mutex: String,
    contender_id: String,
    log: Log,
    also: Also,
}

impl Recorder {
    pub(crate) fn new(mutex: &str, name: &str, log: &Log) -> Self {
        // Ids are those of owners in the whole namespace.
        let contender_id = format!("{mutex}:{name}");
        Self { mutex: mutex.to_owned(), contender_id, log: log.clone(), also: Box::new(|_, _| ()) }
    }

    /// What to do after each note.
    pub(crate) fn also(self, also: impl Fn(What, &MutexState) + Send + Sync + 'static) -> Self {
        Self { also: Box::new(also), ..self }
    }

    fn told(&self, what: What, state: &MutexState) {
        self.log.add(&self.contender_id, what, state);
        (self.also)(what, state);
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
        self.told(What::Acquired, state);
    }

    fn on_released(&self, state: &MutexState) {
        assert!(state.is_released(&self.contender_id) && state.before().is_owner(&self.contender_id));
        self.told(What::Released, state);
    }
}
