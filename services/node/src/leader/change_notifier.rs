//! That a namespace has new events, or the accounts shard new changes. What they are is read from their history, at each
//! watcher's own pace.

use std::collections::HashMap;

use holdfast_core::NamespaceRef;
use tokio::sync::watch;

use super::NamespaceKey;

/// Who waits for news of which namespace.
#[derive(Default)]
pub(crate) struct ChangeNotifier {
    namespaces: HashMap<NamespaceKey, watch::Sender<()>>,
    accounts: Option<watch::Sender<()>>,
}

impl ChangeNotifier {
    /// Hears of what comes from now on. It ends with the leadership and with the namespace.
    pub(crate) fn subscribe(&mut self, namespace: &NamespaceRef) -> watch::Receiver<()> {
        self.namespaces.entry(NamespaceKey::of(namespace)).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Something happened in a namespace.
    pub(crate) fn notify(&mut self, namespace: &NamespaceRef) {
        let key = NamespaceKey::of(namespace);
        if self.namespaces.get(&key).is_some_and(|news| news.send(()).is_err()) {
            // Nobody listens any more.
            self.namespaces.remove(&key);
        }
    }

    /// A namespace is gone.
    pub(crate) fn remove(&mut self, namespace: &NamespaceRef) {
        self.namespaces.remove(&NamespaceKey::of(namespace));
    }

    /// Hears of changes of accounts and their keys that come from now on. It ends with the leadership.
    pub(crate) fn subscribe_accounts(&mut self) -> watch::Receiver<()> {
        self.accounts.get_or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// A command of the accounts shard was applied.
    pub(crate) fn notify_accounts(&mut self) {
        if self.accounts.as_ref().is_some_and(|news| news.send(()).is_err()) {
            // Nobody listens any more.
            self.accounts = None;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.accounts.is_none()
    }
}
