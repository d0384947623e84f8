//! What namespaces shards say: which incarnations are open.

use super::effects::Settled;
use super::namespace::Namespace;
use super::{LocksCore, NamespaceKey};
use crate::{Answer, Incarnation, Limits, NamespaceMessage, NamespaceRef, Reason, SessionEnd};

/// Namespaces that are gone, of which only the memory is left. To free it takes long when much was held, so whoever has
/// another thread for it does it there. Not part of the state.
#[derive(Clone, Debug, Default)]
pub struct Purged(Vec<Namespace>);

impl Purged {
    /// Whether there is nothing to free.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl LocksCore {
    pub(super) fn deliver(&mut self, source: &str, number: u64, message: &NamespaceMessage) -> Answer {
        if self.state.inbox.accept(source, number) {
            match message {
                NamespaceMessage::Open { namespace, limits } => self.open(namespace, &limits.first()),
                NamespaceMessage::Open2 { namespace, limits } => self.open(namespace, limits),
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
        let key = NamespaceKey::of(opened);
        let slot = match self.slots.get(&key) {
            Some(slot) => *slot,
            None => {
                let slot = self.namespaces.insert(Namespace::new(opened, limits, &self.state.bounds));
                self.slots.insert(key, slot);
                slot
            }
        };
        self.touched.push(slot);
        let namespace = self.namespaces.get_mut(slot);
        if namespace.id.name != opened.name {
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
        self.names.remove(&(purged.account, purged.name.clone()));
        let slot = self.slots.remove(&NamespaceKey::of(purged)).expect("every open incarnation has its locks");
        self.settle();
        let namespace = self.namespaces.remove(slot);
        self.settle_purge(&namespace);
        self.keep_usage(purged.account, &namespace);
        for (place, waiting) in &namespace.waits {
            let settled = Settled {
                wait: place.wait(),
                attempt: waiting.attempts.highest(),
                owner: namespace.owners.name(waiting.owner).to_owner(),
                request_id: waiting.request_id.clone(),
                claims: waiting.claims.clone(),
                outcome: Err(Reason::Ended),
            };
            self.notes.settled(&namespace.id, settled);
        }
        for (session_id, session) in &namespace.sessions {
            self.sessions.remove(&session.facts.number);
            self.notes.ended(&namespace.id, session_id, session.facts.number, SessionEnd::NamespaceDeleted);
        }
        namespace.sweeps.iter().for_each(|(began, sweep)| self.finished.push(*began, sweep.done()));
        if let Some(first) = namespace.first_due {
            self.due.remove(&first);
        }
        self.busy.remove(&NamespaceKey::of(purged));
        self.state.raise_revision(namespace.holds);
        self.notes.closed(&namespace.id);
        self.purged.0.push(namespace);
    }

    fn open_incarnation(&self, namespace: &NamespaceRef) -> Option<Incarnation> {
        self.names.get(&(namespace.account, namespace.name.clone())).copied()
    }
}
