//! Snapshots that one replica receives from another piece by piece, and snapshots that are read while others replace
//! them.

use bytes::Bytes;
use holdfast_storage::{
    IncomingSnapshot, MemoryDisk, NodeStore, PartPiece, PartSummary, PartUpdate, ReplicaStore, StorageError,
    StoredSnapshot,
};

use crate::common::{Disk, bytes, identity, part, read_parts, read_snapshot, retain, write, write_all};

/// Bytes of a large chunk: it is stored in five pieces.
const LARGE: usize = 1_200_000;
const BATCH: usize = 256 * 1024;

fn large(number: u8) -> Vec<Bytes> {
    vec![Bytes::from(vec![number; LARGE]), bytes("end")]
}

async fn sender() -> (NodeStore, ReplicaStore) {
    let store = NodeStore::in_memory(&MemoryDisk::new(), &identity()).unwrap();
    let replica = store.replica(1);
    let parts = vec![write("a", large(1)), write("none", Vec::new()), write("b", large(2))];
    replica.save_snapshot(bytes("one"), parts).await.unwrap();
    (store, replica)
}

async fn receive(replica: &ReplicaStore, offered: &StoredSnapshot) -> IncomingSnapshot {
    let parts = offered.summaries().cloned().collect();
    replica.receive_snapshot(offered.meta().clone(), parts).await.unwrap()
}

/// The next pieces that are to be sent, with the position of their part.
fn next_pieces(
    offered: &StoredSnapshot,
    incoming: &IncomingSnapshot,
    max_bytes: usize,
) -> Option<(usize, Vec<PartPiece>)> {
    let parts = offered.summaries().zip(incoming.stored()).enumerate();
    let (part, from) =
        parts.filter(|(_, (part, stored))| **stored < part.pieces).map(|(at, (_, from))| (at, *from)).next()?;
    Some((part, offered.pieces(part, from, max_bytes).unwrap()))
}

/// Sends the rest, and returns the number of pieces that it has.
async fn send_rest(offered: &StoredSnapshot, incoming: &mut IncomingSnapshot) -> usize {
    let mut sent = 0;
    while let Some((part, pieces)) = next_pieces(offered, incoming, BATCH) {
        sent += pieces.len();
        incoming.write(part, pieces).await.unwrap();
    }
    sent
}

async fn install(replica: &ReplicaStore, received: StoredSnapshot) {
    let parts = received.parts().into_iter().map(PartUpdate::Write).collect();
    replica.save_snapshot(received.meta().clone(), parts).await.unwrap();
    replica.discard_incoming(|_| true).await.unwrap();
}

fn pieces_of(offered: &StoredSnapshot) -> usize {
    offered.summaries().map(|part| part.pieces as usize).sum()
}

#[tokio::test]
async fn a_snapshot_is_received_from_where_it_was_cut_off_also_after_a_restart() {
    let (_store, source) = sender().await;
    let offered = source.snapshot().unwrap().unwrap();
    for disk in Disk::both() {
        let mut sent = 0;
        for _ in 0..3 {
            let store = disk.open();
            let replica = store.replica(7);
            for _ in 0..2 {
                let mut incoming = receive(&replica, &offered).await;
                let (part, pieces) = next_pieces(&offered, &incoming, 1).unwrap();
                sent += pieces.len();
                incoming.write(part, pieces).await.unwrap();
                assert!(incoming.finish().is_none(), "it is incomplete");
            }
            assert!(read_snapshot(&replica).unwrap().is_none());
            drop(replica);
            store.close().await;
        }
        let store = disk.open();
        let replica = store.replica(7);
        let mut incoming = receive(&replica, &offered).await;
        assert_eq!(incoming.stored().iter().sum::<u32>() as usize, sent);
        sent += send_rest(&offered, &mut incoming).await;
        assert_eq!(sent, pieces_of(&offered), "nothing was sent twice");
        install(&replica, incoming.finish().expect("it is complete")).await;
        assert_eq!(read_snapshot(&replica).unwrap(), read_snapshot(&source).unwrap());
        replica.discard_incoming(|_| panic!("its record is gone")).await.unwrap();
        let own: Vec<PartSummary> = replica.snapshot().unwrap().unwrap().summaries().cloned().collect();
        assert_eq!(own, offered.summaries().cloned().collect::<Vec<_>>(), "the digests are equal");
    }
}

