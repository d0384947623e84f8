//! Crashes, failed syncs, full disks and lost data, on the twin.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_storage::{Completion, CrashPoint, MemoryDisk, NodeStore, ReplicaStore, StorageError};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{
    append, bytes, commit, entries, identity, part, read_all, read_snapshot, retain, write, write_all,
};

fn open(disk: &MemoryDisk) -> NodeStore {
    NodeStore::in_memory(disk, &identity()).expect("the store opens")
}

#[tokio::test]
async fn a_crash_loses_what_is_not_synced_and_nothing_else() {
    let disk = MemoryDisk::new();
    let store = open(&disk);
    let replica = store.replica(1);
    append(&replica, 0..5).await;
    // The committer has not run yet when the crash comes.
    let lost = tokio::spawn({
        let replica = replica.clone();
        let (tell, told) = tokio::sync::oneshot::channel();
        replica.append(entries(5..9), Box::new(move |result| tell.send(result).unwrap()));
        told
    });
    disk.crash();
    assert!(matches!(lost.await.unwrap().unwrap(), Err(StorageError::Crashed { .. })));
    assert!(matches!(store.failed().borrow().as_ref(), Some(StorageError::Crashed { .. })));

    let again = open(&disk);
    assert_eq!(read_all(&again.replica(1)), entries(0..5));
    assert_eq!(again.store_id(), store.store_id());
    // The old store is detached: its writes go nowhere, and it says so.
    assert!(commit(|done| replica.append(entries(5..6), done)).await.is_err());
    assert!(replica.read(0, 5, usize::MAX).is_err());
    drop((store, replica));
    append(&again.replica(1), 5..6).await;
    assert_eq!(read_all(&again.replica(1)), entries(0..6));
    assert!(matches!(NodeStore::in_memory(&disk, &identity()), Err(StorageError::InUse { .. })));
}

#[tokio::test]
async fn a_failed_sync_poisons_the_store_for_good_and_the_first_cause_is_told() {
    let disk = MemoryDisk::new();
    let store = open(&disk);
    let replica = store.replica(1);
    append(&replica, 0..5).await;
    disk.fail_next_sync();
    let mut failed = store.failed();
    let first = commit(|done| replica.append(entries(5..6), done)).await.unwrap_err();
    assert!(matches!(first, StorageError::Io { .. }), "{first}");
    failed.wait_for(Option::is_some).await.unwrap();

    let writes = disk.writes();
    let poisoned = |error: StorageError| {
        let text = error.to_string();
        assert!(matches!(error, StorageError::Poisoned { .. }) && text.contains("input/output error"), "{text}");
    };
    poisoned(commit(|done| replica.append(entries(5..6), done)).await.unwrap_err());
    poisoned(commit(|done| store.replica(2).save_vote(bytes("vote"), done)).await.unwrap_err());
    poisoned(replica.read(0, 5, usize::MAX).unwrap_err());
    poisoned(replica.save_snapshot(bytes(""), vec![write("a", vec![bytes("")])]).await.unwrap_err());
    poisoned(store.peer_pin(1).unwrap_err());
    assert_eq!(disk.writes(), writes, "it is never tried again");
    store.close().await;
    poisoned(replica.last().unwrap_err());

    assert_eq!(read_all(&open(&disk).replica(1)), entries(0..5));
}

#[tokio::test]
async fn a_full_disk_fails_the_write_and_keeps_what_was_there() {
    let disk = MemoryDisk::new();
    let store = open(&disk);
    append(&store.replica(1), 0..5).await;
    disk.set_capacity(Some(disk.used_bytes() + 1000));
    let replica = store.replica(1);
    let refused = commit(|done| replica.append(vec![(5, Bytes::from(vec![0; 2000]))], done)).await.unwrap_err();
    assert!(refused.to_string().contains("no space left"), "{refused}");
    store.close().await;
    disk.set_capacity(None);
    assert_eq!(read_all(&open(&disk).replica(1)), entries(0..5));
}

