//! Receives a snapshot of a peer and installs it. What was received is stored, so that the next offer goes on from
//! there.

use bytes::Bytes;
use holdfast_proto::internal::{Hello, OfferedPart, SnapshotAnswer, SnapshotChunk, SnapshotOffer, StoredPieces};
use holdfast_storage::{IncomingSnapshot, PartPiece, PartSummary, StorageError};
use openraft::raft::SnapshotResponse;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::snapshot::{CHUNK_TIMEOUT, CHUNKS_AHEAD, checksum_of, shared_group};
use crate::group::{DISK_IS_FULL, Group};
use crate::group_manager::GroupManager;
use crate::sent_snapshot::SentSnapshot;
use crate::types::{Snapshot, SnapshotData, TypeConfig, Vote, decode, decode_meta, encode};

/// The frames of a connection, and where what is stored is reported.
pub(crate) struct Incoming {
    pub(crate) chunks: mpsc::Receiver<SnapshotChunk>,
    pub(crate) answers: mpsc::Sender<SnapshotAnswer>,
}

/// Receives the offered snapshot and installs it. Returns the encoded response, or the reason why not.
pub(crate) async fn receive(
    host: &GroupManager,
    theirs: &Hello,
    offer: SnapshotOffer,
    mut incoming: Incoming,
) -> Result<Bytes, String> {
    let group = shared_group(host, theirs, offer.from, offer.to)?;
    let stopped = || "the replica has stopped".to_owned();
    tokio::select! {
        () = group.adapter().wait_stopped() => Err(stopped()),
        received = receive_for(host, &group, offer, &mut incoming) => received,
    }
}

async fn receive_for(
    host: &GroupManager,
    group: &Group,
    offer: SnapshotOffer,
    incoming: &mut Incoming,
) -> Result<Bytes, String> {
    let damaged = |error: crate::error::WireError| error.to_string();
    let vote: Vote = decode(&offer.vote).map_err(damaged)?;
    let (meta, state) = decode_meta(&offer.meta).map_err(damaged)?;
    // A replica that installed it could not continue, so it keeps its state.
    state.check(group.known_rules()).map_err(|error| error.to_string())?;
    check_disk(group)?;
    let _turn = host.snapshot_permit().await;
    let last = meta.last_log_id;
    let known =
        group.raft().with_raft_state(move |state| (*state.vote_ref(), last.as_ref() <= state.local_committed()));
    let (current, has_all) = known.await.map_err(|fatal| fatal.to_string())?;
    // One that does not lead any more, or whose snapshot says nothing new, need not send all of it to hear that.
    // openraft checks it again at the end.
    if current > vote || (current == vote && has_all) {
        return Ok(encode(&SnapshotResponse::<TypeConfig>::new(current)));
    }
    let parts = offer.parts.into_iter().map(part_summary).collect::<Result<Vec<_>, _>>()?;
    let unstored = |error: StorageError| error.to_string();
    let mut received = group.store().receive_snapshot(offer.meta, parts).await.map_err(unstored)?;
    let stored = Some(StoredPieces { of_parts: received.stored().to_vec() });
    incoming.answer(SnapshotAnswer { stored, ..SnapshotAnswer::default() }).await?;
    if let Err(error) = receive_pieces(group, &mut received, incoming).await {
        if error.is_unusable {
            received.discard().await.map_err(unstored)?;
        }
        return Err(error.reason);
    }
    let stored = received.finish().ok_or("the snapshot is incomplete")?;
    let bytes: u64 = stored.summaries().map(|part| part.bytes).sum();
    tracing::info!(group = group.id(), replica = offer.to, bytes, "installing snapshot from peer");
    let data = SnapshotData { group: state, stored, sent: SentSnapshot::default() };
    let installed = group.raft().install_full_snapshot(vote, Snapshot { meta, snapshot: data }).await;
    Ok(encode(&installed.map_err(|fatal| fatal.to_string())?))
}

fn check_disk(group: &Group) -> Result<(), String> {
    if group.has_disk_space() { Ok(()) } else { Err(DISK_IS_FULL.to_owned()) }
}

fn part_summary(part: OfferedPart) -> Result<PartSummary, String> {
    let OfferedPart { name, pieces, bytes, digest } = part;
    let digest = digest.as_ref().try_into().map_err(|_| "a part of the snapshot has no digest")?;
    Ok(PartSummary { name, pieces, bytes, digest })
}

