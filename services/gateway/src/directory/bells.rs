//! Wakes whoever has something open when what let them in changes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// A bell for each thing that somebody listens for.
pub(super) struct Bells<K>(Mutex<HashMap<K, watch::Sender<()>>>);

/// Hears of changes of one thing from when it was made.
pub(crate) struct Bell<K: Hash + Eq> {
    bells: Arc<Bells<K>>,
    key: K,
    heard: watch::Receiver<()>,
}

impl<K> Default for Bells<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq + Clone> Bells<K> {
    pub(super) fn listen(self: &Arc<Self>, key: K) -> Bell<K> {
        let heard = self.0.lock().entry(key.clone()).or_insert_with(|| watch::channel(()).0).subscribe();
        Bell { bells: Arc::clone(self), key, heard }
    }

    pub(super) fn ring(&self, key: &K) {
        if let Some(bell) = self.0.lock().get(key) {
            bell.send_replace(());
        }
    }

    pub(super) fn ring_all(&self) {
        for bell in self.0.lock().values() {
            bell.send_replace(());
        }
    }
}

impl<K: Hash + Eq> Bell<K> {
    /// Ends when the thing has changed since it was last told so. A wait that is given up loses nothing.
    pub(crate) async fn rung(&mut self) {
        if self.heard.changed().await.is_err() {
            // The bells are kept as long as anybody listens.
            std::future::pending::<()>().await;
        }
    }
}

impl<K: Hash + Eq> Drop for Bell<K> {
    fn drop(&mut self) {
        let mut bells = self.bells.0.lock();
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
        let bells = Arc::new(Bells::<u64>::default());
        let (mut one, mut same, mut other) = (bells.listen(1), bells.listen(1), bells.listen(2));
        assert!(one.rung().now_or_never().is_none());
        bells.ring(&1);
        bells.ring(&3);
        assert!(one.rung().now_or_never().is_some() && same.rung().now_or_never().is_some());
        assert!(one.rung().now_or_never().is_none() && other.rung().now_or_never().is_none());
        bells.ring_all();
        assert!(one.rung().now_or_never().is_some() && other.rung().now_or_never().is_some());
    }

    #[tokio::test]
    async fn nothing_is_kept_for_those_who_are_gone() {
        let bells = Arc::new(Bells::<u64>::default());
        let (one, mut same) = (bells.listen(1), bells.listen(1));
        drop(one);
        bells.ring(&1);
        assert!(same.rung().now_or_never().is_some());
        drop(same);
        assert!(bells.0.lock().is_empty());
    }
}
