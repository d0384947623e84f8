//! Sends a snapshot to a peer, from where the peer's copy ends.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::internal::{OfferedPart, SnapshotAnswer, SnapshotChunk, SnapshotOffer};
use holdfast_rpc::{ClientConnection, Event};
use holdfast_storage::{PartPiece, PartSummary, StorageError, StoredSnapshot, run_blocking};
use openraft::errors::{NetworkError, StreamingError, Timeout, Unreachable};
use openraft::network::RPCTypes;
use openraft::raft::SnapshotResponse;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::SnapshotTransfers;
use super::peer_connection::PeerConnection;
use super::request::RpcError;
use super::snapshot::checksum_of;
use crate::types::{Snapshot, SnapshotData, TypeConfig, Vote, decode, encode};

/// Bytes that are sent and not yet stored by the receiver, before the sender waits.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Bytes read from the store at once.
const READ_BYTES: usize = 1024 * 1024;
/// Bytes per second that a node sends of all its snapshots together, so that they leave room for everything else.
const BYTES_PER_SECOND: u64 = 64 * 1024 * 1024;

/// Spreads what a node sends of snapshots over time.
#[derive(Default)]
pub(crate) struct SnapshotPacer {
    /// When the next piece may be sent.
    next: Mutex<Option<Instant>>,
}

impl SnapshotPacer {
    /// Returns when a piece of this size may be sent; those asked for later come after it.
    fn reserve(&self, bytes: usize) -> Instant {
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / BYTES_PER_SECOND;
        let mut next = self.next.lock();
        let now = Instant::now();
        let at = next.map_or(now, |next| next.max(now));
        *next = Some(at + Duration::from_nanos(nanos));
        at
    }
}

/// A transfer to one replica.
pub(crate) struct SnapshotTransfer<'a> {
    pub(crate) link: &'a Arc<PeerConnection>,
    pub(crate) pacer: &'a SnapshotPacer,
    /// The replica that sends, and the one that receives.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// How long nothing may be stored before it ends.
    pub(crate) patience: Duration,
}

impl SnapshotTransfer<'_> {
    /// Sends a snapshot and waits until it is installed, as long as there is progress.
    pub(crate) async fn send(
        self,
        vote: Vote,
        snapshot: &Snapshot,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let stored = &snapshot.snapshot.stored;
        let parts = stored.summaries().map(offered_part).collect();
        let meta = stored.meta().clone();
        let offer = SnapshotOffer { from: self.from, to: self.to, vote: encode(&vote), meta, parts };
        let (from, to, node) = (self.from, self.to, self.link.node());
        tracing::info!(from, to, node, "sending snapshot");
        match self.run(snapshot, offer).await {
            Ok(Some(body)) => decode(&body).map_err(|error| StreamingError::Network(NetworkError::new(&error))),
            Ok(None) => {
                let (action, timeout) = (RPCTypes::InstallSnapshot, self.patience);
                Err(StreamingError::Timeout(Timeout { action, id: self.from, target: self.to, timeout }))
            }
            Err(error) => Err(StreamingError::Unreachable(Unreachable::new(&error))),
        }
    }

    /// Returns the response; `None` if nothing was stored for too long.
    async fn run(&self, snapshot: &Snapshot, offer: SnapshotOffer) -> Result<Option<bytes::Bytes>, RpcError> {
        let SnapshotData { stored, sent, .. } = &snapshot.snapshot;
        let lost = |error: io::Error| RpcError::Rejected(self.link.node().to_owned(), error.to_string());
        let mut connection = self.link.open_snapshot().await?;
        // Not before: whoever cannot be reached is sent the newest one later, and the log keeps nothing for it.
        let transfer = sent.begin(self.to, &snapshot.meta, &snapshot.snapshot);
        connection.send(SnapshotChunk { offer: Some(offer), ..SnapshotChunk::default() }).map_err(lost)?;
        let mut window = SendWindow::new(stored);
        loop {
            if let Err(error) = window.prepare(self.pacer) {
                if error.is_corrupt() {
                    tracing::error!(replica = self.from, %error, "saved snapshot damaged; making a new one");
                    sent.report_damage();
                }
                return Err(lost(io::Error::other(error)));
            }
            let (has_room, send_at) = (connection.is_flushed(), window.send_at());
            let deadline = window.progress_at().map(|at| at + self.patience);
            tokio::select! {
                event = connection.next(true) => {
                    let Event::Received(answer) = event.map_err(lost)? else { continue };
                    if !answer.rejected.is_empty() {
                        return Err(RpcError::Rejected(self.link.node().to_owned(), answer.rejected));
                    }
                    if !answer.body.is_empty() {
                        transfer.end();
                        return Ok(Some(answer.body));
                    }
                    window.on_answer(answer).map_err(lost)?;
                }
                () = wait_until(send_at), if has_room && send_at.is_some() => {
                    send_next(&mut connection, &mut window).map_err(lost)?;
                }
                () = wait_until(deadline), if deadline.is_some() => return Ok(None),
            }
        }
    }
}

