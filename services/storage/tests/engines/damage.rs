//! Damage to the files of RocksDB: refused or detected, never served; a torn tail is no damage.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bytes::Bytes;
use holdfast_storage::{NodeStore, StorageError};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{append, bytes, commit, entries, entry, identity, read_all};
use crate::files::{copy, files, log_file, manifest};

fn open(dir: &Path) -> Result<NodeStore, StorageError> {
    NodeStore::open(dir, &identity())
}

fn flip_bit(path: &Path, at: u64, bit: u8) {
    let mut data = fs::read(path).unwrap();
    data[usize::try_from(at).unwrap()] ^= 1 << bit;
    fs::write(path, data).unwrap();
}

/// A directory with entries `0..count` of replica 7 in its log file, one commit each.
async fn create_store(count: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    for index in 0..count {
        append(&store.replica(7), index..index + 1).await;
    }
    store.close().await;
    dir
}

#[tokio::test]
async fn the_directory_is_for_its_owner_only() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("deep").join("data");
    open(&dir).unwrap().close().await;
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn any_flipped_bit_in_the_log_file_of_a_closed_store_is_refused_and_the_file_is_named() {
    let dir = create_store(40).await;
    let file = log_file(dir.path());
    let length = fs::metadata(&file).unwrap().len();
    let random = &mut StdRng::seed_from_u64(1);
    let mut refused = 0;
    for _ in 0..150 {
        let (at, bit) = (random.random_range(0..length), random.random_range(0..8));
        let damaged = copy(dir.path());
        let name = file.file_name().unwrap();
        flip_bit(&damaged.path().join(name), at, bit);
        match open(damaged.path()) {
            // The empty write with which the log ends may be damaged without harm.
            Ok(store) => assert_eq!(read_all(&store.replica(7)), entries(0..40), "bit {bit} of byte {at}"),
            Err(error) => {
                let text = error.to_string();
                assert!(error.is_corrupt() && text.contains(name.to_str().unwrap()), "{text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 130, "{refused} of 150");
}

#[tokio::test]
async fn a_lost_log_file_before_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let replica = store.replica(7);
    // The vote stays in the first log file, while the memtable of the logs is flushed and a new log file begun.
    commit(|done| replica.save_vote(bytes("vote"), done)).await.unwrap();
    let mut index = 0;
    while files(dir.path(), "log").len() < 3 {
        commit(|done| replica.append(vec![(index, Bytes::from(vec![1; 1024 * 1024]))], done)).await.unwrap();
        index += 1;
    }
    store.close().await;
    let lost = copy(dir.path());
    fs::remove_file(&files(lost.path(), "log")[0]).unwrap();
    let refused = open(lost.path()).err().expect("the loss is noticed");
    assert!(refused.is_corrupt() || matches!(refused, StorageError::Io { .. }), "{refused}");
    let shorter = copy(dir.path());
    let first = &files(shorter.path(), "log")[0];
    let data = fs::read(first).unwrap();
    fs::write(first, &data[..data.len() / 2]).unwrap();
    assert!(open(shorter.path()).is_err());
}

#[tokio::test]
async fn flipped_bytes_in_a_table_are_never_served() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let replica = store.replica(7);
    append(&replica, 0..3000).await;
    commit(|done| replica.save_vote(bytes("vote"), done)).await.unwrap();
    store.close().await;
    // An open writes what it replays from the log file into tables.
    open(dir.path()).unwrap().close().await;
    let tables = files(dir.path(), "sst");
    assert!(!tables.is_empty());
    let random = &mut StdRng::seed_from_u64(2);
    let mut detected = 0;
    for _ in 0..60 {
        let damaged = copy(dir.path());
        let table = &tables[random.random_range(0..tables.len())];
        let length = fs::metadata(table).unwrap().len();
        let (at, bit) = (random.random_range(0..length), random.random_range(0..8));
        flip_bit(&damaged.path().join(table.file_name().unwrap()), at, bit);
        let found = open(damaged.path()).and_then(|store| {
            let replica = store.replica(7);
            Ok((replica.read(0, 3000, usize::MAX)?, replica.vote()?, replica.last()?))
        });
        match found {
            // Bytes of a table that no read needs, such as its statistics, may be damaged without harm.
            Ok(found) => assert_eq!(found, (entries(0..3000), Some(bytes("vote")), Some((2999, entry(2999))))),
            Err(error) => {
                assert!(error.is_corrupt() && error.to_string().contains(damaged.path().to_str().unwrap()), "{error}");
                detected += 1;
            }
        }
    }
    assert!(detected > 20, "{detected} of 60");
}

#[tokio::test]
async fn missing_files_are_refused_and_not_replaced_by_an_empty_store() {
    let dir = create_store(3).await;
    open(dir.path()).unwrap().close().await;
    let table = files(dir.path(), "sst").remove(0);
    for missing in [dir.path().join("CURRENT"), manifest(dir.path()), table] {
        let lost = copy(dir.path());
        fs::remove_file(lost.path().join(missing.file_name().unwrap())).unwrap();
        let before = fs::read_dir(lost.path()).unwrap().count();
        let refused = open(lost.path()).err().unwrap_or_else(|| panic!("{} is missing", missing.display()));
        assert!(refused.is_corrupt(), "{refused}");
        assert!(refused.to_string().contains(lost.path().to_str().unwrap()), "{refused}");
        assert!(fs::read_dir(lost.path()).unwrap().count() >= before);
    }
    // Only the marker is left: the database was removed.
    let lost = tempfile::tempdir().unwrap();
    fs::copy(dir.path().join("STORE"), lost.path().join("STORE")).unwrap();
    assert!(open(lost.path()).err().unwrap().is_corrupt());
}

#[tokio::test]
async fn flipped_bytes_in_the_files_that_name_the_others_are_refused_and_the_files_are_named() {
    let dir = create_store(3).await;
    open(dir.path()).unwrap().close().await;
    let manifest = manifest(dir.path());
    for file in [dir.path().join("CURRENT"), manifest.clone()] {
        let length = fs::metadata(&file).unwrap().len();
        let mut refused = 0;
        for at in 0..length {
            let damaged = copy(dir.path());
            let name = file.file_name().unwrap();
            flip_bit(&damaged.path().join(name), at, u8::try_from(at % 8).unwrap());
            let found = open(damaged.path()).map(|store| read_all(&store.replica(7)));
            match found {
                Ok(found) => assert_eq!(found, entries(0..3), "byte {at} of {}", file.display()),
                Err(error) => {
                    let text = error.to_string();
                    assert!(error.is_corrupt() && text.contains(name.to_str().unwrap()), "byte {at}: {text}");
                    refused += 1;
                }
            }
        }
        println!("{}: {refused} of {length} changed bytes are refused", file.display());
        assert!(refused > length / 2);
    }
}

#[tokio::test]
async fn another_format_and_a_damaged_marker_are_refused() {
    let dir = create_store(3).await;
    let marker = fs::read_to_string(dir.path().join("STORE")).unwrap();
    let other = marker.replace("holdfast-store 2", "holdfast-store 3");
    let checked = &other[..other.rfind("check ").unwrap()];
    let whole = format!("{checked}check {:08x}\n", crc32fast::hash(checked.as_bytes()));
    fs::write(dir.path().join("STORE"), whole).unwrap();
    let refused = open(dir.path()).err().unwrap();
    assert!(matches!(refused, StorageError::UnknownFormat { .. }), "{refused}");
    // What only looks like another format is a damaged one.
    fs::write(dir.path().join("STORE"), other).unwrap();
    let refused = open(dir.path()).err().unwrap();
    assert!(refused.is_corrupt() && refused.to_string().contains("/STORE"), "{refused}");
    fs::write(dir.path().join("STORE"), marker.replace("nd_1", "nd_2")).unwrap();
    assert!(open(dir.path()).err().unwrap().is_corrupt());
    // A first open that was cut short has no marker yet; it is written by the next one.
    fs::remove_file(dir.path().join("STORE")).unwrap();
    assert_eq!(read_all(&open(dir.path()).unwrap().replica(7)), entries(0..3));
    assert_eq!(fs::read_to_string(dir.path().join("STORE")).unwrap(), marker);
}
