//! What both engines do alike: round trips, order, reopening, ownership.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use holdfast_storage::limits::MAX_CHUNK_BYTES;
use holdfast_storage::{LogRow, StorageError};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::common::{
    Disk, append, bytes, commit, entries, entry, identity, owner, part, read_all, read_part, read_snapshot, retain,
    write, write_all,
};

#[tokio::test]
async fn entries_are_read_back_as_written_and_replicas_do_not_see_each_other() {
    for disk in Disk::both() {
        let store = disk.open();
        let (one, two) = (store.replica(1), store.replica(2));
        append(&one, 0..300).await;
        append(&two, 5..7).await;
        let in_parts = LogRow { index: 7, head: b"entry 7 ".to_vec(), body: bytes("xxxxxxx") };
        commit(|done| two.append(vec![in_parts], done)).await.unwrap();
        assert_eq!(one.read(0, 300, usize::MAX).unwrap(), entries(0..300));
        assert_eq!(one.read(250, 260, usize::MAX).unwrap(), entries(250..260));
        assert_eq!(one.read(298, 400, usize::MAX).unwrap(), entries(298..300));
        assert_eq!(one.read(400, 500, usize::MAX).unwrap(), []);
        assert_eq!(read_all(&two), entries(5..8));
        assert_eq!(one.last().unwrap(), Some((299, entry(299))));
        assert_eq!(two.last().unwrap(), Some((7, entry(7))));
        assert_eq!(store.replica(3).last().unwrap(), None);
    }
}

#[tokio::test]
async fn a_read_stops_at_its_size_but_returns_at_least_one_entry() {
    for disk in Disk::both() {
        let replica = disk.open().replica(1);
        commit(|done| replica.append((0..10).map(|index| (index, Bytes::from(vec![7; 100]))).collect(), done))
            .await
            .unwrap();
        assert_eq!(replica.read(0, 10, 350).unwrap().len(), 3);
        assert_eq!(replica.read(4, 10, 0).unwrap().len(), 1);
        assert_eq!(replica.read(4, 10, 100).unwrap().len(), 1);
        assert_eq!(replica.read(0, 10, 1000).unwrap().len(), 10);
    }
}

#[tokio::test]
async fn truncation_removes_the_tail_and_new_entries_take_its_place() {
    for disk in Disk::both() {
        let store = disk.open();
        let (replica, other) = (store.replica(1), store.replica(2));
        append(&other, 0..10).await;
        append(&replica, 0..10).await;
        // Handed over without waiting: the order alone decides.
        replica.truncate_from(4, Box::new(|_| {}));
        commit(|done| replica.append(vec![(4, bytes("new"))], done)).await.unwrap();
        let mut expected = entries(0..4);
        expected.push((4, bytes("new")));
        assert_eq!(read_all(&replica), expected);
        assert_eq!(replica.last().unwrap(), Some((4, bytes("new"))));
        assert_eq!(read_all(&other), entries(0..10));
        commit(|done| replica.truncate_from(0, done)).await.unwrap();
        assert_eq!(replica.last().unwrap(), None);
    }
}

#[tokio::test]
async fn a_purge_removes_the_head_and_saves_its_meta() {
    for disk in Disk::both() {
        let store = disk.open();
        let replica = store.replica(1);
        append(&replica, 0..500).await;
        assert_eq!(replica.purged().unwrap(), None);
        for upto in [3, 10, 400] {
            commit(|done| replica.purge_to(upto, bytes(&format!("id {upto}")), done)).await.unwrap();
            assert_eq!(read_all(&replica), entries(upto + 1..500));
            assert_eq!(replica.purged().unwrap(), Some(bytes(&format!("id {upto}"))));
            assert_eq!(replica.read(0, upto + 1, usize::MAX).unwrap(), []);
        }
        // A snapshot may reach beyond the log.
        commit(|done| replica.purge_to(1000, bytes("id 1000"), done)).await.unwrap();
        assert_eq!(replica.last().unwrap(), None);
        append(&replica, 1001..1003).await;
        assert_eq!(read_all(&replica), entries(1001..1003));
    }
}

