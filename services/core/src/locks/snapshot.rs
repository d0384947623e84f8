//! Snapshots of a locks shard. What can be counted or indexed again is not in them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::hold::Hold;
use super::namespace::{Lock, Namespace};
use super::{LocksCore, NamespaceKey};
use crate::chunks::{self, ChunkWriter};
use crate::codec::DecodeError;
use crate::shard::Application;
use crate::shard_state::{HeadFirst, StateItem};
use crate::{AccountId, Incarnation, Limits, Mode, Path, Revision};

/// A piece of a snapshot; written from references, read as values. Variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
enum Item<P, H> {
    State(StateItem),
    Namespace {
        account: AccountId,
        name: String,
        incarnation: Incarnation,
        limits: Limits,
    },
    /// Of the namespace before it.
    Lock {
        path: P,
        revision: Revision,
    },
    /// Of the lock before it, in order of arrival.
    Hold(H),
}

impl LocksCore {
    pub(crate) fn snapshot(&self) -> Vec<Vec<u8>> {
        let mut writer: ChunkWriter<Item<&Path, &Hold>> = ChunkWriter::new();
        for item in self.state.items(Application::Locks) {
            writer.push(&Item::State(item));
        }
        for (key, namespace) in &self.namespaces {
            writer.push(&Item::Namespace {
                account: key.account,
                name: namespace.name.clone(),
                incarnation: key.incarnation,
                limits: namespace.limits.clone(),
            });
            for (path, lock) in &namespace.locks {
                writer.push(&Item::Lock { path, revision: lock.revision });
                for hold in &lock.holds {
                    writer.push(&Item::Hold(hold));
                }
            }
        }
        writer.finish()
    }

    pub(crate) fn restore(shard_id: &str, chunks: &[impl AsRef<[u8]>]) -> Result<Self, DecodeError> {
        let mut restoring = Restoring { core: Self::new(shard_id), namespace: None, lock: None };
        let mut head = HeadFirst::default();
        chunks::read(chunks, |item: Item<Path, Hold>| {
            head.check(matches!(&item, Item::State(state) if state.is_head()))?;
            restoring.take(item)
        })?;
        head.finish()?;
        restoring.finish_lock()?;
        Ok(restoring.core)
    }
}

struct Restoring {
    core: LocksCore,
    namespace: Option<NamespaceKey>,
    lock: Option<(Path, Lock)>,
}

impl Restoring {
    fn take(&mut self, item: Item<Path, Hold>) -> Result<(), DecodeError> {
        match item {
            Item::State(item) => self.core.state.restore(Application::Locks, item)?,
            Item::Namespace { account, name, incarnation, limits } => {
                self.finish_lock()?;
                let key = NamespaceKey { account, incarnation };
                let is_new = self.core.namespaces.insert(key, Namespace::new(&name, &limits)).is_none();
                if self.core.names.insert((account, name), incarnation).is_some() || !is_new {
                    return Err(DecodeError::Snapshot("a namespace comes twice"));
                }
                self.namespace = Some(key);
            }
            Item::Lock { path, revision } => {
                self.finish_lock()?;
                self.lock = Some((path, Lock { revision, holds: Vec::new() }));
            }
            Item::Hold(hold) => {
                let (_, lock) = self.lock.as_mut().ok_or(DecodeError::Snapshot("a hold has no lock"))?;
                let fits = lock
                    .holds
                    .last()
                    .is_none_or(|last| last.token < hold.token && last.mode == Mode::Read && hold.mode == Mode::Read);
                if !fits || hold.token > self.core.state.revision {
                    return Err(DecodeError::Snapshot("two holds conflict or are out of order"));
                }
                lock.holds.push(hold);
            }
        }
        Ok(())
    }

    /// Puts a lock that is complete into its namespace.
    fn finish_lock(&mut self) -> Result<(), DecodeError> {
        let Some((path, mut lock)) = self.lock.take() else { return Ok(()) };
        let namespace = self.namespace.and_then(|key| Some((key, self.core.namespaces.get_mut(&key)?)));
        let (key, namespace) = namespace.ok_or(DecodeError::Snapshot("a lock has no namespace"))?;
        if lock.holds.is_empty() || namespace.locks.contains_key(&path) {
            return Err(DecodeError::Snapshot("a lock has no holds or comes twice"));
        }
        lock.holds.shrink_to_fit();
        let path = Arc::new(path);
        self.core.deadlines.extend(lock.holds.iter().map(|hold| hold.deadline(key, &path)));
        namespace.holds += lock.holds.len() as u64;
        namespace.locks.insert(path, lock);
        Ok(())
    }
}