#[tokio::test]
async fn every_callback_of_a_failed_batch_gets_the_error() {
    let disk = MemoryDisk::new();
    let store = open(&disk);
    let told = Arc::new(Mutex::new(Vec::new()));
    disk.fail_next_sync();
    for id in 0..10 {
        let told = told.clone();
        store.replica(id).append(entries(0..1), Box::new(move |result| told.lock().push((id, result.is_err()))));
    }
    store.close().await;
    assert_eq!(*told.lock(), (0..10).map(|id| (id, true)).collect::<Vec<_>>());
}

#[tokio::test]
async fn damaged_and_missing_entries_are_named_and_not_served() {
    let disk = MemoryDisk::new();
    let replica = open(&disk).replica(42);
    let named = |error: StorageError, index: u64| {
        let text = error.to_string();
        let expected = format!("replica 42, log index {index}");
        assert!(error.is_corrupt() && text.contains(&expected) && text.contains("in-memory disk"), "{text}");
    };
    append(&replica, 0..10).await;
    assert!(disk.corrupt_entry(42, 4));
    assert_eq!(replica.read(0, 4, usize::MAX).unwrap(), entries(0..4));
    named(replica.read(0, 10, usize::MAX).unwrap_err(), 4);
    assert!(disk.corrupt_entry(42, 9));
    named(replica.last().unwrap_err(), 9);

    append(&replica, 0..10).await;
    assert!(disk.remove_entry(42, 6));
    named(replica.read(0, 10, usize::MAX).unwrap_err(), 6);
    named(replica.read(6, 10, usize::MAX).unwrap_err(), 6);
    // The range itself is empty; that the log goes on behind it shows the loss.
    named(replica.read(6, 7, usize::MAX).unwrap_err(), 6);
    named(replica.read(4, 7, usize::MAX).unwrap_err(), 6);
    assert_eq!(replica.read(7, 10, usize::MAX).unwrap(), entries(7..10));

    // With a purge, the first entry behind it is known to be there.
    append(&replica, 6..7).await;
    commit(|done| replica.purge_to(2, bytes("id"), done)).await.unwrap();
    assert!(disk.remove_entry(42, 3));
    append(&replica, 4..5).await;
    named(replica.read(0, 5, usize::MAX).unwrap_err(), 3);
}

/// The chunks of a part, in several batches.
fn large(number: u8) -> Vec<Bytes> {
    vec![Bytes::from(vec![number; 1024 * 1024]); 3]
}

#[tokio::test]
async fn leftovers_of_a_snapshot_that_a_crash_cut_short_are_removed_at_the_next_open() {
    let disk = MemoryDisk::new();
    let store = open(&disk);
    store.replica(1).save_snapshot(bytes("old"), vec![write("a", large(0)), write("b", large(1))]).await.unwrap();
    let clean = disk.used_bytes();
    let next = || vec![retain("a"), write("b", large(2))];
    disk.crash_at_write(7, CrashPoint::AfterSync);
    assert!(store.replica(1).save_snapshot(bytes("new"), next()).await.is_err());
    assert!(disk.used_bytes() > clean + 1024 * 1024);
    let store = open(&disk);
    assert_eq!(disk.used_bytes(), clean);
    let old = vec![part("a", large(0)), part("b", large(1))];
    assert_eq!(read_snapshot(&store.replica(1)).unwrap(), Some((bytes("old"), old)));
    store.replica(1).save_snapshot(bytes("new"), next()).await.unwrap();
    let new = vec![part("a", large(0)), part("b", large(2))];
    assert_eq!(read_snapshot(&store.replica(1)).unwrap(), Some((bytes("new"), new)));
    assert_eq!(disk.used_bytes(), clean);
}

