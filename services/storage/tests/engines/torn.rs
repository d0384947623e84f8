//! A power loss during a write: the store opens with everything before the write. Damage before it is refused.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bytes::Bytes;
use holdfast_storage::{NodeStore, ReplicaStore};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{append, bytes, commit, entries, entry, identity, read_all};
use crate::files::{copy, files, log_file, manifest};

/// Blocks that a file system writes at once.
const PAGE: usize = 4096;
const MIB: usize = 1024 * 1024;

fn open(dir: &Path) -> NodeStore {
    NodeStore::open(dir, &identity()).unwrap_or_else(|error| panic!("{error}"))
}

/// What is in the newest log file of an open store.
fn newest_log(dir: &Path) -> Vec<u8> {
    fs::read(files(dir, "log").last().unwrap()).unwrap()
}

/// The log file after a power loss during a write: `before` and `after` the write, with those blocks of it that
/// arrived. `from` is where the write begins.
fn torn_log(before: &[u8], after: &[u8], from: usize, mut arrived: impl FnMut(usize) -> bool) -> Vec<u8> {
    let mut torn = after.to_vec();
    for page in from / PAGE..after.len().div_ceil(PAGE) {
        if !arrived(page) {
            let lost = (page * PAGE).max(from)..((page + 1) * PAGE).min(after.len());
            for (at, byte) in lost.clone().zip(&mut torn[lost]) {
                *byte = before.get(at).copied().unwrap_or(0);
            }
        }
    }
    torn
}

/// A crashed store with entries 0, 1 and 2 of replica 7, each a write of its own, and the log file after each of them.
async fn three_writes() -> (tempfile::TempDir, [Vec<u8>; 3]) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let replica = store.replica(7);
    append(&replica, 0..1).await;
    let first = newest_log(dir.path());
    append(&replica, 1..2).await;
    let second = newest_log(dir.path());
    let number = log_file(dir.path()).file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let large = Bytes::from(forged_records(number).repeat(4000));
    assert!(large.len() > 40 * PAGE);
    commit(|done| replica.append(vec![(2, large)], done)).await.unwrap();
    let third = newest_log(dir.path());
    let crashed = copy(dir.path());
    store.close().await;
    (crashed, [first, second, third])
}

/// Whole records of this log file, but for the id of the store: clients choose bytes of the log.
fn forged_records(number: u32) -> Vec<u8> {
    let mut forged = Vec::new();
    for (kind, number) in [(1_u8, &[][..]), (5, &number.to_le_bytes()), (6, &number.to_le_bytes())] {
        let payload = [&1000_u64.to_le_bytes()[..], &[0; 4]].concat();
        let body = [&[kind], number, &payload].concat();
        let checksum = crc32c::crc32c(&body).rotate_right(15).wrapping_add(0xa282_ead8);
        forged.extend([&checksum.to_le_bytes()[..], &12_u16.to_le_bytes(), &body].concat());
    }
    forged
}

#[tokio::test]
async fn any_missing_blocks_of_the_last_write_are_a_torn_write() {
    let (dir, [_, before, after]) = three_writes().await;
    let random = &mut StdRng::seed_from_u64(3);
    let pages = before.len() / PAGE..after.len().div_ceil(PAGE);
    for sample in 0..40 {
        let crashed = copy(dir.path());
        // Each single block first, then random ones.
        let mut missing = 0;
        let torn = torn_log(&before, &after, before.len(), |page| {
            let is_missing = if sample < 20 { page == pages.start + 2 * sample } else { random.random_bool(0.3) };
            missing += usize::from(is_missing);
            !is_missing
        });
        let log = log_file(crashed.path());
        fs::write(&log, &torn).unwrap();
        let store = open(crashed.path());
        let expected = if missing == 0 { 3 } else { 2 };
        let replica = store.replica(7);
        assert_eq!(replica.last().unwrap().map(|(index, _)| index + 1), Some(expected), "sample {sample}");
        assert_eq!(replica.read(0, 2, usize::MAX).unwrap(), entries(0..2));
        // What was cut off is beside the log.
        let saved = files(crashed.path(), "torn");
        assert_eq!(saved.len(), usize::from(missing > 0));
        assert!(saved.iter().all(|saved| fs::read(saved).unwrap() == torn[before.len()..]));
        // The store goes on, also after another crash.
        append(&replica, expected..5).await;
        let crashed = copy(crashed.path());
        store.close().await;
        let replica = open(crashed.path()).replica(7);
        assert_eq!(replica.read(expected, 5, usize::MAX).unwrap(), entries(expected..5));
    }
}

