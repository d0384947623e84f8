//! Snapshots, sent part by part in chunks over a connection of their own so that they do not delay other messages. A
//! replica where one shard has failed requests the state of that shard at a checkpoint in the same way.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::internal::{Hello, PartRequest, SnapshotAnswer, SnapshotChunk, SnapshotHeader};
use holdfast_rpc::{CallerId, Event, Server, ServerConnection};
use holdfast_storage::SnapshotPart;
use openraft::errors::{NetworkError, StreamingError, Timeout, Unreachable};
use openraft::network::RPCTypes;
use openraft::raft::SnapshotResponse;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::SnapshotTransfers;
use super::peer_connection::PeerConnection;
use super::request::RpcError;
use crate::group::{DISK_IS_FULL, Group};
use crate::group_manager::GroupManager;
use crate::types::{Snapshot, SnapshotData, TypeConfig, Vote, decode, decode_meta, encode, encode_meta};

/// Maximum delay between two chunks.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(10);
/// Chunks that wait to be taken in.
const CHUNKS_AHEAD: usize = 4;
/// Timeout of a part that was requested.
const PART_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest snapshot accepted, in bytes: far above the size of a million holds, far below a node's memory.
const MAX_SNAPSHOT_BYTES: usize = 4 * 1024 * 1024 * 1024;

/// Sends a snapshot and waits until it is installed.
pub(crate) async fn send(
    link: &Arc<PeerConnection>,
    from: u64,
    to: u64,
    vote: Vote,
    snapshot: Snapshot,
    timeout: Duration,
) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
    let header =
        SnapshotHeader { from, to, vote: encode(&vote), meta: encode_meta(&snapshot.meta, &snapshot.snapshot.group) };
    let first = SnapshotChunk { header: Some(header), ..SnapshotChunk::default() };
    let rest = snapshot.snapshot.parts.into_iter().flat_map(part_chunks);
    let last = SnapshotChunk { is_last: true, ..SnapshotChunk::default() };
    let chunks = std::iter::once(first).chain(rest).chain(std::iter::once(last));
    tracing::info!(from, to, node = link.node(), "sending a snapshot");
    match tokio::time::timeout(timeout, send_chunks(link, chunks)).await {
        Ok(Ok(body)) => decode(&body).map_err(|error| StreamingError::Network(NetworkError::new(&error))),
        Ok(Err(error)) => Err(StreamingError::Unreachable(Unreachable::new(&error))),
        Err(_) => {
            Err(StreamingError::Timeout(Timeout { action: RPCTypes::InstallSnapshot, id: from, target: to, timeout }))
        }
    }
}

/// Returns the name of a part and its content, as they are sent.
fn part_chunks(part: SnapshotPart) -> impl Iterator<Item = SnapshotChunk> {
    let name = SnapshotChunk { part: part.name, ..SnapshotChunk::default() };
    let content = part.chunks.into_iter().map(|data| SnapshotChunk { data, ..SnapshotChunk::default() });
    std::iter::once(name).chain(content)
}

