//! Snapshots of the accounts shard.

use holdfast_primitives::chunks::ChunkWriter;
use serde::{Deserialize, Serialize};

use super::{AccountsState, StoredKey};
use crate::Application;
use crate::codec::DecodeError;
use crate::shard_common::{CommonItem, ShardCommon, restore_items};
use crate::{Account, AccountChange, AccountId, ApiKey, RequestId, Revision};

/// A snapshot item. Variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
enum Item {
    Common(CommonItem),
    Account(Account),
    /// After its account.
    ApiKey {
        key: ApiKey,
        created: Revision,
    },
    /// Before the changes.
    Compacted(Revision),
    /// Oldest first.
    Change(Revision, AccountChange),
    /// Oldest first.
    Creation(RequestId, Account),
    /// Of a backup from before deleted keys were kept by account. Nothing repeats the creation of a key that was
    /// deleted before a backup.
    DeletedKey(String),
    /// After the keys; for keys that were used.
    KeyUsed(String, u64),
    /// Oldest first.
    DeletedKeyOf(AccountId, String),
}

impl Item {
    fn common(&self) -> Option<&CommonItem> {
        if let Self::Common(item) = self { Some(item) } else { None }
    }
}

impl AccountsState {
    pub(crate) fn snapshot(&self) -> Vec<Vec<u8>> {
        let mut writer = ChunkWriter::default();
        for item in self.common.items(Application::Accounts) {
            writer.push(&Item::Common(item));
        }
        for account in self.accounts.values() {
            writer.push(&Item::Account(account.clone()));
        }
        for stored in self.keys.values() {
            writer.push(&Item::ApiKey { key: stored.key.clone(), created: stored.created });
        }
        writer.push(&Item::Compacted(self.changes.compacted_revision()));
        for (revision, change) in self.changes.iter() {
            writer.push(&Item::Change(*revision, change.clone()));
        }
        for (_, id, account) in self.creations.iter() {
            writer.push(&Item::Creation(*id, account.clone()));
        }
        for (account, key_id, ()) in self.deleted_keys.iter() {
            writer.push(&Item::DeletedKeyOf(account, key_id.clone()));
        }
        for (key_id, stored) in &self.keys {
            if let Some(last_used_ms) = stored.last_used_ms {
                writer.push(&Item::KeyUsed(key_id.clone(), last_used_ms));
            }
        }
        writer.finish()
    }

    pub(crate) fn restore(
        state: ShardCommon,
        chunks: impl IntoIterator<Item: AsRef<[u8]>>,
    ) -> Result<Self, DecodeError> {
        let mut core = Self::new(state);
        restore_items(&mut core, chunks, Item::common, Self::restore_item, |core| &core.common)?;
        Ok(core)
    }

    fn restore_item(&mut self, item: Item) -> Result<(), DecodeError> {
        match item {
            Item::Common(item) => self.common.restore(Application::Accounts, item)?,
            Item::Account(account) => {
                let is_new = self.emails.insert(account.email.clone(), account.id).is_none();
                if self.accounts.insert(account.id, account).is_some() || !is_new {
                    return Err(DecodeError::Snapshot("an account or its e-mail comes twice"));
                }
            }
            Item::ApiKey { key, created } => {
                if !self.accounts.contains_key(&key.account) || created > self.common.revision {
                    return Err(DecodeError::Snapshot("a key has no account or is from the future"));
                }
                let of_account = self.keys_by_account.entry(key.account).or_default();
                let is_new = of_account.insert(created, key.key_id.clone()).is_none();
                if self.keys.insert(key.key_id.clone(), StoredKey { key, created, last_used_ms: None }).is_some()
                    || !is_new
                {
                    return Err(DecodeError::Snapshot("a key comes twice"));
                }
            }
            Item::Compacted(revision) => {
                if revision > self.common.revision {
                    return Err(DecodeError::Snapshot("the changes are out of order"));
                }
                self.changes.restore_compacted_revision(revision);
            }
            Item::Change(revision, change) => {
                if revision > self.common.revision
                    || !self.changes.restore(revision, change, self.common.bounds.retained_changes)
                {
                    return Err(DecodeError::Snapshot("the changes are out of order"));
                }
            }
            Item::Creation(id, account) => {
                self.creations.insert(account.id, id, account, self.common.cache_capacity());
            }
            Item::DeletedKey(_) => {}
            Item::DeletedKeyOf(account, key_id) => {
                self.deleted_keys.insert(account, key_id, (), self.common.cache_capacity());
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
