//! Applies messages from namespace shards: which incarnations are open.

use std::sync::Arc;

use super::namespace::Namespace;
use super::{LocksState, NamespaceKey};
use crate::{Durability, Incarnation, Limits, NamespaceMessage, NamespaceRef, Response};

impl LocksState {
    pub(super) fn deliver(&mut self, source: &str, number: u64, message: &NamespaceMessage) -> Response {
        if self.common.inbox.accept(source, number) {
            match message {
                NamespaceMessage::Open { namespace, limits } => {
                    self.open(namespace, &limits.first(), Durability::Full);
                }
                NamespaceMessage::Open2 { namespace, limits } => self.open(namespace, limits, Durability::Full),
                NamespaceMessage::Open3 { namespace, limits, durability } => self.open(namespace, limits, *durability),
                NamespaceMessage::Purge { namespace } => self.purge(namespace),
                NamespaceMessage::PurgeAccount { account } => {
                    self.ended_usage.remove(account);
                }
            }
        }
        Response::Done
    }

    /// Opens an incarnation. A purge always precedes the open of the next incarnation. If it is missing nevertheless,
    /// this ends the older incarnation. An older incarnation never reopens.
    pub(super) fn open(&mut self, opened: &NamespaceRef, limits: &Limits, durability: Durability) {
        if self.is_quarantined(opened) {
            return;
        }
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
                let mut namespace = Namespace::new(opened, limits, &self.common.bounds, &self.units);
                namespace.durability = durability;
                if durability == Durability::Session {
                    Arc::make_mut(&mut namespace.table_log).epoch = self.table_epoch.epoch;
                    self.session_durable.insert(key);
                }
                let slot = self.namespaces.insert(namespace);
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
        self.changed_charges.insert(opened.account);
        self.names.insert((opened.account, opened.name.clone()), opened.incarnation);
    }

    pub(super) fn open_incarnation(&self, namespace: &NamespaceRef) -> Option<Incarnation> {
        self.names.get(&(namespace.account, namespace.name.clone())).copied()
    }
}
