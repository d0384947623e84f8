//! RocksDB options, with the reason for each choice.

use rocksdb::{BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, DBRecoveryMode, LogLevel, Options};

use crate::key::ColumnFamilyId;
use crate::limits;

/// All column families. RocksDB requires the first name.
pub(crate) const COLUMN_FAMILIES: [(ColumnFamilyId, &str); 3] =
    [(ColumnFamilyId::State, "default"), (ColumnFamilyId::Log, "log"), (ColumnFamilyId::Snapshot, "snapshot")];

/// Returns the name of a column family.
pub(crate) fn column_family_name(family: ColumnFamilyId) -> &'static str {
    match family {
        ColumnFamilyId::State => COLUMN_FAMILIES[0].1,
        ColumnFamilyId::Log => COLUMN_FAMILIES[1].1,
        ColumnFamilyId::Snapshot => COLUMN_FAMILIES[2].1,
    }
}

/// Returns the options of the whole database.
pub(crate) fn db_options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    // Makes an open or a write fail on any damage, instead of skipping it.
    options.set_paranoid_checks(true);
    // Overwrites the log files of flushed data instead of deleting them: a sync then waits for the data only, not for a
    // new length of the file and new blocks. RocksDB ignores this setting in the stricter recovery modes, because it
    // can't tell older data behind the end of a recycled file from damage. Our own check before the open can, and cuts
    // it off (`wal`).
    options.set_recycle_log_file_num(limits::MAX_RECYCLED_LOG_FILES);
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    // The check reads a whole manifest into memory.
    options.set_max_manifest_file_size(limits::MAX_MANIFEST_BYTES);
    // Rejects a closed log file that is missing or shorter than it was.
    options.set_track_and_verify_wals_in_manifest(true);
    // fdatasync: the data and the length of the file are on disk; its modification time need not be.
    options.set_use_fsync(false);
    // Bounds the log that a start replays, and thereby the duration of a start.
    options.set_max_total_wal_size(limits::MAX_WAL_BYTES);
    options.set_max_open_files(limits::MAX_OPEN_FILES);
    // Few background threads and no periodic reports: an idle node uses no CPU for its storage.
    options.set_max_background_jobs(2);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    // Spreads the writeback of flushes and compactions, so that the sync of a commit does not wait for all of it.
    options.set_bytes_per_sync(1024 * 1024);
    // There is one writer thread; concurrent insertion would only cost memory and atomics.
    options.set_allow_concurrent_memtable_write(false);
    // RocksDB's own text log: only warnings, in few and small files.
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(4);
    options.set_max_log_file_size(4 * 1024 * 1024);
    options
}

/// Returns the options for a replay that fails on anything but whole writes.
pub(crate) fn replay_options() -> Options {
    let mut options = db_options();
    options.set_wal_recovery_mode(DBRecoveryMode::AbsoluteConsistency);
    options
}

/// Returns the column families with their options; they share one block cache.
pub(crate) fn column_family_descriptors() -> Vec<ColumnFamilyDescriptor> {
    let cache = Cache::new_lru_cache(limits::BLOCK_CACHE_BYTES);
    COLUMN_FAMILIES
        .iter()
        .map(|(family, name)| {
            let mut options = Options::default();
            options.set_write_buffer_size(limits::MEMTABLE_BYTES);
            // Entries of a busy log are purged soon after they leave memory. Compressing them, and compacting their
            // files before the purge, costs more CPU than it saves disk. The state is a few short values. Snapshots are
            // large and stay.
            options.set_compression_type(match family {
                ColumnFamilyId::Log | ColumnFamilyId::State => DBCompressionType::None,
                ColumnFamilyId::Snapshot => DBCompressionType::Lz4,
            });
            if *family == ColumnFamilyId::Log {
                options.set_level_zero_file_num_compaction_trigger(8);
            }
            let mut table = BlockBasedOptions::default();
            table.set_block_cache(&cache);
            // Newer than the default, with a checksum that also detects a misplaced block.
            table.set_format_version(6);
            options.set_block_based_table_factory(&table);
            ColumnFamilyDescriptor::new(*name, options)
        })
        .collect()
}
