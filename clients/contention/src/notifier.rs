//! Notifies a listener of changes: sequentially, in order, and never on the task that contends.
//!
//! Invariant: every reported change begins with the owner that the previous one ended with, regardless of skipped
//! changes. A contender therefore receives exactly one release after each acquisition.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::contender::MutexRetriever;
use crate::owner::MutexOwner;
use crate::state::MutexState;

/// Pending changes for a slow listener; beyond that, the oldest are skipped.
const MAX_PENDING: usize = 64;

/// A listener and its pending changes.
pub(crate) struct Notifier {
    retriever: Arc<dyn MutexRetriever>,
    queue: Mutex<Queue>,
    idle: watch::Sender<bool>,
}

struct Queue {
    pending: VecDeque<PendingChange>,
    /// The owner of the last notification.
    last_notified: MutexOwner,
    is_notifying: bool,
    /// Number of starts of the service.
    generation: u64,
    /// Whether owners of the current run still matter.
    is_active: bool,
}

struct PendingChange {
    owner: MutexOwner,
    generation: u64,
    /// Reported even if it changes nothing.
    is_last: bool,
}

impl Notifier {
    pub(crate) fn new(retriever: Arc<dyn MutexRetriever>) -> Self {
        let queue = Queue {
            pending: VecDeque::new(),
            last_notified: MutexOwner::NONE,
            is_notifying: false,
            generation: 0,
            is_active: false,
        };
        Self { retriever, queue: Mutex::new(queue), idle: watch::Sender::new(true) }
    }

    pub(crate) fn mutex(&self) -> &str {
        self.retriever.mutex()
    }

    /// Starts a new run of the service: pending owners of earlier runs are skipped.
    pub(crate) fn start_generation(&self) -> u64 {
        let mut queue = self.queue.lock();
        queue.generation += 1;
        queue.is_active = true;
        queue.generation
    }

    /// Reports the current owner.
    pub(crate) fn notify(self: &Arc<Self>, generation: u64, owner: MutexOwner) {
        self.push(PendingChange { owner, generation, is_last: false });
    }

    /// Ends a run: pending owners are skipped, and only the absence of an owner is reported.
    pub(crate) fn end_generation(self: &Arc<Self>, generation: u64) {
        {
            let mut queue = self.queue.lock();
            if queue.generation == generation {
                queue.is_active = false;
            }
        }
        self.push(PendingChange { owner: MutexOwner::NONE, generation, is_last: true });
    }

    /// Completes when all changes were reported and every call has returned.
    pub(crate) async fn wait_idle(&self) {
        // This value owns the sender.
        let _ = self.idle.subscribe().wait_for(|idle| *idle).await;
    }

    fn push(self: &Arc<Self>, entry: PendingChange) {
        let mut queue = self.queue.lock();
        queue.pending.push_back(entry);
        if queue.pending.len() > MAX_PENDING {
            queue.pending.pop_front();
        }
        if !queue.is_notifying {
            queue.is_notifying = true;
            self.idle.send_replace(false);
            tokio::spawn(Arc::clone(self).deliver_pending());
        }
    }

    async fn deliver_pending(self: Arc<Self>) {
        while let Some(state) = self.next() {
            let retriever = Arc::clone(&self.retriever);
            // On a thread that may block; there a panic ends only the call.
            let told = tokio::task::spawn_blocking(move || retriever.notify_owner(&state)).await;
            if let Err(error) = told {
                tracing::error!(mutex = self.mutex(), %error, "a listener to changes of the owner failed");
            }
        }
    }