#[tokio::test]
async fn a_log_file_cut_off_anywhere_is_a_torn_write() {
    let (dir, [first, second, after]) = three_writes().await;
    let ends = [first.len(), second.len(), after.len()];
    for length in (first.len() - 20..second.len() + 20).step_by(3).chain([after.len() - 1, after.len()]) {
        let crashed = copy(dir.path());
        fs::write(log_file(crashed.path()), &after[..length]).unwrap();
        let found = open(crashed.path()).replica(7).last().unwrap().map_or(0, |(index, _)| index as usize + 1);
        assert_eq!(found, ends.iter().filter(|end| **end <= length).count(), "{length} bytes");
    }
}

#[tokio::test]
async fn a_flipped_bit_before_the_last_write_is_refused_and_the_place_is_named() {
    let (dir, [first, second, after]) = three_writes().await;
    let name = log_file(dir.path()).file_name().unwrap().to_owned();
    for at in first.len()..second.len() {
        let damaged = copy(dir.path());
        let mut data = after.clone();
        data[at] ^= 1 << (at % 8);
        fs::write(damaged.path().join(&name), &data).unwrap();
        let refused = NodeStore::open(damaged.path(), &identity()).err().unwrap_or_else(|| panic!("byte {at}"));
        let (text, place) = (refused.to_string(), format!("at byte {}", first.len()));
        assert!(refused.is_corrupt() && text.contains(name.to_str().unwrap()) && text.contains(&place), "{text}");
        assert_eq!(fs::read(damaged.path().join(&name)).unwrap(), data, "nothing was changed");
    }
}

#[tokio::test]
async fn a_flipped_bit_in_the_last_write_of_a_crashed_store_looks_like_a_torn_write() {
    let (dir, [_, second, mut after]) = three_writes().await;
    after[second.len() + 50_000] ^= 1;
    fs::write(log_file(dir.path()), &after).unwrap();
    assert_eq!(read_all(&open(dir.path()).replica(7)), entries(0..2));
}

#[tokio::test]
async fn a_torn_manifest_is_cut_off_and_damage_before_its_last_record_is_refused() {
    let (dir, _) = three_writes().await;
    let whole = fs::read(manifest(dir.path())).unwrap();
    let torn = copy(dir.path());
    fs::write(manifest(torn.path()), [&whole[..], &[9, 9, 9, 9, 200, 0, 1, 5], &[0; 5000]].concat()).unwrap();
    assert_eq!(open(torn.path()).replica(7).last().unwrap().map(|(index, _)| index), Some(2));
    assert_eq!(files(torn.path(), "torn").len(), 1);
    let mut damaged = whole;
    damaged[20] ^= 1;
    fs::write(manifest(dir.path()), &damaged).unwrap();
    let refused = NodeStore::open(dir.path(), &identity()).err().expect("it is damaged").to_string();
    assert!(refused.contains("/MANIFEST-") && refused.contains("at byte"), "{refused}");
}

#[tokio::test]
async fn log_files_without_data_of_their_number_and_obsolete_ones_are_not_read() {
    let (dir, [_, _, third]) = three_writes().await;
    // A file that was renamed, with a power loss before its first write.
    let crashed = copy(dir.path());
    fs::write(crashed.path().join("000777.log"), &third).unwrap();
    assert_eq!(open(crashed.path()).replica(7).last().unwrap().map(|(index, _)| index), Some(2));
    // The tables have everything now. A power loss undid the renaming of a file, but not all that was written into it.
    open(dir.path()).close().await;
    let obsolete = dir.path().join("000001.log");
    fs::write(&obsolete, [&third[..5000], &[7; 3000], &third[8000..]].concat()).unwrap();
    assert_eq!(open(dir.path()).replica(7).last().unwrap().map(|(index, _)| index), Some(2));
    assert!(!obsolete.exists(), "it is deleted");
}