#[tokio::test]
async fn votes_and_named_values_are_replaced() {
    for disk in Disk::both() {
        let store = disk.open();
        let (one, two) = (store.replica(1), store.replica(2));
        assert_eq!(one.vote().unwrap(), None);
        commit(|done| one.save_vote(bytes("first"), done)).await.unwrap();
        commit(|done| one.save_vote(bytes("second"), done)).await.unwrap();
        commit(|done| one.save_meta("clock", bytes("12"), done)).await.unwrap();
        commit(|done| one.save_meta("clock_more", bytes(""), done)).await.unwrap();
        assert_eq!(one.vote().unwrap(), Some(bytes("second")));
        assert_eq!(one.meta("clock").unwrap(), Some(bytes("12")));
        assert_eq!(one.meta("clock_more").unwrap(), Some(bytes("")));
        assert_eq!(one.meta("other").unwrap(), None);
        assert_eq!((two.vote().unwrap(), two.meta("clock").unwrap()), (None, None));
    }
}

#[tokio::test]
async fn a_replica_is_pristine_until_its_first_write_and_after_its_destruction() {
    for disk in Disk::both() {
        let store = disk.open();
        let (replica, other) = (store.replica(u64::MAX), store.replica(1));
        append(&other, 0..3).await;
        assert!(replica.is_pristine().unwrap());
        append(&replica, 0..3).await;
        commit(|done| replica.truncate_from(0, done)).await.unwrap();
        assert!(!replica.is_pristine().unwrap(), "an empty log is not the same as none");
        append(&replica, 0..3).await;
        commit(|done| replica.save_vote(bytes("vote"), done)).await.unwrap();
        commit(|done| replica.save_meta("clock", bytes("1"), done)).await.unwrap();
        commit(|done| replica.purge_to(1, bytes("purged"), done)).await.unwrap();
        replica.save_snapshot(bytes("meta"), vec![write("a", vec![bytes("chunk")])]).await.unwrap();
        replica.destroy().await.unwrap();
        assert!(replica.is_pristine().unwrap());
        assert_eq!((replica.vote().unwrap(), replica.purged().unwrap(), replica.last().unwrap()), (None, None, None));
        assert_eq!((replica.meta("clock").unwrap(), read_snapshot(&replica).unwrap()), (None, None));
        assert_eq!(read_all(&other), entries(0..3));
        // What was purged before the destruction does not hide new entries.
        append(&replica, 0..2).await;
        assert_eq!(read_all(&replica), entries(0..2));
    }
}

#[tokio::test]
async fn the_longest_lease_of_the_node_is_kept_and_makes_no_replica() {
    for disk in Disk::both() {
        let store = disk.open();
        assert_eq!(store.longest_lease_ms().unwrap(), None);
        store.save_longest_lease_ms(1_500).await.unwrap();
        store.save_longest_lease_ms(2_000).await.unwrap();
        assert_eq!(store.longest_lease_ms().unwrap(), Some(2_000));
        assert!(store.replica(0).is_pristine().unwrap());
        store.close().await;
        drop(store);
        assert_eq!(disk.open().longest_lease_ms().unwrap(), Some(2_000));
    }
}