#[tokio::test]
async fn replaced_parts_and_leftovers_of_an_aborted_save_are_removed_at_the_next_switch() {
    let disk = MemoryDisk::new();
    let store = open(&disk);
    let replica = store.replica(1);
    replica.save_snapshot(bytes("one"), vec![write("a", large(0)), write("b", large(1))]).await.unwrap();
    let clean = disk.used_bytes();
    replica.save_snapshot(bytes("two"), vec![write("b", large(2)), retain("a")]).await.unwrap();
    assert_eq!(disk.used_bytes(), clean);

    let until_something_is_written = async {
        while disk.used_bytes() == clean {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        saved = replica.save_snapshot(bytes("six"), vec![write("b", large(3)), retain("a")]) => panic!("{saved:?}"),
        () = until_something_is_written => {}
    }
    // What it has written goes with it.
    replica.flush().await.unwrap();
    assert_eq!(disk.used_bytes(), clean);
    let parts = vec![part("b", large(2)), part("a", large(0))];
    assert_eq!(read_snapshot(&replica).unwrap(), Some((bytes("two"), parts.clone())));
    // The next one need not write anything.
    replica.save_snapshot(bytes("ten"), vec![retain("b"), retain("a")]).await.unwrap();
    assert_eq!((read_snapshot(&replica).unwrap(), disk.used_bytes()), (Some((bytes("ten"), parts)), clean));
    replica.save_snapshot(bytes("end"), vec![retain("b")]).await.unwrap();
    assert!(disk.used_bytes() < clean - 2 * 1024 * 1024, "a part that is not named goes");
}

#[tokio::test]
async fn a_crash_at_any_write_of_a_snapshot_leaves_the_old_one_or_the_new_one() {
    for point in [CrashPoint::BeforeSync, CrashPoint::AfterSync] {
        for nth in 1.. {
            let disk = MemoryDisk::new();
            let store = open(&disk);
            let chunks = |number: u8| vec![Bytes::from(vec![number; 300_000]); 2];
            let old = [part("a", chunks(0)), part("b", chunks(1)), part("c", chunks(2))];
            let new = [part("b", chunks(3)), part("c", chunks(2)), part("d", chunks(4))];
            store.replica(1).save_snapshot(bytes("old"), write_all(&old)).await.unwrap();
            disk.crash_at_write(nth, point);
            let next = vec![write("b", chunks(3)), retain("c"), write("d", chunks(4))];
            let saved = store.replica(1).save_snapshot(bytes("new"), next).await;
            drop(store);
            if saved.is_ok() {
                assert!(nth > 3, "it takes several writes");
                break;
            }
            let found = read_snapshot(&open(&disk).replica(1)).unwrap().unwrap();
            let is_new = found == (bytes("new"), new.to_vec());
            assert!(is_new || found == (bytes("old"), old.to_vec()));
            assert!(!is_new || point == CrashPoint::AfterSync);
        }
    }
}

#[tokio::test]
async fn a_large_snapshot_does_not_hold_back_the_commits_of_others() {
    let disk = MemoryDisk::new();
    let store = open(&disk);
    disk.set_sync_delay(Duration::from_micros(10));
    let snapshot = tokio::spawn({
        let replica = store.replica(1);
        let chunks = vec![Bytes::from(vec![1; 1024 * 1024]); 16];
        async move { replica.save_snapshot(bytes("meta"), vec![write("a", chunks)]).await }
    });
    let mut commits = 0;
    while !snapshot.is_finished() {
        append(&store.replica(2), commits..commits + 1).await;
        commits += 1;
    }
    snapshot.await.unwrap().unwrap();
    assert!(commits >= 16, "{commits} commits beside 64 pieces");
}

#[test]
fn a_runtime_that_goes_away_with_its_committer_promises_nothing() {
    let disk = MemoryDisk::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = runtime.block_on(async { open(&disk) });
    let push = |store: &NodeStore| {
        let told = told.clone();
        store.replica(1).append(entries(0..1), Box::new(move |result| told.lock().push(result.is_ok())));
    };
    push(&store);
    drop(runtime);
    push(&store);
    assert_eq!(*told.lock(), [false, false]);
    assert!(matches!(NodeStore::in_memory(&disk, &identity()), Err(StorageError::NoRuntime)));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { assert!(open(&disk).replica(1).is_pristine().unwrap()) });
}

