//! Snapshots between nodes, each over a connection of its own so that they do not delay other messages: the server side.
//! A replica where one shard has failed requests the state of that shard at a checkpoint in the same way.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::internal::{Hello, PartRequest, SnapshotAnswer, SnapshotChunk};
use holdfast_rpc::{CallerId, Event, Server, ServerConnection};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::SnapshotTransfers;
use super::peer_connection::PeerConnection;
use super::request::RpcError;
use super::snapshot_receiver::{self, Incoming};
use crate::group::Group;
use crate::group_manager::GroupManager;

/// Maximum delay between two pieces.
pub(super) const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);
/// Pieces that wait to be stored, and answers that wait to be sent.
pub(super) const CHUNKS_AHEAD: usize = 4;
/// Timeout of a part that was requested.
const PART_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest part of a checkpoint accepted, in bytes: far above the size of a million holds, far below a node's memory.
const MAX_PART_BYTES: usize = 4 * 1024 * 1024 * 1024;

/// Returns the checksum of a piece of a snapshot: CRC-32 of the numbers of its part and its own, its flag and its bytes.
pub(super) fn checksum_of(part: u32, number: u32, ends_chunk: bool, bytes: &[u8]) -> u32 {
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&part.to_be_bytes());
    checksum.update(&number.to_be_bytes());
    checksum.update(&[u8::from(ends_chunk)]);
    checksum.update(bytes);
    checksum.finalize()
}

/// Requests the state of a shard at a checkpoint, and returns its chunks.
pub(crate) async fn fetch_part(link: &PeerConnection, request: PartRequest) -> Result<Vec<Bytes>, RpcError> {
    let late = || RpcError::Rejected(link.node().to_owned(), "it took too long".to_owned());
    timeout(PART_TIMEOUT, receive_part(link, request)).await.unwrap_or_else(|_| Err(late()))
}

async fn receive_part(link: &PeerConnection, request: PartRequest) -> Result<Vec<Bytes>, RpcError> {
    let rejected = |reason: String| RpcError::Rejected(link.node().to_owned(), reason);
    let mut connection = link.open_snapshot().await?;
    let request = SnapshotChunk { part_request: Some(request), ..SnapshotChunk::default() };
    connection.send(request).map_err(|error| rejected(error.to_string()))?;
    let (mut chunks, mut bytes) = (Vec::new(), 0);
    loop {
        let event = connection.next(true).await.map_err(|error| rejected(error.to_string()))?;
        let Event::Received(SnapshotAnswer { body, rejected: reason, is_last, .. }) = event else { continue };
        if !reason.is_empty() {
            return Err(rejected(reason));
        }
        if is_last {
            return Ok(chunks);
        }
        bytes += body.len();
        if bytes > MAX_PART_BYTES {
            return Err(rejected(format!("a part is limited to {MAX_PART_BYTES} bytes")));
        }
        chunks.push(body);
    }
}

/// What a peer gets that opened a connection.
enum Received {
    /// It sent a snapshot: the encoded response.
    Snapshot(Bytes),
    /// It requested a part: the chunks.
    Part(Vec<Bytes>),
}

/// Receives the snapshots of peers, and sends them parts of checkpoints.
pub(crate) struct SnapshotServer(pub(crate) GroupManager);

impl Server<SnapshotTransfers> for SnapshotServer {
    async fn admit(&self, _caller: &CallerId, theirs: &Hello) -> Result<Hello, String> {
        self.0.peer_registry().check(theirs, None).await?;
        self.0.peer_registry().hello()
    }

    async fn serve(&self, mut connection: ServerConnection<SnapshotTransfers>, theirs: Hello) {
        let (chunks, incoming) = mpsc::channel(CHUNKS_AHEAD);
        let (answers, mut outgoing) = mpsc::channel(CHUNKS_AHEAD);
        let mut receiving = pin!(receive(&self.0, &theirs, Incoming { chunks: incoming, answers }));
        let mut reads = true;
        let received = loop {
            let has_room = connection.is_flushed();
            tokio::select! {
                biased;
                received = &mut receiving => break received,
                Some(answer) = outgoing.recv(), if has_room => {
                    if connection.send(answer).is_err() {
                        return;
                    }
                }
                permit = chunks.reserve(), if !reads => reads = permit.is_ok(),
                // Also while the snapshot is installed: the peer must see that this node is alive.
                event = connection.next(reads) => match event {
                    Ok(Event::Received(chunk)) => {
                        // There was room, and only this task sends.
                        let _ = chunks.try_send(chunk);
                        reads = false;
                    }
                    Ok(Event::Flushed) => {}
                    Err(_) => return,
                },
            }
        };
        let answer = match received {
            Ok(Received::Snapshot(body)) => SnapshotAnswer { body, ..SnapshotAnswer::default() },
            Ok(Received::Part(chunks)) => match send_part(&mut connection, chunks).await {
                Ok(()) => SnapshotAnswer { is_last: true, ..SnapshotAnswer::default() },
                Err(_) => return,
            },
            Err(rejected) => SnapshotAnswer { rejected, ..SnapshotAnswer::default() },
        };
        // The peer may be gone; it then offers the snapshot again.
        connection.close(answer).await;
    }
}

/// Sends the chunks of a part, each once the system has taken the one before. None of them is empty.
async fn send_part(connection: &mut ServerConnection<SnapshotTransfers>, chunks: Vec<Bytes>) -> Result<(), io::Error> {
    for body in chunks {
        connection.flush().await?;
        connection.send(SnapshotAnswer { body, ..SnapshotAnswer::default() })?;
    }
    connection.flush().await
}

/// Returns the replica of this node that a replica of the peer may address: both are of one group.
pub(super) fn shared_group(host: &GroupManager, theirs: &Hello, from: u64, to: u64) -> Result<Group, String> {
    let group = host.group(to).filter(|group| group.locations().get(&from) == Some(&theirs.node_id));
    group.ok_or_else(|| format!("replicas {from} and {to} share no group here"))
}

/// Receives a snapshot and installs it, or a request for a part; returns what the peer gets, or the reason why not.
async fn receive(host: &GroupManager, theirs: &Hello, mut incoming: Incoming) -> Result<Received, String> {
    let first = timeout(CHUNK_TIMEOUT, incoming.chunks.recv()).await.map_err(|_| "nothing came for too long")?;
    let SnapshotChunk { offer, part_request, .. } = first.ok_or("the connection has ended")?;
    if let Some(PartRequest { from, to, shard, index }) = part_request {
        let part = shared_group(host, theirs, from, to)?.checkpoint_chunks(shard, index);
        return part.map(Received::Part).ok_or_else(|| "it has no such checkpoint any more".to_owned());
    }
    let offer = offer.ok_or("the first message has no offer")?;
    snapshot_receiver::receive(host, theirs, offer, incoming).await.map(Received::Snapshot)
}