    fn next(&self) -> Option<MutexState> {
        let mut queue = self.queue.lock();
        while let Some(entry) = queue.pending.pop_front() {
            let is_current = queue.is_active && entry.generation == queue.generation;
            if !entry.owner.is_none() && !is_current {
                continue;
            }
            let state = MutexState::new(std::mem::replace(&mut queue.last_notified, entry.owner.clone()), entry.owner);
            if state.is_changed() || entry.is_last {
                return Some(state);
            }
        }
        queue.is_notifying = false;
        self.idle.send_replace(true);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::timestamp::Timestamp;

    /// Records its notifications, and blocks in each call until it may continue.
    struct Listener {
        notified: Mutex<Vec<(String, String)>>,
        proceed: Mutex<mpsc::Receiver<()>>,
    }

    impl MutexRetriever for Listener {
        fn mutex(&self) -> &str {
            "mutex"
        }

        fn notify_owner(&self, state: &MutexState) {
            let told = (state.before().owner_id().to_owned(), state.after().owner_id().to_owned());
            self.notified.lock().push(told);
            self.proceed.lock().recv().unwrap();
        }
    }

    fn listener() -> (Arc<Listener>, Arc<Notifier>, mpsc::Sender<()>) {
        let (sender, go_on) = mpsc::channel();
        let listener = Arc::new(Listener { notified: Mutex::default(), proceed: Mutex::new(go_on) });
        let notifier = Arc::new(Notifier::new(Arc::clone(&listener) as Arc<dyn MutexRetriever>));
        (listener, notifier, sender)
    }

    fn owner(id: &str) -> MutexOwner {
        MutexOwner::new(id, Timestamp::PAST, Timestamp::FOREVER, Timestamp::FOREVER)
    }

    fn pairs(told: &[(&str, &str)]) -> Vec<(String, String)> {
        told.iter().map(|(before, after)| ((*before).to_owned(), (*after).to_owned())).collect()
    }

    async fn assert_notified(
        listener: &Listener,
        notifier: &Notifier,
        go_on: &mpsc::Sender<()>,
        told: &[(&str, &str)],
    ) {
        for _ in told {
            go_on.send(()).unwrap();
        }
        notifier.wait_idle().await;
        assert_eq!(*listener.notified.lock(), pairs(told));
    }

    #[tokio::test]
    async fn changes_are_told_in_order_and_renewals_are_not() {
        let (listener, notifier, go_on) = listener();
        let life = notifier.start_generation();
        for id in ["a", "a", "", "b", "a"] {
            notifier.notify(life, if id.is_empty() { MutexOwner::NONE } else { owner(id) });
        }
        assert_notified(&listener, &notifier, &go_on, &[("", "a"), ("a", ""), ("", "b"), ("b", "a")]).await;
    }

    #[tokio::test]
    async fn owners_of_an_earlier_life_are_not_told_and_its_release_is() {
        let (listener, notifier, go_on) = listener();
        let first = notifier.start_generation();
        notifier.notify(first, owner("a"));
        while listener.notified.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        // While the first call blocks.
        notifier.notify(first, MutexOwner::NONE);
        notifier.notify(first, owner("late"));
        notifier.end_generation(first);
        let second = notifier.start_generation();
        notifier.notify(first, owner("later still"));
        notifier.notify(second, owner("b"));
        assert_notified(&listener, &notifier, &go_on, &[("", "a"), ("a", ""), ("", ""), ("", "b")]).await;
    }

    #[tokio::test]
    async fn what_nobody_was_told_of_when_a_life_ends_never_was() {
        let (listener, notifier, go_on) = listener();
        let life = notifier.start_generation();
        notifier.notify(life, owner("a"));
        notifier.end_generation(life);
        assert_notified(&listener, &notifier, &go_on, &[("", "")]).await;
    }

    #[tokio::test]
    async fn a_slow_listener_misses_changes_and_sees_no_gap() {
        let (listener, notifier, go_on) = listener();
        let life = notifier.start_generation();
        notifier.notify(life, owner("first"));
        while listener.notified.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        for number in 0..3 * MAX_PENDING {
            notifier.notify(life, owner(&number.to_string()));
        }
        assert!(notifier.queue.lock().pending.len() <= MAX_PENDING);
        for _ in 0..=MAX_PENDING {
            go_on.send(()).unwrap();
        }
        notifier.wait_idle().await;
        let told = listener.notified.lock();
        assert_eq!(told.len(), 1 + MAX_PENDING);
        assert!(told.windows(2).all(|pair| pair[0].1 == pair[1].0), "{told:?}");
        assert_eq!(told.last().unwrap().1, (3 * MAX_PENDING - 1).to_string());
    }
}
