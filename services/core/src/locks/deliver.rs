//! What namespaces shards say: which incarnations are open.

use super::namespace::Namespace;
use super::{LocksCore, NamespaceKey};
use crate::{Answer, Incarnation, Limits, NamespaceMessage, NamespaceRef};

impl LocksCore {
    pub(super) fn deliver(&mut self, source: &str, number: u64, message: &NamespaceMessage) -> Answer {
        if self.state.inbox.accept(source, number) {
            match message {
                NamespaceMessage::Open { namespace, limits } => self.open(namespace, limits),
                NamespaceMessage::Purge { namespace } => self.purge(namespace),
            }
        }
        Answer::Done
    }

    /// A purge always comes before the open of the next incarnation. Should one be missing nevertheless, the older
    /// incarnation ends here, and an older one never comes back.
    fn open(&mut self, opened: &NamespaceRef, limits: &Limits) {
        match self.open_incarnation(opened) {
            Some(open) if open > opened.incarnation => return,
            Some(open) if open < opened.incarnation => {
                self.purge(&NamespaceRef { incarnation: open, ..opened.clone() });
            }
            _ => {}
        }
        let key = key_of(opened);
        let namespace = self.namespaces.entry(key).or_insert_with(|| Namespace::new(&opened.name, limits));
        if namespace.name != opened.name {
            return;
        }
        namespace.limits = limits.clone();
        self.names.insert((opened.account, opened.name.clone()), opened.incarnation);
    }

    /// Ends everything in that incarnation; in any other there is nothing to end.
    fn purge(&mut self, purged: &NamespaceRef) {
        if self.open_incarnation(purged) != Some(purged.incarnation) {
            return;
        }
        let key = key_of(purged);
        self.names.remove(&(purged.account, purged.name.clone()));
        let namespace = self.namespaces.remove(&key).expect("every open incarnation has its locks");
        for (path, lock) in &namespace.locks {
            self.end_all(key, path, lock);
        }
    }

    fn open_incarnation(&self, namespace: &NamespaceRef) -> Option<Incarnation> {
        self.names.get(&(namespace.account, namespace.name.clone())).copied()
    }
}

fn key_of(namespace: &NamespaceRef) -> NamespaceKey {
    NamespaceKey { account: namespace.account, incarnation: namespace.incarnation }
}