#[tokio::test]
async fn a_lost_end_of_a_log_file_before_others_is_refused_and_the_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let replica = store.replica(7);
    let mut index = 0;
    while files(dir.path(), "log").len() < 2 {
        commit(|done| replica.append(vec![(index, Bytes::from(vec![1; MIB]))], done)).await.unwrap();
        index += 1;
    }
    store.close().await;
    drop(replica);
    let first = files(dir.path(), "log").remove(0);
    let mut data = fs::read(&first).unwrap();
    // As in a recycled file, something else is in the place of the last blocks.
    let end = data.len();
    data[end - 300_000..].fill(9);
    fs::write(&first, &data).unwrap();
    let text = NodeStore::open(dir.path(), &identity()).err().expect("the writes are missing").to_string();
    assert!(text.contains(first.to_str().unwrap()) && text.contains("missing at byte"), "{text}");
    assert_eq!(fs::read(&first).unwrap(), data, "nothing was changed");
}

/// Appends large entries until RocksDB writes into a recycled file, which had another number. Returns the next index.
async fn write_until_recycled(dir: &Path, replica: &ReplicaStore) -> u64 {
    let mut numbers = HashMap::new();
    for index in 0..400 {
        commit(|done| replica.append(vec![(index, Bytes::from(vec![1; MIB]))], done)).await.unwrap();
        let newest = files(dir, "log").pop().unwrap();
        let file = fs::metadata(&newest).unwrap();
        let before = numbers.insert(file.ino(), newest.clone()).filter(|before| *before != newest);
        // A new file may get the inode of a deleted one, but is as short as its first write.
        if before.is_some() && file.len() > 4 * MIB as u64 {
            return index + 1;
        }
    }
    panic!("no log file was recycled");
}

#[tokio::test]
async fn a_recycled_log_file_has_older_data_behind_its_end_which_is_neither_read_nor_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let replica = store.replica(7);
    commit(|done| replica.save_vote(bytes("vote"), done)).await.unwrap();
    let next = write_until_recycled(dir.path(), &replica).await;
    append(&replica, next..next + 1).await;
    let before = newest_log(dir.path());
    append(&replica, next + 1..next + 40).await;
    let after = newest_log(dir.path());
    assert_eq!(before.len(), after.len(), "the write replaced older data");
    let from = before.iter().zip(&after).position(|(before, after)| before != after).unwrap();
    let end = after.len() - before.iter().rev().zip(after.iter().rev()).position(|(a, b)| a != b).unwrap();
    assert!(after.len() - end > MIB, "older data follows");
    store.close().await;
    drop(replica);

    // The directory of a closed store, with the log file as it was before.
    let open_with = |log: &[u8]| {
        let crashed = copy(dir.path());
        fs::write(files(crashed.path(), "log").last().unwrap(), log).unwrap();
        let store = NodeStore::open(crashed.path(), &identity())?;
        let replica = store.replica(7);
        assert_eq!(replica.vote()?, Some(bytes("vote")));
        assert_eq!(replica.read(next, next + 1, usize::MAX)?, entries(next..next + 1));
        replica.last()
    };
    assert_eq!(open_with(&after).unwrap(), Some((next + 39, entry(next + 39))));
    assert_eq!(open_with(&before).unwrap(), Some((next, entry(next))));
    for missing in from / PAGE..=(end - 1) / PAGE {
        let torn = torn_log(&before, &after, from, |page| page != missing);
        assert_eq!(open_with(&torn).unwrap(), Some((next, entry(next))), "block {missing}");
    }
    let mut damaged = after;
    damaged[from - 30] ^= 1;
    let refused = open_with(&damaged).expect_err("a later write is whole").to_string();
    assert!(refused.contains(".log") && refused.contains("at byte"), "{refused}");
}
