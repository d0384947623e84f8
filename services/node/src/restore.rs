//! Restores a node from a backup.
//!
//! Every node of a new cluster restores from the same backup, each its own replicas, before it first runs. A marker
//! file records an incomplete restore, so that it is taken neither for data nor for an empty directory.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use holdfast_backup::{Backup, BackupError, ShardFile, StateChunks};
use holdfast_cluster::{GroupShard, ReplicaLocation, Shard, ShardMap};
use holdfast_core::codec::DecodeError;
use holdfast_core::shard::{FrozenShard, ShardState};
use holdfast_core::{Application, delay_locks_snapshot};
use holdfast_replication::{InitialSnapshot, KnownRules, bootstrap_from_snapshot};
use holdfast_storage::{NodeStore, SnapshotPart, StorageError, StoredSnapshot};

use crate::error::NodeError;
use crate::group_machine::snapshot_part;
use crate::machine::state_part;
use crate::node::shard_map;
use crate::options::NodeOptions;
use crate::stored_config;

/// Exists from the start of a restore to its end; contains the backup id.
const PENDING_FILE: &str = "RESTORE.pending";
/// Exists after a restore.
const DONE_FILE: &str = "RESTORED";

/// Errors of a restore.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup is invalid.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The directory is not empty.
    #[error(
        "{}: is not empty, and a backup is restored into an empty directory only; move it away, or start the \
         node without a restore to go on with what it has", .0.display()
    )]
    NotEmpty(PathBuf),
    /// The cluster config has other shards than the backup.
    #[error(
        "the backup has shard {shard} with the keys {backup}, and the cluster config with {config}; use a config \
             with the shards of the backup"
    )]
    ShardMismatch {
        /// The shard.
        shard: String,
        /// Its keys in the backup.
        backup: String,
        /// Its keys in the config.
        config: String,
    },
    /// The backup was made by a later release, or by one that is too old.
    #[error(
        "shard {shard} of the backup goes by rules {rules}, and this program knows rules {known}; restore it with the \
         release that made it, or a later one"
    )]
    UnsupportedRules {
        /// The shard.
        shard: String,
        /// The rules of the shard's state.
        rules: u16,
        /// The rules that this program knows.
        known: KnownRules,
    },
    /// A state can't be decoded.
    #[error("the state of shard {shard} can't be read: {reason}; use the version that made the backup")]
    Unreadable {
        /// The shard.
        shard: String,
        /// The cause.
        reason: String,
    },
    /// An earlier restore is incomplete.
    #[error("{}: a restore was interrupted here; restore again, which starts over, or empty the directory", .0.display())]
    Interrupted(PathBuf),
    /// An I/O error.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: io::Error,
    },
}

/// Restores this node's replicas into its empty data directory. A directory already restored from the same backup is
/// left unchanged, so that the flag may stay set.
///
/// # Errors
/// When the backup or the directory is invalid. The next call starts an incomplete restore again.
pub async fn restore(options: &NodeOptions, from: &Path) -> Result<(), NodeError> {
    let dir = &options.data_dir;
    let backup = Backup::open(from).map_err(RestoreError::from)?;
    let id = &backup.manifest().id;
    if fs::read_to_string(dir.join(DONE_FILE)).is_ok_and(|done| done.trim() == id) {
        tracing::info!(backup = id, "data directory was restored from this backup before; continuing");
        return Ok(());
    }
    mark_pending(dir, id)?;
    let map = shard_map(stored_config::load_latest(dir, options.cluster_config.clone())?, &options.node_id)?;
    let store = NodeStore::open(dir, &options.identity())?;
    let restored = restore_replicas(&map, options, &backup, &store).await;
    store.close().await;
    let replicas = restored?;
    let (pending, done) = (dir.join(PENDING_FILE), dir.join(DONE_FILE));
    fs::rename(&pending, &done).and_then(|()| File::open(dir)?.sync_all()).map_err(io_error(&done))?;
    tracing::info!(backup = id, made_at = backup.manifest().made_at, replicas, "data directory restored from backup");
    Ok(())
}