/// What a replica must have: what was acknowledged, and what was handed over after it and may be there or not.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    log: BTreeMap<u64, Bytes>,
    purged: Option<u64>,
    vote: Option<Bytes>,
}

impl Model {
    fn next(&self) -> u64 {
        let after_purge = self.purged.map_or(0, |purged| purged + 1);
        self.log.last_key_value().map_or(after_purge, |(last, _)| last + 1)
    }

    fn read(replica: &ReplicaStore) -> Self {
        let purged = replica.purged().unwrap();
        let purged = purged.map(|meta| String::from_utf8(meta.to_vec()).unwrap().parse().unwrap());
        Self { log: read_all(replica).into_iter().collect(), purged, vote: replica.vote().unwrap() }
    }
}

/// The states that a replica went through, oldest first, and how many of its operations were acknowledged.
struct History {
    states: Vec<Model>,
    acknowledged: Arc<Mutex<usize>>,
}

impl History {
    fn apply_random_operation(&mut self, replica: &ReplicaStore, random: &mut StdRng) {
        let mut state = self.states.last().unwrap().clone();
        let done = self.callback();
        let next = state.next();
        match random.random_range(0..10) {
            0 => {
                let from = random.random_range(state.purged.map_or(0, |purged| purged + 1)..=next);
                state.log.split_off(&from);
                replica.truncate_from(from, done);
            }
            1 if next > 0 => {
                let to = random.random_range(next.saturating_sub(60)..next + 3).max(state.purged.unwrap_or(0));
                state.log = state.log.split_off(&(to + 1));
                state.purged = Some(to);
                replica.purge_to(to, Bytes::from(to.to_string()), done);
            }
            2 => {
                state.vote = Some(Bytes::from(random.random::<u64>().to_string()));
                replica.save_vote(state.vote.clone().unwrap(), done);
            }
            _ => {
                let count = random.random_range(1..20);
                let added = (next..next + count).map(|index| (index, Bytes::from(random.random::<u64>().to_string())));
                let added: Vec<_> = added.collect();
                state.log.extend(added.iter().cloned());
                replica.append(added, done);
            }
        }
        self.states.push(state);
    }

    fn callback(&self) -> Completion {
        let (number, acknowledged) = (self.states.len(), self.acknowledged.clone());
        Box::new(move |result| {
            let mut acknowledged = acknowledged.lock();
            if result.is_ok() {
                assert_eq!(*acknowledged, number - 1, "in order, and nothing after a failure");
                *acknowledged = number;
            }
        })
    }
}

#[tokio::test]
async fn whatever_was_acknowledged_is_there_after_a_crash_at_any_write() {
    for seed in 0..300 {
        let random = &mut StdRng::seed_from_u64(seed);
        let disk = MemoryDisk::new();
        let mut states = vec![Model::default(); 4];
        for _ in 0..4 {
            let store = open(&disk);
            let mut histories: Vec<_> = states
                .iter()
                .map(|state| History { states: vec![state.clone()], acknowledged: Arc::default() })
                .collect();
            let point = if random.random() { CrashPoint::BeforeSync } else { CrashPoint::AfterSync };
            let nth = random.random_range(1..12);
            disk.crash_at_write(nth, point);
            while store.failed().borrow().is_none() {
                let id = random.random_range(0..4_usize);
                histories[id].apply_random_operation(&store.replica(id as u64), random);
                if random.random_ratio(1, 5) {
                    tokio::task::yield_now().await;
                }
            }
            store.close().await;

            let store = open(&disk);
            for (id, history) in histories.iter().enumerate() {
                let found = Model::read(&store.replica(id as u64));
                let acknowledged = *history.acknowledged.lock();
                let place = history.states[acknowledged..].iter().position(|state| *state == found);
                let place = place.unwrap_or_else(|| panic!("seed {seed}, replica {id}: {found:?} was never a state"));
                assert!(place == 0 || point == CrashPoint::AfterSync, "seed {seed}: unsynced data is there");
                states[id] = found;
            }
            store.close().await;
        }
    }
}
