//! The items of a snapshot of a locks shard. The serialized form is stored: variants are only ever added at the end, and
//! a released item gains no field.

use std::num::NonZeroU64;

use holdfast_primitives::ask::AsksItem;
use holdfast_primitives::barriers::BarrierItem;
use holdfast_primitives::chunks::ChunkWriter;
use holdfast_primitives::latches::LatchItem;
use holdfast_primitives::metadata::EncodedMetadata;
use holdfast_primitives::permits::SourceItem;
use serde::{Deserialize, Serialize};

use super::conditions::{AwaitItem, PastItem};
use super::hold::{AtLeast, HoldTerms};
use super::jobs::JobCursors;
use super::sweep::Sweep;
use super::table_log::TableSession;
use crate::codec::{self, DecodeError};
use crate::first_limits;
use crate::shard_common::CommonItem;
use crate::{
    AccountId, Durability, FencingToken, Incarnation, Limits, Mode, NamespaceRef, Phase, RequestId, Revision,
    SessionEnd, TableEpoch, UsageTotals,
};

/// A snapshot item; written from references, read as values. Variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
pub(super) enum Item<S> {
    Common(CommonItem),
    Namespace {
        account: AccountId,
        name: String,
        incarnation: Incarnation,
        #[serde(with = "first_limits")]
        limits: Limits,
        /// The revision of the last evicted event.
        compacted: Revision,
    },
    /// Belongs to the preceding namespace, like all following items.
    Session(SessionItem<S>),
    Lock {
        path: Vec<S>,
        revision: Revision,
    },
    /// Belongs to the preceding lock; in order of arrival.
    Hold(HoldItem<S>),
    /// A granted request of a session.
    Granted(GrantedItem<S>),
    Wait(WaitItem<S>),
    Event {
        revision: Revision,
        bytes: Vec<u8>,
    },
    /// The usage counters of the preceding namespace.
    Usage(UsageTotals),
    /// The usage counters of namespaces that are gone.
    EndedUsage(AccountId, UsageTotals),
    /// Attempts that rely on the preceding hold, granted request or wait, besides the one in that item. From rules 2
    /// on.
    Attempts {
        /// In ascending order, all below the attempt in that item.
        lower: Vec<u64>,
        /// The attempts that rely on an upgraded hold as a READ hold.
        as_reader: Vec<u64>,
    },
    /// All limits of the preceding namespace, if the first limits do not suffice. From rules 2 on.
    Limits(Box<Limits>),
    /// The round-robin positions of unfinished work. From rules 2 on.
    JobCursors(JobCursors),
    /// A session of the preceding namespace that has ended and still has state. From rules 2 on.
    EndingSession(Box<EndingSessionItem<S>>),
    /// A granted request of such a session, with the session's number. From rules 2 on.
    GrantedToEnding(u64, Box<GrantedItem<S>>),
    /// A sweep of the preceding namespace that began at that revision. From rules 2 on.
    Sweep(Revision, Box<Sweep>),
    /// Some processes that the sweep of that revision ends, because they are old enough. From rules 2 on.
    OldProcesses(Revision, Vec<S>),
    /// No waiter of the preceding namespace is granted before the namespace's next slice. That slice evaluates these
    /// requests, each a wait and whether it is an upgrade. From rules 2 on.
    PendingGrants(Vec<(u64, bool)>),
    /// The blocker of the preceding wait. From rules 2 on.
    BlockedOn(BlockedOnItem),
    /// Pending requests in the report of the session with that number. From rules 2 on.
    Report(u64, Vec<S>),
    /// The report of its session names the preceding hold. From rules 2 on.
    Reported {
        is_listed: bool,
        /// Whether a pending request claims it.
        is_claimed: bool,
    },
    /// A namespace that stands still since that shard clock. It may not be open.
    Quarantined(NamespaceRef, u64),
    /// A latch of the preceding namespace, or jobs of the preceding latch. From rules 2 on.
    Latch(LatchItem),
    /// A semaphore or a pool of the preceding namespace, or what the preceding one has. From rules 2 on.
    Permits(SourceItem),
    /// Tokens in the report of the session with that number. From rules 2 on.
    ReportedPermits(u64, Vec<FencingToken>),
    /// How long the preceding hold is kept from others, and requests to release it. From rules 2 on.
    HoldMarks(Option<AtLeast>, AsksItem),
    /// How long the holds of the preceding wait are kept from others, in milliseconds. From rules 2 on.
    WaitAtLeast(u32),
    /// A barrier of the preceding namespace, or what the preceding one has. From rules 2 on.
    Barrier(BarrierItem),
    /// An await of the preceding namespace; in order of arrival. From rules 2 on.
    Await(AwaitItem<S>),
    /// What the hold or the wait that follows came from. From rules 2 on.
    Past(PastItem<S>),
    /// The durability of the preceding namespace, if its lock table is not in the log. From rules 2 on.
    Durability(Durability),
    /// The epoch that was begun last for the preceding namespace. From rules 2 on.
    EpochOf(Revision),
    /// The epoch of lock tables in the leader's memory that was begun last. From rules 2 on.
    TableEpoch(TableEpoch),
    /// What the log of the preceding namespace's lock table has of the session with that number. From rules 2 on.
    TableSession(u64, TableSession),
}

/// The blocker of a request. Paths and owners are identified by the claims of the request, because their numbers differ
/// between replicas.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum BlockedOnItem {
    /// The hold with that token, `above` levels above the claim with that index.
    Hold { claim: u32, above: u32, token: FencingToken },
    /// The holds below the claim with that index.
    Subtree { claim: u32, mode: Mode },
    /// A request, and whether it is an upgrade.
    Request(u64, bool),
}

