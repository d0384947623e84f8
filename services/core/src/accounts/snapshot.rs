//! Snapshots of the accounts shard.

use serde::{Deserialize, Serialize};

use super::{AccountsCore, StoredKey};
use crate::chunks::{self, ChunkWriter};
use crate::codec::DecodeError;
use crate::shard::Application;
use crate::shard_common::{CommonItem, HeaderFirst, ShardCommon};
use crate::{Account, AccountChange, ApiKey, RequestId, Revision};

/// A piece of a snapshot. Variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
enum Item {
    State(CommonItem),
    Account(Account),
    /// After its account.
    ApiKey {
        key: ApiKey,
        created: Revision,
    },
    /// Before the changes.
    Forgotten(Revision),
    /// Oldest first.
    Change(Revision, AccountChange),
    /// Oldest first.
    Remembered(RequestId, Account),
    /// Oldest first.
    DeletedKey(String),
    /// After the keys; of those that were used.
    KeyUsed(String, u64),
}

impl AccountsCore {
    pub(crate) fn snapshot(&self) -> Vec<Vec<u8>> {
        let mut writer = ChunkWriter::new();
        for item in self.state.items(Application::Accounts) {
            writer.push(&Item::State(item));
        }
        for account in self.accounts.values() {
            writer.push(&Item::Account(account.clone()));
        }
        for stored in self.keys.values() {
            writer.push(&Item::ApiKey { key: stored.key.clone(), created: stored.created });
        }
        writer.push(&Item::Forgotten(self.changes.forgotten()));
        for (revision, change) in self.changes.iter() {
            writer.push(&Item::Change(*revision, change.clone()));
        }
        for (id, account) in self.remembered.iter() {
            writer.push(&Item::Remembered(*id, account.clone()));
        }
        for (key_id, ()) in self.deleted_keys.iter() {
            writer.push(&Item::DeletedKey(key_id.clone()));
        }
        for (key_id, stored) in &self.keys {
            if let Some(last_used_ms) = stored.last_used_ms {
                writer.push(&Item::KeyUsed(key_id.clone(), last_used_ms));
            }
        }
        writer.finish()
    }

    pub(crate) fn restore(state: ShardCommon, chunks: &[impl AsRef<[u8]>]) -> Result<Self, DecodeError> {
        let mut core = Self::new(state);
        let mut head = HeaderFirst::default();
        chunks::read(chunks, |item: Item| {
            head.check(if let Item::State(state) = &item { Some(state) } else { None })?;
            core.restore_item(item)
        })?;
        head.finish(&core.state)?;
        Ok(core)
    }

    fn restore_item(&mut self, item: Item) -> Result<(), DecodeError> {
        match item {
            Item::State(item) => self.state.restore(Application::Accounts, item)?,
            Item::Account(account) => {
                let is_new = self.emails.insert(account.email.clone(), account.id).is_none();
                if self.accounts.insert(account.id, account).is_some() || !is_new {
                    return Err(DecodeError::Snapshot("an account or its e-mail comes twice"));
                }
            }
            Item::ApiKey { key, created } => {
                if !self.accounts.contains_key(&key.account) || created > self.state.revision {
                    return Err(DecodeError::Snapshot("a key has no account or is from the future"));
                }
                let of_account = self.keys_of.entry(key.account).or_default();
                let is_new = of_account.insert(created, key.key_id.clone()).is_none();
                if self.keys.insert(key.key_id.clone(), StoredKey { key, created, last_used_ms: None }).is_some()
                    || !is_new
                {
                    return Err(DecodeError::Snapshot("a key comes twice"));
                }
            }
            Item::Forgotten(revision) => {
                if revision > self.state.revision {
                    return Err(DecodeError::Snapshot("the changes are out of order"));
                }
                self.changes.restore_forgotten(revision);
            }
            Item::Change(revision, change) => {
                if revision > self.state.revision
                    || !self.changes.restore(revision, change, self.state.bounds.remembered_changes)
                {
                    return Err(DecodeError::Snapshot("the changes are out of order"));
                }
            }
            Item::Remembered(id, account) => {
                self.remembered.remember(id, account, self.state.bounds.remembered_creations);
            }
            Item::DeletedKey(key_id) => {
                self.deleted_keys.remember(key_id, (), self.state.bounds.remembered_creations);
            }
            Item::KeyUsed(key_id, last_used_ms) => {
                let stored =
                    self.keys.get_mut(&key_id).ok_or(DecodeError::Snapshot("a key that was used is not there"))?;
                stored.last_used_ms = Some(last_used_ms);
            }
        }
        Ok(())
    }
}