/// Waits until then, if it is known.
async fn wait_until(at: Option<Instant>) {
    if let Some(at) = at {
        sleep_until(at).await;
    }
}

fn send_next(connection: &mut ClientConnection<SnapshotTransfers>, window: &mut SendWindow<'_>) -> io::Result<()> {
    match window.take_next() {
        Some(chunk) => connection.send(chunk),
        None => Ok(()),
    }
}

fn offered_part(PartSummary { name, pieces, bytes, digest }: &PartSummary) -> OfferedPart {
    let digest = bytes::Bytes::copy_from_slice(digest);
    OfferedPart { name: name.clone(), pieces: *pieces, bytes: *bytes, digest }
}

/// What is sent next, and what was sent and is not stored by the receiver yet.
struct SendWindow<'a> {
    stored: &'a StoredSnapshot,
    /// The number of the next piece to read of each part; none before the receiver has said what it has.
    next: Vec<u32>,
    /// The part that is being sent.
    part: usize,
    pieces: VecDeque<PartPiece>,
    /// The next piece, and when it may be sent.
    prepared: Option<(SnapshotChunk, Instant)>,
    /// The bytes of each piece that was sent and is not stored yet.
    unstored: VecDeque<usize>,
    unstored_bytes: usize,
    /// Pieces that the receiver has stored of those that were sent.
    received: u64,
    /// When the receiver last stored something.
    progress_at: Option<Instant>,
}

impl<'a> SendWindow<'a> {
    fn new(stored: &'a StoredSnapshot) -> Self {
        Self {
            stored,
            next: Vec::new(),
            part: 0,
            pieces: VecDeque::new(),
            prepared: None,
            unstored: VecDeque::new(),
            unstored_bytes: 0,
            received: 0,
            progress_at: None,
        }
    }

    /// Reads the next piece, if there is one and it may be sent.
    fn prepare(&mut self, pacer: &SnapshotPacer) -> Result<(), StorageError> {
        if self.prepared.is_some() || self.unstored_bytes >= WINDOW_BYTES {
            return Ok(());
        }
        while self.pieces.is_empty() {
            let Some(next) = self.next.get_mut(self.part) else { return Ok(()) };
            let pieces = run_blocking(|| self.stored.pieces(self.part, *next, READ_BYTES))?;
            match pieces.last() {
                Some(last) => *next = last.number.saturating_add(1),
                None => self.part += 1,
            }
            self.pieces = pieces.into();
        }
        let (Some(piece), Ok(part)) = (self.pieces.pop_front(), u32::try_from(self.part)) else { return Ok(()) };
        let checksum = checksum_of(part, piece.number, piece.ends_chunk, &piece.bytes);
        let PartPiece { number, ends_chunk, bytes: data } = piece;
        let send_at = pacer.reserve(data.len());
        let chunk = SnapshotChunk { part, number, ends_chunk, data, checksum, ..SnapshotChunk::default() };
        self.prepared = Some((chunk, send_at));
        Ok(())
    }

    fn send_at(&self) -> Option<Instant> {
        self.prepared.as_ref().map(|(_, at)| *at)
    }

    fn take_next(&mut self) -> Option<SnapshotChunk> {
        let (chunk, _) = self.prepared.take()?;
        self.unstored.push_back(chunk.data.len());
        self.unstored_bytes += chunk.data.len();
        Some(chunk)
    }

    /// Records what the receiver has, or has stored meanwhile.
    fn on_answer(&mut self, answer: SnapshotAnswer) -> io::Result<()> {
        if let Some(stored) = answer.stored {
            if !self.next.is_empty() || stored.of_parts.len() != self.stored.summaries().count() {
                return Err(io::Error::other("it has other parts"));
            }
            self.next = stored.of_parts;
            self.progress_at = Some(Instant::now());
        }
        while self.received < answer.received {
            let Some(bytes) = self.unstored.pop_front() else {
                return Err(io::Error::other("it has stored more than was sent"));
            };
            self.unstored_bytes = self.unstored_bytes.saturating_sub(bytes);
            self.received += 1;
            self.progress_at = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns when the receiver last stored something. `None` while it waits for its turn, and once it has everything:
    /// how long it takes to install a snapshot depends on its size.
    fn progress_at(&self) -> Option<Instant> {
        let is_sent = self.prepared.is_none() && self.unstored.is_empty();
        self.progress_at.filter(|_| !is_sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pieces_are_sent_at_the_rate_of_the_node_whoever_sends_them() {
        let (pacer, began) = (SnapshotPacer::default(), Instant::now());
        let mib = 1024 * 1024;
        assert_eq!(pacer.reserve(32 * mib), began);
        assert_eq!(pacer.reserve(32 * mib) - began, Duration::from_millis(500));
        assert_eq!(pacer.reserve(1) - began, Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(pacer.reserve(mib), Instant::now(), "what was not used is lost");
    }
}
