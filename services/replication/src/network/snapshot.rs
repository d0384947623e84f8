//! Snapshots, sent in chunks over a separate call so that they do not delay the shared stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::internal::{SnapshotAnswer, SnapshotChunk, SnapshotHeader};
use openraft::errors::{NetworkError, StreamingError, Timeout, Unreachable};
use openraft::network::RPCTypes;
use openraft::raft::SnapshotResponse;
use tonic::{Status, Streaming};

use super::peer_connection::{PeerConnection, RpcError};
use crate::group::DISK_IS_FULL;
use crate::group_manager::GroupManager;
use crate::types::{Snapshot, SnapshotData, TypeConfig, Vote, decode, decode_meta, encode, encode_meta};

/// Maximum delay between two chunks.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(10);
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
    let unreachable = |error: RpcError| StreamingError::Unreachable(Unreachable::new(&error));
    let mut client = link.client().map_err(unreachable)?;
    let header = SnapshotHeader {
        hello: Some(link.hello().map_err(|error| unreachable(RpcError::Rejected("this".into(), error)))?),
        from,
        to,
        vote: encode(&vote),
        meta: encode_meta(&snapshot.meta, snapshot.snapshot.group),
    };
    let first = SnapshotChunk { header: Some(header), data: Bytes::new() };
    let rest = snapshot.snapshot.chunks.into_iter().map(|data| SnapshotChunk { header: None, data });
    let chunks = futures::stream::iter(std::iter::once(first).chain(rest));
    tracing::info!(from, to, node = link.node(), "sending a snapshot");
    match tokio::time::timeout(timeout, client.install_snapshot(link.request(chunks))).await {
        Ok(Ok(answer)) => {
            decode(&answer.into_inner().body).map_err(|error| StreamingError::Network(NetworkError::new(&error)))
        }
        Ok(Err(status)) => Err(unreachable(RpcError::Rejected(link.node().to_owned(), status.message().to_owned()))),
        Err(_) => {
            Err(StreamingError::Timeout(Timeout { action: RPCTypes::InstallSnapshot, id: from, target: to, timeout }))
        }
    }
}

/// Receives a snapshot and installs it.
pub(crate) async fn receive(
    host: &GroupManager,
    mut stream: Streaming<SnapshotChunk>,
) -> Result<SnapshotAnswer, Status> {
    let first = next_chunk(&mut stream).await?.and_then(|chunk| chunk.header);
    let header = first.ok_or_else(|| Status::invalid_argument("the first chunk of a snapshot has no header"))?;
    let theirs =
        header.hello.ok_or_else(|| Status::invalid_argument("the snapshot's sender did not introduce itself"))?;
    host.peer_registry().check(&theirs, None).await.map_err(Status::failed_precondition)?;
    let group = host
        .group(header.to)
        .filter(|group| group.locations().get(&header.from) == Some(&theirs.node_id))
        .ok_or_else(|| Status::not_found(format!("replicas {} and {} share no group here", header.from, header.to)))?;
    if !group.has_disk_space() {
        return Err(Status::resource_exhausted(DISK_IS_FULL));
    }
    let damaged = |error: crate::error::WireError| Status::data_loss(error.to_string());
    let _turn = host.snapshot_permit().await;
    let vote: Vote = decode(&header.vote).map_err(damaged)?;
    let (meta, state) = decode_meta(&header.meta).map_err(damaged)?;
    // A replica that installed it could not continue, so it keeps its state.
    state.check(group.known_rules()).map_err(|error| Status::failed_precondition(error.to_string()))?;
    let mut chunks = Vec::new();
    let mut bytes = 0;
    while let Some(chunk) = next_chunk(&mut stream).await? {
        bytes += chunk.data.len();
        if bytes > MAX_SNAPSHOT_BYTES {
            return Err(Status::resource_exhausted(format!("a snapshot is limited to {MAX_SNAPSHOT_BYTES} bytes")));
        }
        chunks.push(chunk.data);
    }
    tracing::info!(shard = group.shard(), replica = header.to, bytes, "installing a snapshot from a peer");
    let snapshot = Snapshot { meta, snapshot: SnapshotData { group: state, chunks } };
    let response = group
        .raft()
        .install_full_snapshot(vote, snapshot)
        .await
        .map_err(|fatal| Status::internal(fatal.to_string()))?;
    Ok(SnapshotAnswer { body: encode(&response) })
}

async fn next_chunk(stream: &mut Streaming<SnapshotChunk>) -> Result<Option<SnapshotChunk>, Status> {
    tokio::time::timeout(CHUNK_TIMEOUT, stream.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no chunk for too long"))?
}