#[derive(Serialize, Deserialize)]
pub(super) struct EndingSessionItem<S> {
    pub(super) session: SessionItem<S>,
    pub(super) reason: SessionEnd,
    pub(super) since_ms: u64,
    /// A wait, and whether it is an upgrade.
    pub(super) after_wait: Option<(u64, bool)>,
    pub(super) after_path: Option<Vec<S>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SessionItem<S> {
    pub(super) session_id: S,
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) seq: u64,
    pub(super) opening: RequestId,
    pub(super) process_id: S,
    pub(super) ttl_ms: u64,
    pub(super) metadata: EncodedMetadata,
    pub(super) opened_at_ms: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) enum OwnerItem<S> {
    Process(S),
    Session { number: u64, session_id: S, process_id: S, holder: Option<S> },
}

#[derive(Serialize, Deserialize)]
pub(super) struct HoldItem<S> {
    pub(super) owner: OwnerItem<S>,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    pub(super) direct: bool,
    pub(super) upgraded: bool,
    pub(super) transition_ms: u32,
    pub(super) token: FencingToken,
    pub(super) locked_at_ms: u64,
    pub(super) deadline_ms: Option<NonZeroU64>,
    pub(super) attempt: u64,
    pub(super) metadata: EncodedMetadata,
    pub(super) requested_expires_at_ns: Option<i64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct GrantedItem<S> {
    pub(super) session_id: S,
    pub(super) request_id: S,
    pub(super) holder: Option<S>,
    pub(super) token: FencingToken,
    pub(super) attempt: u64,
    pub(super) claimed: u32,
    pub(super) live: Vec<(Vec<S>, Mode)>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WaitItem<S> {
    pub(super) wait: u64,
    pub(super) upgrade: bool,
    pub(super) owner: OwnerItem<S>,
    pub(super) claims: Vec<(Vec<S>, Mode)>,
    pub(super) terms: HoldTerms,
    pub(super) request_id: Option<S>,
    pub(super) attempt: u64,
    pub(super) ends_at_ms: Option<u64>,
    pub(super) since_ms: u64,
}

impl Item<String> {
    /// Returns its part of the state that every shard has, if it is one.
    pub(super) fn common(&self) -> Option<&CommonItem> {
        if let Self::Common(item) = self { Some(item) } else { None }
    }

    /// Returns the item with all instants of the shard clock later by a time.
    fn delayed(mut self, by_ms: u64) -> Self {
        match &mut self {
            Self::Common(CommonItem::Header { clock_ms, .. }) => *clock_ms = clock_ms.saturating_add(by_ms),
            Self::Hold(hold) => hold.deadline_ms = hold.deadline_ms.map(|at| at.saturating_add(by_ms)),
            Self::Wait(wait) => wait.ends_at_ms = wait.ends_at_ms.map(|at| at.saturating_add(by_ms)),
            Self::EndingSession(ending) => ending.since_ms = ending.since_ms.saturating_add(by_ms),
            Self::Sweep(_, sweep) => sweep.since_ms = sweep.since_ms.saturating_add(by_ms),
            Self::Latch(latch) => latch.delay(by_ms),
            Self::Permits(item) => item.delay(by_ms),
            Self::HoldMarks(at_least, asks) => {
                if let Some(at_least) = at_least {
                    at_least.from_ms = at_least.from_ms.saturating_add(by_ms);
                    at_least.until_ms = at_least.until_ms.saturating_add(by_ms);
                }
                asks.delay(by_ms);
            }
            Self::Barrier(item) => item.delay(by_ms),
            Self::Await(item) => item.delay(by_ms),
            Self::TableSession(_, session) => *session = std::mem::take(session).delayed(by_ms),
            Self::Quarantined(_, since_ms) => *since_ms = since_ms.saturating_add(by_ms),
            // The wall clock counts in all others.
            _ => {}
        }
        self
    }
}

/// The chunks of a snapshot with all instants of the shard clock later by a time.
struct DelayedChunks<I> {
    /// `None` once its end or an error was met.
    chunks: Option<I>,
    by_ms: u64,
    writer: ChunkWriter,
    /// Whether the last chunk ended a snapshot.
    is_whole: bool,
}

/// Returns the chunks of a snapshot with all instants of the shard clock later by a time.
pub(crate) fn delay_snapshot(
    chunks: impl IntoIterator<Item: AsRef<[u8]>>,
    by_ms: u64,
) -> impl Iterator<Item = Result<Vec<u8>, DecodeError>> {
    DelayedChunks { chunks: Some(chunks.into_iter()), by_ms, writer: ChunkWriter::default(), is_whole: false }
}

impl<I: Iterator<Item: AsRef<[u8]>>> DelayedChunks<I> {
    /// Takes a chunk, or the end.
    fn take_next(&mut self) -> Result<(), DecodeError> {
        let Some(chunk) = self.chunks.as_mut().and_then(Iterator::next) else {
            self.chunks = None;
            self.writer.end();
            return if self.is_whole { Ok(()) } else { Err(DecodeError::Snapshot("its end is missing")) };
        };
        let items: Vec<Item<String>> = codec::decode(chunk.as_ref())?;
        self.is_whole = items.is_empty();
        items.into_iter().for_each(|item| self.writer.push(&item.delayed(self.by_ms)));
        Ok(())
    }
}

impl<I: Iterator<Item: AsRef<[u8]>>> Iterator for DelayedChunks<I> {
    type Item = Result<Vec<u8>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(chunk) = self.writer.take_chunk() {
                return Some(Ok(chunk));
            }
            self.chunks.as_ref()?;
            if let Err(error) = self.take_next() {
                (self.chunks, self.writer) = (None, ChunkWriter::default());
                return Some(Err(error));
            }
        }
    }
}