#[tokio::test]
async fn a_snapshot_comes_back_in_its_parts_and_chunks_and_replaces_the_one_before() {
    for disk in Disk::both() {
        let store = disk.open();
        let replica = store.replica(1);
        assert_eq!((read_snapshot(&replica).unwrap(), replica.snapshot_meta().unwrap()), (None, None));
        assert!(replica.snapshot_part("a").unwrap().is_none());
        let sizes = [0_usize, 1, 1000, 256 * 1024, 1024 * 1024, 700_001, 0];
        let chunks: Vec<_> =
            sizes.iter().enumerate().map(|(number, size)| Bytes::from(vec![number as u8; *size])).collect();
        // In this order, and not in that of the names.
        let parts = [part("b", chunks.clone()), part("none", vec![]), part("a", vec![bytes("small")])];
        replica.save_snapshot(bytes("first"), write_all(&parts)).await.unwrap();
        assert_eq!(read_snapshot(&replica).unwrap(), Some((bytes("first"), parts.to_vec())));
        for part in parts {
            let (meta, found) = replica.snapshot_part(&part.0).unwrap().unwrap();
            assert_eq!((meta, read_part(&found).unwrap()), (bytes("first"), part));
        }
        assert!(matches!(replica.snapshot_part("c").unwrap_err(), StorageError::InvalidPart { .. }));
        replica.save_snapshot(bytes("second"), vec![write("c", vec![bytes("other")])]).await.unwrap();
        assert_eq!(read_snapshot(&replica).unwrap(), Some((bytes("second"), vec![part("c", vec![bytes("other")])])));
        replica.save_snapshot(bytes("third"), Vec::new()).await.unwrap();
        assert_eq!(read_snapshot(&replica).unwrap(), Some((bytes("third"), Vec::new())));
        assert_eq!(replica.snapshot_meta().unwrap(), Some(bytes("third")));
        assert_eq!(read_snapshot(&store.replica(2)).unwrap(), None);
    }
}

#[tokio::test]
async fn a_part_that_is_retained_stays_from_snapshot_to_snapshot_and_after_reopening() {
    for disk in Disk::both() {
        let store = disk.open();
        let (replica, other) = (store.replica(1), store.replica(2));
        let first = |text: &str| vec![bytes(text), Bytes::from(vec![7; 300_000])];
        replica.save_snapshot(bytes("0"), vec![write("a", first("a")), write("b", first("b"))]).await.unwrap();
        for number in 1..4 {
            let changed = vec![bytes(&format!("changed {number}"))];
            other.save_snapshot(bytes("other"), vec![write("b", first("other"))]).await.unwrap();
            let meta = bytes(&number.to_string());
            replica.save_snapshot(meta.clone(), vec![write("b", changed.clone()), retain("a")]).await.unwrap();
            let expected = vec![part("b", changed), part("a", first("a"))];
            assert_eq!(read_snapshot(&replica).unwrap(), Some((meta, expected)));
        }
        replica.save_snapshot(bytes("4"), vec![retain("a"), retain("b")]).await.unwrap();
        let expected = vec![part("a", first("a")), part("b", vec![bytes("changed 3")])];
        assert_eq!(read_snapshot(&replica).unwrap(), Some((bytes("4"), expected.clone())));
        drop((replica, other));
        store.close().await;
        drop(store);

        let store = disk.open();
        let replica = store.replica(1);
        assert_eq!(read_snapshot(&replica).unwrap(), Some((bytes("4"), expected)));
        replica.save_snapshot(bytes("5"), vec![write("b", first("b")), retain("a")]).await.unwrap();
        let expected = vec![part("b", first("b")), part("a", first("a"))];
        assert_eq!(read_snapshot(&replica).unwrap(), Some((bytes("5"), expected)));
    }
}

