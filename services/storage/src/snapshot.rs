//! Snapshots of a replica, in named parts. Each part has a generation of its own, under which its pieces are stored. A
//! save writes the parts that have changed; then one atomic step makes the snapshot current. What it does not have is
//! removed once nobody reads it.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::generations::HeldGenerations;
use crate::limits::MAX_PART_NAME_BYTES;
use crate::part_writer::{PartWriter, PieceWriter};
use crate::queue::{Operation, WriteRequest};
use crate::snapshot_pointer::{PartPointer, SnapshotPointer};
use crate::stored_snapshot::{StoredPart, StoredSnapshot};
use crate::{PartUpdate, ReplicaStore, SnapshotPart, StorageError, recovery};

impl ReplicaStore {
    /// Replaces the current snapshot. Takes the chunks one after the other and writes them in small batches, which go
    /// through the committer like all writes. Then one atomic step makes the new snapshot current; parts that it does
    /// not have are removed after that, unless somebody reads them. A crash before that step preserves the old
    /// snapshot; the next open removes the leftovers. Dropping the future removes them, too.
    ///
    /// # Errors
    /// `InvalidPart`, before anything is written, if two parts have the same name, a name is empty or too long, or a
    /// part is to be retained that the current snapshot lacks. Otherwise when a part can't be read, or the snapshot
    /// could not be made durable. The old snapshot is then still the current one.
    pub async fn save_snapshot(&self, meta: Bytes, parts: Vec<PartUpdate>) -> Result<(), StorageError> {
        let turn = self.snapshot_lock();
        let _turn = turn.lock().await;
        // The caller of the save before may have cancelled it, and its last step may still be queued.
        self.flush().await?;
        let mut current = self.current_parts(&parts)?;
        let mut held = HeldGenerations::none(self);
        let (mut writer, mut pointers) = (PieceWriter::new(self), Vec::with_capacity(parts.len()));
        for part in parts {
            match part {
                PartUpdate::Write(part) => pointers.push(self.write_part(&mut writer, &mut held, &part).await?),
                // It is there: `current_parts` has looked.
                PartUpdate::Retain(name) => pointers.extend(current.remove(&name)),
            }
        }
        writer.write().await?;
        self.switch_snapshot(SnapshotPointer { parts: pointers, meta }, held).await
    }

    /// Returns the current snapshot, which stays readable as long as the result exists.
    ///
    /// # Errors
    /// When its record cannot be read, or is damaged.
    pub fn snapshot(&self) -> Result<Option<StoredSnapshot>, StorageError> {
        let (pointer, held) = HeldGenerations::from_records(self, |records| {
            let generations = records.current.iter().flat_map(SnapshotPointer::generations).collect();
            (records.current, generations)
        })?;
        Ok(pointer.map(|pointer| StoredSnapshot::new(self, pointer, &held)))
    }

    /// Returns the meta of the current snapshot and one of its parts.
    ///
    /// # Errors
    /// `InvalidPart` if there is a snapshot without that part. Otherwise when its record cannot be read, or is damaged.
    pub fn snapshot_part(&self, name: &str) -> Result<Option<(Bytes, SnapshotPart)>, StorageError> {
        let Some(snapshot) = self.snapshot()? else { return Ok(None) };
        let part = snapshot.part(name).ok_or_else(|| self.invalid_part(name, "there is none"))?;
        Ok(Some((snapshot.meta().clone(), part)))
    }

    /// Returns the meta of the current snapshot, without reading its parts.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn snapshot_meta(&self) -> Result<Option<Bytes>, StorageError> {
        let pointer = self.inner.shared.read(|engine| recovery::read_snapshot_pointer(engine, self.replica))?;
        Ok(pointer.map(|pointer| pointer.meta))
    }

    /// Writes a part. One that this replica has stored is taken as it is.
    async fn write_part(
        &self,
        writer: &mut PieceWriter,
        held: &mut HeldGenerations,
        part: &SnapshotPart,
    ) -> Result<PartPointer, StorageError> {
        if let Some(stored) = part.stored_in(self).map(StoredPart::pointer) {
            held.add(stored.generation);
            return Ok(stored.clone());
        }
        let mut written = PartWriter::new(part.name(), held.add_new());
        for chunk in part.chunks() {
            written.add(writer, chunk?).await?;
        }
        Ok(written.finish())
    }

    /// Makes a snapshot current. Returns once that is durable, and what it replaces is removed.
    async fn switch_snapshot(&self, pointer: SnapshotPointer, held: HeldGenerations) -> Result<(), StorageError> {
        let (sender, switched) = oneshot::channel();
        let done = Box::new(move |result| {
            // Not earlier, even if the caller is gone: only now the record names them.
            drop(held);
            // The waiting caller may have been dropped.
            let _ = sender.send(result);
        });
        let operation = Operation::SwitchSnapshot { pointer };
        self.inner.shared.submit(WriteRequest { replica: self.replica, operation, done });
        switched.await.unwrap_or_else(|_| Err(self.inner.shared.closed()))?;
        // The new snapshot is current, whatever becomes of the removal.
        let _ = self.flush().await;
        Ok(())
    }

    /// Returns the parts of the current snapshot by name, if these parts can be saved after it.
    fn current_parts(&self, parts: &[PartUpdate]) -> Result<HashMap<String, PartPointer>, StorageError> {
        let pointer = self.inner.shared.read(|engine| recovery::read_snapshot_pointer(engine, self.replica))?;
        let current = pointer.unwrap_or_default().parts.into_iter();
        let current: HashMap<String, PartPointer> = current.map(|part| (part.summary.name.clone(), part)).collect();
        self.check_names(parts.iter().map(PartUpdate::name))?;
        for part in parts {
            if matches!(part, PartUpdate::Retain(_)) && !current.contains_key(part.name()) {
                return Err(self.invalid_part(part.name(), "there is none to retain"));
            }
        }
        Ok(current)
    }

    /// Checks the names of a snapshot's parts.
    pub(crate) fn check_names<'a>(&self, parts: impl Iterator<Item = &'a str>) -> Result<(), StorageError> {
        let mut names = HashSet::new();
        for name in parts {
            if name.is_empty() || name.len() > MAX_PART_NAME_BYTES {
                return Err(self.invalid_part(name, "its name is empty or too long"));
            }
            if !names.insert(name) {
                return Err(self.invalid_part(name, "there are two of that name"));
            }
        }
        Ok(())
    }

    pub(crate) fn invalid_part(&self, part: &str, what: &'static str) -> StorageError {
        let place = self.inner.shared.location().to_owned();
        StorageError::InvalidPart { place, replica: self.replica, part: part.to_owned(), what }
    }
}