/// Returns the backup that the data was restored from, if any.
///
/// # Errors
/// When a restore is incomplete.
pub(crate) fn restored_from(dir: &Path) -> Result<Option<String>, RestoreError> {
    if dir.join(PENDING_FILE).exists() {
        return Err(RestoreError::Interrupted(dir.to_owned()));
    }
    match fs::read_to_string(dir.join(DONE_FILE)) {
        Ok(id) => Ok(Some(id.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(&dir.join(DONE_FILE))(error)),
    }
}

/// Marks the directory, which must be empty or contain an incomplete restore.
fn mark_pending(dir: &Path, id: &str) -> Result<(), RestoreError> {
    fs::create_dir_all(dir).map_err(io_error(dir))?;
    let pending = dir.join(PENDING_FILE);
    let entries = || fs::read_dir(dir).map_err(io_error(dir));
    if pending.exists() {
        for entry in entries()? {
            let path = entry.map_err(io_error(dir))?.path();
            if path.is_file() && path != pending {
                fs::remove_file(&path).map_err(io_error(&path))?;
            }
        }
    }
    for entry in entries()? {
        let path = entry.map_err(io_error(dir))?.path();
        // `lost+found` exists if the directory is the root of a file system.
        if path != pending && path.file_name().is_none_or(|name| name != "lost+found") {
            return Err(RestoreError::NotEmpty(dir.to_owned()));
        }
    }
    let write = || -> io::Result<()> {
        let mut file = File::create(&pending)?;
        writeln!(file, "{id}")?;
        file.sync_all()?;
        File::open(dir)?.sync_all()
    };
    write().map_err(io_error(&pending))
}

async fn restore_replicas(
    map: &ShardMap,
    options: &NodeOptions,
    backup: &Backup,
    store: &NodeStore,
) -> Result<usize, NodeError> {
    let places = map.replicas_of_node(&options.node_id);
    for place in &places {
        let snapshot = initial_snapshot(map, options, backup, place)?;
        let replica = store.replica(place.replica.id);
        bootstrap_from_snapshot(&replica, snapshot).await?;
        let saved = replica.snapshot()?;
        let bytes: u64 = saved.iter().flat_map(StoredSnapshot::summaries).map(|part| part.bytes).sum();
        tracing::info!(group = place.group.id, bytes, "group restored from backup");
    }
    Ok(places.len())
}

/// Collects the states of a group's shards: whatever groups they were in when the backup was made.
fn initial_snapshot(
    map: &ShardMap,
    options: &NodeOptions,
    backup: &Backup,
    place: &ReplicaLocation<'_>,
) -> Result<InitialSnapshot, RestoreError> {
    let mut states = Vec::new();
    let (mut term, mut index, mut rules) = (0, 0, options.rules.lowest);
    for shard in map.shards_of_group(&place.group.id) {
        let about = backup.shard_file(&shard.shard.id)?;
        check_shard(shard.shard, about, options.rules)?;
        states.push(RestoredShard::read(&shard, backup.chunks(about)?)?);
        // The new log begins behind all of theirs.
        (term, index, rules) = (about.term.max(term), about.index.max(index), about.rules.max(rules));
    }
    // The group has one clock, and the shards may have had others: nothing ends earlier for that.
    let clock_ms = states.iter().map(|state| state.clock_ms).max().unwrap_or(0);
    let parts = states.into_iter().map(|state| state.at_clock(clock_ms)).collect();
    let members = place.group.replicas.iter().map(|replica| replica.id).collect();
    let (group, replica) = (place.group.id.clone(), place.replica.id);
    Ok(InitialSnapshot { group, replica, members, term, index, rules, parts })
}

fn check_shard(shard: &Shard, about: &ShardFile, known: KnownRules) -> Result<(), RestoreError> {
    let (theirs, ours) = ((about.lower_bound, about.upper_bound), (shard.lower_bound, shard.upper_bound));
    if theirs != ours {
        let keys = |(lower, upper): (u32, u32)| format!("{lower:08x} to {upper:08x}");
        return Err(RestoreError::ShardMismatch { shard: shard.id.clone(), backup: keys(theirs), config: keys(ours) });
    }
    if !known.contains(about.rules) {
        return Err(RestoreError::UnsupportedRules { shard: shard.id.clone(), rules: about.rules, known });
    }
    Ok(())
}

/// The state that a shard starts from: its counters are advanced far beyond any number that was issued.
struct RestoredShard {
    id: String,
    application: Application,
    clock_ms: u64,
    state: FrozenShard,
}

impl RestoredShard {
    /// Decodes the chunks one after the other.
    fn read(shard: &GroupShard<'_>, chunks: StateChunks) -> Result<Self, RestoreError> {
        let (id, application) = (shard.shard.id.clone(), shard.application);
        let mut failed = None;
        let readable = chunks.map_while(|chunk| chunk.map_err(|error| failed = Some(error)).ok());
        let restored = ShardState::restore(application, &id, readable);
        if let Some(error) = failed {
            return Err(error.into());
        }
        let advanced = restored.and_then(|mut core| core.advance_after_restore().map(|()| core));
        let core =
            advanced.map_err(|error| RestoreError::Unreadable { shard: id.clone(), reason: error.to_string() })?;
        Ok(Self { clock_ms: core.clock_ms(), state: core.freeze(), id, application })
    }

    /// Returns the shard's part of the snapshot, with its clock at least at that time and all remaining times kept.
    fn at_clock(self, clock_ms: u64) -> SnapshotPart {
        let Self { id, application, clock_ms: own_ms, state } = self;
        let delay_ms = if application == Application::Locks { clock_ms.saturating_sub(own_ms) } else { 0 };
        let state = if delay_ms == 0 { state_part(&id, state) } else { delayed_part(&id, state, delay_ms) };
        snapshot_part(&id, Vec::new, state)
    }
}

/// Returns the state of a locks shard as a part of a snapshot, with all its instants later by a time.
fn delayed_part(shard: &str, state: FrozenShard, delay_ms: u64) -> SnapshotPart {
    let place = shard.to_owned();
    SnapshotPart::new(shard, move || {
        let place = place.clone();
        let unreadable = move |error: DecodeError| StorageError::Corrupt {
            place: place.clone(),
            replica: None,
            index: None,
            what: error.to_string(),
        };
        let chunks = delay_locks_snapshot(state.chunks(), delay_ms);
        Box::new(chunks.map(move |chunk| chunk.map(Bytes::from).map_err(&unreadable)))
    })
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> RestoreError {
    let path = path.to_owned();
    move |reason| RestoreError::Io { path, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_directory_is_taken_and_an_interrupted_restore_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("000001.sst");
        fs::write(&file, "data").unwrap();
        let refusal = mark_pending(dir.path(), "one").unwrap_err().to_string();
        assert!(refusal.contains("not empty") && refusal.contains("move it away"), "{refusal}");
        assert!(file.exists());
        fs::remove_file(&file).unwrap();
        mark_pending(dir.path(), "one").unwrap();
        let refusal = restored_from(dir.path()).unwrap_err().to_string();
        assert!(refusal.contains("interrupted"), "{refusal}");
        fs::write(&file, "half of it").unwrap();
        mark_pending(dir.path(), "two").unwrap();
        assert!(!file.exists());
        fs::rename(dir.path().join(PENDING_FILE), dir.path().join(DONE_FILE)).unwrap();
        assert_eq!(restored_from(dir.path()).unwrap().as_deref(), Some("two"));
    }
}