#[tokio::test]
async fn parts_that_the_receiver_has_are_not_sent_again() {
    let (_store, source) = sender().await;
    let first = source.snapshot().unwrap().unwrap();
    for disk in Disk::both() {
        let store = disk.open();
        let replica = store.replica(7);
        let mut incoming = receive(&replica, &first).await;
        send_rest(&first, &mut incoming).await;
        install(&replica, incoming.finish().unwrap()).await;
        // A half of what comes next, then what comes after that.
        source.save_snapshot(bytes("two"), vec![retain("a"), write("b", large(3))]).await.unwrap();
        let second = source.snapshot().unwrap().unwrap();
        let mut incoming = receive(&replica, &second).await;
        assert_eq!(incoming.stored(), [6, 0]);
        incoming.write(1, second.pieces(1, 0, 2 * BATCH).unwrap()).await.unwrap();
        drop(incoming);
        source.save_snapshot(bytes("three"), vec![write("c", large(4)), retain("b")]).await.unwrap();
        let third = source.snapshot().unwrap().unwrap();
        let mut incoming = receive(&replica, &third).await;
        assert_eq!(incoming.stored(), [0, 2]);
        assert_eq!(send_rest(&third, &mut incoming).await, 10);
        install(&replica, incoming.finish().unwrap()).await;
        assert_eq!(read_snapshot(&replica).unwrap(), read_snapshot(&source).unwrap());
        source.save_snapshot(bytes("one"), write_all(&read_parts(&first).unwrap().1)).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_not_what_was_offered_is_refused_before_it_is_complete() {
    let (_store, source) = sender().await;
    let offered = source.snapshot().unwrap().unwrap();
    let disk = MemoryDisk::new();
    let store = NodeStore::in_memory(&disk, &identity()).unwrap();
    let replica = store.replica(7);
    let mut incoming = receive(&replica, &offered).await;
    let mut pieces = offered.pieces(0, 0, usize::MAX).unwrap();
    for wrong in [(0, vec![pieces[1].clone()]), (0, vec![pieces[0].clone(); 2]), (1, pieces.clone()), (9, Vec::new())] {
        let refused = incoming.write(wrong.0, wrong.1).await.unwrap_err();
        assert!(matches!(refused, StorageError::InvalidPart { replica: 7, .. }), "{refused}");
    }
    pieces[3].bytes = Bytes::from(vec![9; pieces[3].bytes.len()]);
    let refused = incoming.write(0, pieces).await.unwrap_err();
    assert!(refused.to_string().contains("another digest"), "{refused}");
    assert!(!incoming.is_complete());
    incoming.discard().await.unwrap();
    replica.flush().await.unwrap();
    let mut incoming = receive(&replica, &offered).await;
    assert_eq!(incoming.stored(), [0, 0, 0], "nothing of it is left");
    send_rest(&offered, &mut incoming).await;
    assert!(incoming.finish().is_some());
    // Two parts of one name are no snapshot.
    let twice: Vec<PartSummary> = offered.summaries().chain(offered.summaries()).cloned().collect();
    assert!(replica.receive_snapshot(bytes("wrong"), twice).await.is_err());
}

#[tokio::test]
async fn a_snapshot_stays_as_long_as_somebody_reads_it_and_then_goes() {
    let disk = MemoryDisk::new();
    let store = NodeStore::in_memory(&disk, &identity()).unwrap();
    let replica = store.replica(1);
    replica.save_snapshot(bytes("one"), vec![write("a", large(1)), write("b", large(2))]).await.unwrap();
    let clean = disk.used_bytes();
    let read = replica.snapshot().unwrap().unwrap();
    for number in 3..6 {
        replica.save_snapshot(bytes("two"), vec![write("a", large(number)), write("b", large(2))]).await.unwrap();
    }
    assert!(disk.used_bytes() > clean + 2 * LARGE);
    let expected = (bytes("one"), vec![part("a", large(1)), part("b", large(2))]);
    assert_eq!(read_parts(&read).unwrap(), expected);
    let of_part = read.part("a").unwrap().without_first(1);
    drop(read);
    assert_eq!(of_part.chunks().map(Result::unwrap).collect::<Vec<_>>(), [bytes("end")]);
    drop(of_part);
    replica.flush().await.unwrap();
    assert_eq!(disk.used_bytes(), clean);
}

#[tokio::test]
async fn a_part_of_no_snapshot_stays_as_long_as_somebody_has_it() {
    let disk = MemoryDisk::new();
    let store = NodeStore::in_memory(&disk, &identity()).unwrap();
    let replica = store.replica(1);
    replica.save_snapshot(bytes("one"), vec![write("a", large(1))]).await.unwrap();
    let clean = disk.used_bytes();
    let mut detached = replica.write_detached_part("b");
    for chunk in large(2) {
        detached.add(chunk).await.unwrap();
    }
    let detached = detached.finish().await.unwrap();
    replica.save_snapshot(bytes("two"), vec![retain("a")]).await.unwrap();
    assert!(disk.used_bytes() > clean + LARGE);
    assert_eq!(detached.chunks().map(Result::unwrap).collect::<Vec<_>>(), large(2));
    drop(detached);
    replica.flush().await.unwrap();
    assert_eq!(disk.used_bytes(), clean);
}

/// Two parts of which the first pieces are stored.
async fn with_two_cut_parts(replica: &ReplicaStore, offered: &StoredSnapshot) {
    let mut incoming = receive(replica, offered).await;
    for part in [0, 2] {
        incoming.write(part, offered.pieces(part, 0, 2 * BATCH).unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_stored_is_read_before_its_sender_is_told_of_it_and_never_after() {
    let (_store, source) = sender().await;
    let offered = source.snapshot().unwrap().unwrap();
    let disk = MemoryDisk::new();
    let store = NodeStore::in_memory(&disk, &identity()).unwrap();
    let replica = store.replica(7);
    with_two_cut_parts(&replica, &offered).await;
    let before = disk.scans();
    let mut incoming = receive(&replica, &offered).await;
    assert_eq!(incoming.stored(), [2, 0, 2]);
    let told = disk.scans();
    assert!(told >= before + 2, "both were read");
    // However their pieces take turns.
    for from in 2..6 {
        for part in [0, 2] {
            incoming.write(part, offered.pieces(part, from, 1).unwrap()).await.unwrap();
        }
    }
    assert!(incoming.is_complete());
    assert_eq!(disk.scans(), told);
}

#[tokio::test]
async fn damaged_parts_are_received_anew_and_what_replaces_them_survives_a_cut() {
    let (_store, source) = sender().await;
    let offered = source.snapshot().unwrap().unwrap();
    let disk = MemoryDisk::new();
    let store = NodeStore::in_memory(&disk, &identity()).unwrap();
    let replica = store.replica(7);
    let mut incoming = receive(&replica, &offered).await;
    send_rest(&offered, &mut incoming).await;
    install(&replica, incoming.finish().unwrap()).await;
    assert_eq!(receive(&replica, &offered).await.stored(), [6, 0, 6], "sound parts are not received again");
    assert_eq!(disk.corrupt_pieces(7), 12);
    let mut incoming = receive(&replica, &offered).await;
    assert_eq!(incoming.stored(), [0, 0, 0]);
    let (part, pieces) = next_pieces(&offered, &incoming, BATCH).unwrap();
    incoming.write(part, pieces).await.unwrap();
    drop(incoming);
    let mut incoming = receive(&replica, &offered).await;
    assert_eq!(incoming.stored(), [1, 0, 0]);
    send_rest(&offered, &mut incoming).await;
    install(&replica, incoming.finish().unwrap()).await;
    assert_eq!(read_snapshot(&replica).unwrap(), read_snapshot(&source).unwrap());
}

#[tokio::test]
async fn a_damaged_record_of_what_is_received_costs_what_was_received_and_nothing_else() {
    let (_store, source) = sender().await;
    let offered = source.snapshot().unwrap().unwrap();
    for restarts in [false, true] {
        let disk = MemoryDisk::new();
        let mut store = NodeStore::in_memory(&disk, &identity()).unwrap();
        store.replica(7).save_snapshot(bytes("own"), vec![write("own", large(5))]).await.unwrap();
        let clean = disk.used_bytes();
        with_two_cut_parts(&store.replica(7), &offered).await;
        assert!(disk.corrupt_incoming(7));
        if restarts {
            store.close().await;
            drop(store);
            store = NodeStore::in_memory(&disk, &identity()).unwrap();
        } else {
            store.replica(7).discard_incoming(|_| false).await.unwrap();
            store.replica(7).flush().await.unwrap();
        }
        assert_eq!(disk.used_bytes(), clean);
        assert_eq!(read_snapshot(&store.replica(7)).unwrap().unwrap().0, bytes("own"));
        assert_eq!(receive(&store.replica(7), &offered).await.stored(), [0, 0, 0]);
    }
}

#[tokio::test]
async fn what_is_being_received_is_discarded_by_its_receiver_alone() {
    let (_store, source) = sender().await;
    let offered = source.snapshot().unwrap().unwrap();
    let store = NodeStore::in_memory(&MemoryDisk::new(), &identity()).unwrap();
    let replica = store.replica(7);
    with_two_cut_parts(&replica, &offered).await;
    let incoming = receive(&replica, &offered).await;
    replica.discard_incoming(|_| true).await.unwrap();
    drop(incoming);
    replica.discard_incoming(|meta| *meta != bytes("one")).await.unwrap();
    assert_eq!(receive(&replica, &offered).await.stored(), [2, 0, 2], "its meta was read");
    replica.discard_incoming(|meta| *meta == bytes("one")).await.unwrap();
    assert_eq!(receive(&replica, &offered).await.stored(), [0, 0, 0]);
}

#[tokio::test]
async fn a_part_in_use_keeps_no_other_part_of_its_snapshot() {
    let disk = MemoryDisk::new();
    let store = NodeStore::in_memory(&disk, &identity()).unwrap();
    let replica = store.replica(1);
    let save = |number| vec![write("a", large(number)), write("b", large(number))];
    replica.save_snapshot(bytes("one"), save(1)).await.unwrap();
    let clean = disk.used_bytes();
    let kept = replica.snapshot().unwrap().unwrap().part("b").unwrap();
    replica.save_snapshot(bytes("two"), save(2)).await.unwrap();
    replica.flush().await.unwrap();
    let more = disk.used_bytes() - clean;
    assert!((LARGE..LARGE + 1_000).contains(&more), "{more} bytes");
    assert_eq!(kept.chunks().map(Result::unwrap).collect::<Vec<_>>(), large(1));
    drop(kept);
    replica.flush().await.unwrap();
    assert_eq!(disk.used_bytes(), clean);
}
