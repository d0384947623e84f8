//! Notifies open waits, streams and connections of changes of their credentials and accounts.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// One channel for each item with a listener.
pub(super) struct ChangeNotifier<K>(Mutex<HashMap<K, watch::Sender<()>>>);

/// Receives changes of one item from its subscription on.
pub(crate) struct ChangeListener<K: Hash + Eq> {
    notifier: Arc<ChangeNotifier<K>>,
    key: K,
    receiver: watch::Receiver<()>,
}

impl<K> Default for ChangeNotifier<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq + Clone> ChangeNotifier<K> {
    pub(super) fn subscribe(self: &Arc<Self>, key: K) -> ChangeListener<K> {
        let receiver = self.0.lock().entry(key.clone()).or_insert_with(|| watch::channel(()).0).subscribe();
        ChangeListener { notifier: Arc::clone(self), key, receiver }
    }

    pub(super) fn notify(&self, key: &K) {
        if let Some(bell) = self.0.lock().get(key) {
            bell.send_replace(());
        }
    }

    pub(super) fn notify_all(&self) {
        for bell in self.0.lock().values() {
            bell.send_replace(());
        }
    }
}

impl<K: Hash + Eq> ChangeListener<K> {
    /// Returns when the item has changed since the last notification. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            // The senders exist as long as there are listeners.
            std::future::pending::<()>().await;
        }
    }
}

impl<K: Hash + Eq> Drop for ChangeListener<K> {
    fn drop(&mut self) {
        let mut bells = self.notifier.0.lock();
        if bells.get(&self.key).is_some_and(|bell| bell.receiver_count() <= 1) {
            bells.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_those_who_listen_for_it_are_woken_and_nothing_is_missed() {
        let bells = Arc::new(ChangeNotifier::<u64>::default());
        let (mut one, mut same, mut other) = (bells.subscribe(1), bells.subscribe(1), bells.subscribe(2));
        assert!(one.changed().now_or_never().is_none());
        bells.notify(&1);
        bells.notify(&3);
        assert!(one.changed().now_or_never().is_some() && same.changed().now_or_never().is_some());
        assert!(one.changed().now_or_never().is_none() && other.changed().now_or_never().is_none());
        bells.notify_all();
        assert!(one.changed().now_or_never().is_some() && other.changed().now_or_never().is_some());
    }

    #[tokio::test]
    async fn nothing_is_kept_for_those_who_are_gone() {
        let bells = Arc::new(ChangeNotifier::<u64>::default());
        let (one, mut same) = (bells.subscribe(1), bells.subscribe(1));
        drop(one);
        bells.notify(&1);
        assert!(same.changed().now_or_never().is_some());
        drop(same);
        assert!(bells.0.lock().is_empty());
    }
}
