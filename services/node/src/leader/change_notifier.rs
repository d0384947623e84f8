//! Notifies watchers that a namespace has new events, or the accounts shard new changes. Each watcher reads the changes
//! from history at its own pace.

use std::collections::HashMap;

use holdfast_core::NamespaceRef;
use tokio::sync::watch;

use super::NamespaceKey;

/// Change subscriptions per namespace.
#[derive(Default)]
pub(crate) struct ChangeNotifier {
    namespaces: HashMap<NamespaceKey, watch::Sender<()>>,
    accounts: Option<watch::Sender<()>>,
}

impl ChangeNotifier {
    /// Subscribes to future events of a namespace. The subscription ends with the leadership and with the namespace.
    pub(crate) fn subscribe(&mut self, namespace: &NamespaceRef) -> watch::Receiver<()> {
        self.namespaces.entry(NamespaceKey::of(namespace)).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Notifies subscribers of a change in a namespace.
    pub(crate) fn notify(&mut self, namespace: &NamespaceRef) {
        let key = NamespaceKey::of(namespace);
        if self.namespaces.get(&key).is_some_and(|sender| sender.send(()).is_err()) {
            // No subscriber is left.
            self.namespaces.remove(&key);
        }
    }

    /// Removes a deleted namespace.
    pub(crate) fn remove(&mut self, namespace: &NamespaceRef) {
        self.namespaces.remove(&NamespaceKey::of(namespace));
    }

    /// Subscribes to future changes of accounts and their keys. The subscription ends with the leadership.
    pub(crate) fn subscribe_accounts(&mut self) -> watch::Receiver<()> {
        self.accounts.get_or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Notifies subscribers of an applied command of the accounts shard.
    pub(crate) fn notify_accounts(&mut self) {
        if self.accounts.as_ref().is_some_and(|sender| sender.send(()).is_err()) {
            // No subscriber is left.
            self.accounts = None;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.accounts.is_none()
    }
}