/// Why receiving has ended.
struct ReceiveError {
    reason: String,
    /// What was received is not what was offered, or is damaged: it is of no use.
    is_unusable: bool,
}

impl From<String> for ReceiveError {
    fn from(reason: String) -> Self {
        Self { reason, is_unusable: false }
    }
}

impl From<StorageError> for ReceiveError {
    fn from(error: StorageError) -> Self {
        let is_unusable = matches!(error, StorageError::InvalidPart { .. }) || error.is_corrupt();
        Self { reason: error.to_string(), is_unusable }
    }
}

/// Stores pieces until the snapshot is complete.
async fn receive_pieces(
    group: &Group,
    received: &mut IncomingSnapshot,
    incoming: &mut Incoming,
) -> Result<(), ReceiveError> {
    let mut count = 0;
    while !received.is_complete() {
        let chunks = incoming.next_chunks().await?;
        check_disk(group)?;
        count += chunks.len() as u64;
        for (part, pieces) in by_part(chunks)? {
            received.write(part, pieces).await?;
        }
        incoming.answer(SnapshotAnswer { received: count, ..SnapshotAnswer::default() }).await?;
    }
    Ok(())
}

/// Returns the pieces of each part, in order.
fn by_part(chunks: Vec<SnapshotChunk>) -> Result<Vec<(usize, Vec<PartPiece>)>, String> {
    let mut parts: Vec<(usize, Vec<PartPiece>)> = Vec::new();
    for SnapshotChunk { part, number, ends_chunk, data, checksum, .. } in chunks {
        if checksum != checksum_of(part, number, ends_chunk, &data) {
            return Err("a piece of the snapshot has another checksum".to_owned());
        }
        let (part, piece) =
            (usize::try_from(part).unwrap_or(usize::MAX), PartPiece { number, ends_chunk, bytes: data });
        match parts.last_mut() {
            Some((last, pieces)) if *last == part => pieces.push(piece),
            _ => parts.push((part, vec![piece])),
        }
    }
    Ok(parts)
}

impl Incoming {
    /// Returns the chunks that have arrived, at least one.
    async fn next_chunks(&mut self) -> Result<Vec<SnapshotChunk>, String> {
        let mut chunks = Vec::new();
        let next = self.chunks.recv_many(&mut chunks, CHUNKS_AHEAD);
        match timeout(CHUNK_TIMEOUT, next).await {
            Ok(0) => Err("the snapshot is incomplete".to_owned()),
            Ok(_) => Ok(chunks),
            Err(_) => Err("no piece of the snapshot came for too long".to_owned()),
        }
    }

    async fn answer(&self, answer: SnapshotAnswer) -> Result<(), String> {
        self.answers.send(answer).await.map_err(|_| "the connection has ended".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(part: u32, number: u32) -> SnapshotChunk {
        let data = Bytes::from(format!("piece {number} of part {part}"));
        let checksum = checksum_of(part, number, false, &data);
        SnapshotChunk { part, number, data, checksum, ..SnapshotChunk::default() }
    }

    #[test]
    fn pieces_are_stored_by_part_in_the_order_in_which_they_came() {
        let parts = by_part(vec![chunk(0, 7), chunk(0, 8), chunk(1, 0)]).expect("they are sound");
        let numbers = |pieces: &[PartPiece]| pieces.iter().map(|piece| piece.number).collect::<Vec<_>>();
        let parts: Vec<(usize, Vec<u32>)> = parts.iter().map(|(part, pieces)| (*part, numbers(pieces))).collect();
        assert_eq!(parts, [(0, vec![7, 8]), (1, vec![0])]);
    }

    #[test]
    fn a_piece_that_was_changed_on_its_way_is_refused() {
        let changes: [fn(&mut SnapshotChunk); 4] = [
            |chunk| chunk.part += 1,
            |chunk| chunk.number += 1,
            |chunk| chunk.ends_chunk = true,
            |chunk| chunk.data = Bytes::from_static(b"else"),
        ];
        for change in changes {
            let mut changed = chunk(1, 2);
            change(&mut changed);
            assert!(by_part(vec![chunk(1, 1), changed]).is_err());
        }
    }
}