#[tokio::test]
async fn parts_that_can_not_be_saved_are_refused_and_nothing_is_written() {
    for disk in Disk::both() {
        let store = disk.open();
        let replica = store.replica(1);
        let a = || write("a", vec![bytes("chunk")]);
        replica.save_snapshot(bytes("first"), vec![a()]).await.unwrap();
        let (none, long) = (write("", Vec::new()), write(&"x".repeat(65_536), Vec::new()));
        for wrong in [vec![a(), retain("b")], vec![a(), retain("a")], vec![a(), none], vec![a(), long]] {
            let refused = replica.save_snapshot(bytes("wrong"), wrong).await.unwrap_err();
            assert!(matches!(refused, StorageError::InvalidPart { replica: 1, .. }), "{refused}");
        }
        let too_long = write("a", vec![Bytes::from(vec![0; MAX_CHUNK_BYTES + 1])]);
        assert!(replica.save_snapshot(bytes("wrong"), vec![too_long]).await.is_err());
        let expected = vec![part("a", vec![bytes("chunk")])];
        assert_eq!(read_snapshot(&replica).unwrap(), Some((bytes("first"), expected)));
        // What another replica has is not retained.
        let other = store.replica(2);
        assert!(other.save_snapshot(bytes("wrong"), vec![retain("a")]).await.is_err());
        assert!(other.is_pristine().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_one_snapshot_or_the_other_while_they_are_switched() {
    for disk in Disk::both() {
        let store = disk.open();
        let replica = store.replica(1);
        let chunks = |number: u8| vec![Bytes::from(vec![number; 300_000]); 2];
        let first = vec![write("busy", chunks(0)), write("idle", chunks(255))];
        replica.save_snapshot(Bytes::from(vec![0]), first).await.unwrap();
        let writer = tokio::spawn({
            let replica = replica.clone();
            async move {
                for number in 1..40 {
                    let parts = vec![write("busy", chunks(number)), retain("idle")];
                    replica.save_snapshot(Bytes::from(vec![number]), parts).await.unwrap();
                }
            }
        });
        while !writer.is_finished() {
            let reader = replica.clone();
            let (meta, found) =
                tokio::task::spawn_blocking(move || read_snapshot(&reader)).await.unwrap().unwrap().unwrap();
            assert_eq!(found, [part("busy", chunks(meta[0])), part("idle", chunks(255))]);
            let reader = replica.clone();
            let read = tokio::task::spawn_blocking(move || reader.snapshot_part("busy")).await.unwrap();
            let (meta, found) = read.unwrap().unwrap();
            assert_eq!(read_part(&found).unwrap().1, chunks(meta[0]));
        }
        writer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_come_in_order_and_only_when_the_data_is_durable() {
    for disk in Disk::both() {
        let store = disk.open();
        let called = Arc::new(Mutex::new(vec![Vec::new(); 4]));
        let (tell, mut told) = mpsc::unbounded_channel();
        for number in 0..200_u64 {
            for id in 0..4_u64 {
                let replica = store.replica(id);
                let (called, tell, reader) = (called.clone(), tell.clone(), replica.clone());
                let done = Box::new(move |result: Result<(), StorageError>| {
                    result.unwrap();
                    called.lock()[id as usize].push(number);
                    // Read in the callback: the data is there already.
                    assert_eq!(reader.read(number, number + 1, 0).unwrap(), entries(number..number + 1));
                    tell.send(()).unwrap();
                });
                replica.append(entries(number..number + 1), done);
            }
        }
        for _ in 0..800 {
            told.recv().await.unwrap();
        }
        assert!(called.lock().iter().all(|numbers| *numbers == (0..200).collect::<Vec<_>>()));
    }
}

#[tokio::test]
async fn everything_is_there_after_reopening() {
    for disk in Disk::both() {
        let store = disk.open();
        let replica = store.replica(7);
        append(&replica, 0..100).await;
        commit(|done| replica.save_vote(bytes("vote"), done)).await.unwrap();
        commit(|done| replica.purge_to(20, bytes("purged"), done)).await.unwrap();
        commit(|done| replica.save_meta("clock", bytes("1"), done)).await.unwrap();
        replica.save_snapshot(bytes("meta"), vec![write("a", vec![bytes("chunk"); 3])]).await.unwrap();
        store.pin_peer(9, "store-9").await.unwrap();
        let id = store.store_id().to_owned();
        store.close().await;

        let store = disk.open();
        let replica = store.replica(7);
        assert_eq!(store.store_id(), id);
        assert_eq!(store.peer_pin(9).unwrap().as_deref(), Some("store-9"));
        assert_eq!(store.peer_pin(8).unwrap(), None);
        assert!(!replica.is_pristine().unwrap());
        assert_eq!(read_all(&replica), entries(21..100));
        assert_eq!(replica.vote().unwrap(), Some(bytes("vote")));
        assert_eq!(replica.purged().unwrap(), Some(bytes("purged")));
        assert_eq!(replica.meta("clock").unwrap(), Some(bytes("1")));
        assert_eq!(read_snapshot(&replica).unwrap(), Some((bytes("meta"), vec![part("a", vec![bytes("chunk"); 3])])));
        // The committer remembers how far the log was purged.
        commit(|done| replica.purge_to(25, bytes("more"), done)).await.unwrap();
        assert_eq!(read_all(&replica), entries(26..100));
    }
}

#[tokio::test]
async fn the_last_handle_that_goes_away_finishes_what_is_queued() {
    for disk in Disk::both() {
        let store = disk.open();
        let replica = store.replica(1);
        drop(store);
        let (tell, told) = tokio::sync::oneshot::channel();
        replica.append(entries(0..10), Box::new(move |result| tell.send(result).unwrap()));
        drop(replica);
        told.await.unwrap().unwrap();
        // The committer releases the disk a moment later.
        let store = loop {
            match disk.open_as(&identity()) {
                Err(StorageError::InUse { .. }) => tokio::task::yield_now().await,
                opened => break opened.unwrap(),
            }
        };
        assert_eq!(read_all(&store.replica(1)), entries(0..10));
    }
}

#[tokio::test]
async fn a_closed_store_answers_closed_to_everything() {
    for disk in Disk::both() {
        let store = disk.open();
        let replica = store.replica(1);
        store.close().await;
        store.close().await;
        let closed = |error: StorageError| matches!(error, StorageError::Closed { .. });
        assert!(closed(commit(|done| replica.append(entries(0..1), done)).await.unwrap_err()));
        assert!(closed(replica.vote().unwrap_err()));
        assert!(closed(replica.save_snapshot(bytes(""), vec![write("a", vec![bytes("")])]).await.unwrap_err()));
        assert!(closed(store.pin_peer(1, "x").await.unwrap_err()));
        replica.ready().await;
        assert!(disk.open().replica(1).is_pristine().unwrap());
    }
}

#[tokio::test]
async fn the_data_of_another_node_or_cluster_is_refused_with_both_names() {
    for disk in Disk::both() {
        disk.open().close().await;
        for other in [owner("c1", "nd_2"), owner("c2", "nd_1")] {
            let refused = disk.open_as(&other).err().unwrap();
            let text = refused.to_string();
            assert!(matches!(refused, StorageError::OwnerMismatch { .. }), "{text}");
            for name in ["c1", "nd_1", &other.cluster_id, &other.node_id] {
                assert!(text.contains(name), "{text}");
            }
        }
        assert!(matches!(disk.open_as(&owner("c1", "a\nb")).err().unwrap(), StorageError::InvalidIdentity { .. }));
        disk.open();
    }
}

#[tokio::test]
async fn a_disk_in_use_is_refused_and_the_user_goes_on() {
    for disk in Disk::both() {
        let store = disk.open();
        let refused = disk.open_as(&identity()).err().unwrap();
        assert!(matches!(refused, StorageError::InUse { .. }), "{refused}");
        append(&store.replica(1), 0..3).await;
    }
}

#[tokio::test]
async fn a_full_queue_holds_callers_back_until_it_is_committed() {
    for disk in Disk::both() {
        let store = disk.open();
        let replica = store.replica(1);
        let done_count = Arc::new(AtomicUsize::new(0));
        for index in 0..20 {
            let done_count = done_count.clone();
            let large = Bytes::from(vec![1; 1024 * 1024]);
            replica.ready().await;
            replica.append(
                vec![(index, large)],
                Box::new(move |result| {
                    result.unwrap();
                    done_count.fetch_add(1, Ordering::SeqCst);
                }),
            );
        }
        // Seventeen of them do not fit, so some were committed before the last was let in.
        assert!(done_count.load(Ordering::SeqCst) > 0);
        commit(|done| replica.save_vote(bytes("vote"), done)).await.unwrap();
        assert_eq!(done_count.load(Ordering::SeqCst), 20);
    }
}
