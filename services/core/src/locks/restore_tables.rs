//! Restores what the log has of lock tables that are in the leader's memory.

use std::sync::Arc;

use super::NamespaceKey;
use super::restore::{RestoreResult, Restorer, ensure};
use super::table_log::TableSession;
use crate::{Durability, Revision, SessionNumber, TableEpoch};

impl Restorer {
    pub(super) fn durability(&mut self, durability: Durability) -> RestoreResult {
        let namespace = self.namespace()?;
        let is_first = namespace.durability == Durability::Full && durability == Durability::Session;
        namespace.durability = durability;
        let key = NamespaceKey::of(&namespace.id);
        self.core.session_durable.insert(key);
        ensure(is_first, "a durability comes twice")
    }

    pub(super) fn epoch_of(&mut self, epoch: Revision) -> RestoreResult {
        let now = self.core.common.revision;
        let namespace = self.namespace()?;
        let fits = namespace.durability == Durability::Session && namespace.table_log.epoch == 0 && epoch <= now;
        Arc::make_mut(&mut namespace.table_log).epoch = epoch;
        ensure(fits, "an epoch comes twice, or is from the future")
    }

    pub(super) fn table_epoch(&mut self, epoch: TableEpoch) -> RestoreResult {
        let is_first = self.core.table_epoch == TableEpoch::default() && self.core.slots.is_empty();
        self.core.table_epoch = epoch;
        let now = self.core.common.revision;
        let fits = epoch.epoch <= epoch.block.first && epoch.block.first <= epoch.block.last && epoch.block.last <= now;
        ensure(is_first && fits, "an epoch comes twice, or is from the future")
    }

    pub(super) fn table_session(&mut self, number: SessionNumber, session: TableSession) -> RestoreResult {
        let now = self.core.common.revision;
        let namespace = self.namespace()?;
        ensure(namespace.durability == Durability::Session, "a session is of a lock table that is in the log")?;
        let is_open = self.core.sessions.get(&number).is_some_and(|(slot, _)| Some(*slot) == self.slot);
        let log = Arc::make_mut(&mut self.namespace()?.table_log);
        ensure(log.restore(number, session, now, is_open), "a session comes twice, or is from the future")?;
        let slot = self.slot.unwrap_or_default();
        self.core.txn_in(slot, &super::restore::RESTORE_CONTEXT).update_first_due();
        Ok(())
    }
}
