//! Snapshots of a namespaces shard.

use std::collections::BTreeMap;

use holdfast_primitives::chunks::ChunkWriter;
use serde::{Deserialize, Serialize};

use super::ended_keys::EndedKeys;
use super::{AccountRecord, NamespacesState};
use crate::Application;
use crate::codec::DecodeError;
use crate::first_limits;
use crate::shard_common::{CommonItem, ShardCommon, restore_items};
use crate::{AccountId, Durability, Limits, Namespace, RequestId};

/// A snapshot item. Variants are only ever added at the end.
#[expect(clippy::large_enum_variant, reason = "one at a time is made and written")]
#[derive(Serialize, Deserialize)]
enum Item {
    Common(CommonItem),
    Account {
        id: AccountId,
        max_number_of_namespaces: u32,
        #[serde(with = "first_limits")]
        limits: Limits,
    },
    /// After its account.
    Namespace(Namespace),
    /// Oldest first.
    Creation(RequestId, Namespace),
    /// All limits of the account, after it and before its namespaces, if the first limits do not suffice.
    Limits(AccountId, Box<Limits>),
    /// The keys of its deleted namespaces, after the account, if there are any.
    EndedKeys(AccountId, Vec<u32>),
    /// As [`Item::Namespace`], if its durability is not [`Durability::Full`].
    DurableNamespace(Namespace, Durability),
    /// As [`Item::Creation`], if its durability is not [`Durability::Full`].
    DurableCreation(RequestId, Namespace, Durability),
}

impl Item {
    fn of_namespace(namespace: &Namespace) -> Self {
        match namespace.durability {
            Durability::Full => Self::Namespace(namespace.clone()),
            durability => Self::DurableNamespace(namespace.clone(), durability),
        }
    }

    fn of_creation(id: RequestId, namespace: &Namespace) -> Self {
        match namespace.durability {
            Durability::Full => Self::Creation(id, namespace.clone()),
            durability => Self::DurableCreation(id, namespace.clone(), durability),
        }
    }

    fn common(&self) -> Option<&CommonItem> {
        if let Self::Common(item) = self { Some(item) } else { None }
    }
}

impl NamespacesState {
    pub(crate) fn snapshot(&self) -> Vec<Vec<u8>> {
        let mut writer = ChunkWriter::default();
        for item in self.common.items(Application::Namespaces) {
            writer.push(&Item::Common(item));
        }
        for (id, record) in &self.accounts {
            let (max_number_of_namespaces, limits) = (record.max_number_of_namespaces, record.limits.clone());
            let all = (!limits.are_first()).then(|| Item::Limits(*id, Box::new(limits.clone())));
            writer.push(&Item::Account { id: *id, max_number_of_namespaces, limits });
            all.iter().for_each(|all| writer.push(all));
            if !record.ended_keys.is_empty() {
                writer.push(&Item::EndedKeys(*id, record.ended_keys.iter().collect()));
            }
            for namespace in record.namespaces.values() {
                writer.push(&Item::of_namespace(namespace));
            }
        }
        for (_, (_, id), namespace) in self.creations.iter() {
            writer.push(&Item::of_creation(*id, namespace));
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
            Item::Common(item) => self.common.restore(Application::Namespaces, item)?,
            Item::Account { id, max_number_of_namespaces, limits } => {
                let (namespaces, ended_keys) = (BTreeMap::new(), EndedKeys::default());
                let record = AccountRecord { max_number_of_namespaces, limits, namespaces, ended_keys };
                if self.accounts.insert(id, record).is_some() {
                    return Err(DecodeError::Snapshot("an account comes twice"));
                }
            }
            Item::Limits(id, limits) => {
                let record = self.accounts.get_mut(&id).filter(|record| record.namespaces.is_empty());
                record.ok_or(DecodeError::Snapshot("limits have no account"))?.limits = *limits;
            }
            Item::EndedKeys(id, keys) => {
                let record = self.accounts.get_mut(&id);
                let record = record.ok_or(DecodeError::Snapshot("keys of namespaces have no account"))?;
                keys.into_iter().for_each(|key| record.ended_keys.insert_key(key));
            }
            Item::Namespace(namespace) => self.restore_namespace(namespace)?,
            Item::DurableNamespace(namespace, durability) => {
                self.restore_namespace(Namespace { durability, ..namespace })?;
            }
            Item::Creation(id, namespace) => self.restore_creation(id, namespace),
            Item::DurableCreation(id, namespace, durability) => {
                self.restore_creation(id, Namespace { durability, ..namespace });
            }
        }
        Ok(())
    }

    fn restore_namespace(&mut self, namespace: Namespace) -> Result<(), DecodeError> {
        let record = self.accounts.get_mut(&namespace.account);
        let record = record.ok_or(DecodeError::Snapshot("a namespace has no account"))?;
        if namespace.incarnation.0 > self.common.revision {
            return Err(DecodeError::Snapshot("an incarnation was never given"));
        }
        if record.namespaces.insert(namespace.name.clone(), namespace).is_some() {
            return Err(DecodeError::Snapshot("a namespace comes twice"));
        }
        Ok(())
    }

    fn restore_creation(&mut self, id: RequestId, namespace: Namespace) {
        let account = namespace.account;
        self.creations.insert(account, (account, id), namespace, self.common.cache_capacity());
    }
}