/// Sends the chunks, each once the system has taken the one before, and waits for the answer.
async fn send_chunks(
    link: &PeerConnection,
    mut chunks: impl Iterator<Item = SnapshotChunk>,
) -> Result<Bytes, RpcError> {
    let lost = |error: std::io::Error| RpcError::Rejected(link.node().to_owned(), error.to_string());
    let mut connection = link.open_snapshot().await?;
    loop {
        if connection.is_flushed()
            && let Some(chunk) = chunks.next()
        {
            connection.send(chunk).map_err(lost)?;
        }
        // A rejection may come at any time.
        if let Event::Received(answer) = connection.next(true).await.map_err(lost)? {
            return match answer.rejected.as_str() {
                "" => Ok(answer.body),
                reason => Err(RpcError::Rejected(link.node().to_owned(), reason.to_owned())),
            };
        }
    }
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
        let Event::Received(SnapshotAnswer { body, rejected: reason, is_last }) = event else { continue };
        if !reason.is_empty() {
            return Err(rejected(reason));
        }
        if is_last {
            return Ok(chunks);
        }
        bytes += body.len();
        if bytes > MAX_SNAPSHOT_BYTES {
            return Err(rejected(format!("a part is limited to {MAX_SNAPSHOT_BYTES} bytes")));
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
        let mut receiving = pin!(receive(&self.0, &theirs, incoming));
        let mut reads = true;
        let received = loop {
            tokio::select! {
                biased;
                received = &mut receiving => break received,
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
        // The peer may be gone; it then sends the snapshot again.
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
fn shared_group(host: &GroupManager, theirs: &Hello, from: u64, to: u64) -> Result<Group, String> {
    let group = host.group(to).filter(|group| group.locations().get(&from) == Some(&theirs.node_id));
    group.ok_or_else(|| format!("replicas {from} and {to} share no group here"))
}

/// Receives a snapshot and installs it, or a request for a part; returns what the peer gets, or the reason why not.
async fn receive(
    host: &GroupManager,
    theirs: &Hello,
    mut chunks: mpsc::Receiver<SnapshotChunk>,
) -> Result<Received, String> {
    let SnapshotChunk { header, part_request, .. } = next_chunk(&mut chunks).await?;
    if let Some(PartRequest { from, to, shard, index }) = part_request {
        let part = shared_group(host, theirs, from, to)?.checkpoint_chunks(shard, index);
        return part.map(Received::Part).ok_or_else(|| "it has no such checkpoint any more".to_owned());
    }
    let header = header.ok_or("the first chunk of a snapshot has no header")?;
    let group = shared_group(host, theirs, header.from, header.to)?;
    if !group.has_disk_space() {
        return Err(DISK_IS_FULL.to_owned());
    }
    let damaged = |error: crate::error::WireError| error.to_string();
    let _turn = host.snapshot_permit().await;
    let vote: Vote = decode(&header.vote).map_err(damaged)?;
    let (meta, state) = decode_meta(&header.meta).map_err(damaged)?;
    // A replica that installed it could not continue, so it keeps its state.
    state.check(group.known_rules()).map_err(|error| error.to_string())?;
    let parts = receive_parts(&mut chunks).await?;
    let bytes: usize = parts.iter().flat_map(|part| &part.chunks).map(Bytes::len).sum();
    tracing::info!(group = group.id(), replica = header.to, bytes, "installing a snapshot from a peer");
    let snapshot = Snapshot { meta, snapshot: SnapshotData { group: state, parts } };
    let response = group.raft().install_full_snapshot(vote, snapshot).await.map_err(|fatal| fatal.to_string())?;
    Ok(Received::Snapshot(encode(&response)))
}

/// Receives the parts of a snapshot up to its end.
async fn receive_parts(chunks: &mut mpsc::Receiver<SnapshotChunk>) -> Result<Vec<SnapshotPart>, String> {
    let (mut parts, mut bytes): (Vec<SnapshotPart>, usize) = (Vec::new(), 0);
    loop {
        let SnapshotChunk { data, is_last, part: name, .. } = next_chunk(chunks).await?;
        if is_last {
            return Ok(parts);
        }
        bytes += name.len() + data.len();
        if bytes > MAX_SNAPSHOT_BYTES {
            return Err(format!("a snapshot is limited to {MAX_SNAPSHOT_BYTES} bytes"));
        }
        if !name.is_empty() {
            parts.push(SnapshotPart { name, chunks: Vec::new() });
        } else if let Some(part) = parts.last_mut() {
            part.chunks.push(data);
        } else {
            return Err("a chunk of a snapshot is in no part".to_owned());
        }
    }
}

async fn next_chunk(chunks: &mut mpsc::Receiver<SnapshotChunk>) -> Result<SnapshotChunk, String> {
    let chunk = timeout(CHUNK_TIMEOUT, chunks.recv()).await.map_err(|_| "no chunk for too long")?;
    chunk.ok_or_else(|| "the snapshot is incomplete".to_owned())
}
