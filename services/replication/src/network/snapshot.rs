//! Snapshots between nodes, each over a connection of its own so that they do not delay other messages: the server
//! side. A replica where one shard has failed requests the state of that shard at a checkpoint in the same way.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::internal::{Hello, PartRequest, SnapshotAnswer, SnapshotChunk};
use holdfast_rpc::{CallerId, ClientConnection, Event, Server, ServerConnection};
use holdfast_storage::{ReplicaStore, SnapshotPart, run_blocking};
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

/// Returns the checksum of a piece of a snapshot: CRC-32 of the numbers of its part and its own, its flag and its
/// bytes.
pub(super) fn checksum_of(part: u32, number: u32, ends_chunk: bool, bytes: &[u8]) -> u32 {
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&part.to_be_bytes());
    checksum.update(&number.to_be_bytes());
    checksum.update(&[u8::from(ends_chunk)]);
    checksum.update(bytes);
    checksum.finalize()
}

/// Requests the state of a shard at a checkpoint and stores it, chunk by chunk, as long as there is space and the next
/// chunk comes in time.
pub(crate) async fn fetch_part(
    link: &PeerConnection,
    request: PartRequest,
    store: &ReplicaStore,
) -> Result<SnapshotPart, RpcError> {
    let mut connection = link.open_snapshot().await?;
    let received = receive_part(&mut connection, request, store).await;
    received.map_err(|reason| RpcError::Rejected(link.node().to_owned(), reason))
}

async fn receive_part(
    connection: &mut ClientConnection<SnapshotTransfers>,
    request: PartRequest,
    store: &ReplicaStore,
) -> Result<SnapshotPart, String> {
    let mut part = store.write_detached_part(&format!("checkpoint {} of shard {}", request.index, request.shard));
    let request = SnapshotChunk { part_request: Some(request), ..SnapshotChunk::default() };
    connection.send(request).map_err(|error| error.to_string())?;
    loop {
        let next = timeout(CHUNK_TIMEOUT, connection.next(true)).await.map_err(|_| "nothing came for too long")?;
        let Event::Received(SnapshotAnswer { body, rejected, is_last, .. }) =
            next.map_err(|error| error.to_string())?
        else {
            continue;
        };
        if !rejected.is_empty() {
            return Err(rejected);
        }
        if is_last {
            return part.finish().await.map_err(|error| error.to_string());
        }
        if !store.has_space() {
            return Err("the disk of this node is nearly full".to_owned());
        }
        let mut adding = pin!(part.add(body));
        loop {
            tokio::select! {
                biased;
                added = &mut adding => break added.map_err(|error| error.to_string())?,
                // The peer must see that this node is alive.
                event = connection.next(false) => drop(event.map_err(|error| error.to_string())?),
            }
        }
    }
}

/// What a peer gets that opened a connection.
enum Received {
    /// It sent a snapshot: the encoded response.
    Snapshot(Bytes),
    /// It requested a part.
    Part(SnapshotPart),
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
            Ok(Received::Part(part)) => match send_part(&mut connection, &part).await {
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
async fn send_part(connection: &mut ServerConnection<SnapshotTransfers>, part: &SnapshotPart) -> io::Result<()> {
    let mut chunks = part.chunks();
    while let Some(chunk) = run_blocking(|| chunks.next()) {
        let body = chunk.map_err(io::Error::other)?;
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
        let part = shared_group(host, theirs, from, to)?.checkpoint_state(shard, index);
        return part.map(Received::Part).ok_or_else(|| "it has no such checkpoint any more".to_owned());
    }
    let offer = offer.ok_or("the first message has no offer")?;
    snapshot_receiver::receive(host, theirs, offer, incoming).await.map(Received::Snapshot)
}
