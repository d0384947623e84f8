//! What a snapshot of a locks shard consists of. The serialized form is stored: variants and fields are only ever added
//! at the end.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::hold::HoldTerms;
use super::jobs::JobCursors;
use super::metadata::EncodedMetadata;
use super::sweep::Sweep;
use crate::shard_common::CommonItem;
use crate::types::first_limits;
use crate::{AccountId, FencingToken, Incarnation, Limits, Mode, Phase, RequestId, Revision, SessionEnd, UsageTotals};

/// A piece of a snapshot; written from references, read as values. Variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
pub(super) enum Item<S> {
    Common(CommonItem),
    Namespace {
        account: AccountId,
        name: String,
        incarnation: Incarnation,
        #[serde(with = "first_limits")]
        limits: Limits,
        /// The last event that it forgot.
        compacted: Revision,
    },
    /// Of the namespace before it, like all that follow.
    Session(SessionItem<S>),
    Lock {
        path: Vec<S>,
        revision: Revision,
    },
    /// Of the lock before it, in order of arrival.
    Hold(HoldItem<S>),
    /// A granted request of a session.
    Granted(GrantedItem<S>),
    Wait(WaitItem<S>),
    Event {
        revision: Revision,
        bytes: Vec<u8>,
    },
    /// What was counted in the namespace before it.
    Usage(UsageTotals),
    /// What was counted in namespaces that are gone.
    EndedUsage(AccountId, UsageTotals),
    /// Calls that count on the hold, granted request or wait before it, besides the one that it names. From rules 2 on.
    Attempts {
        /// Rising, all below that one.
        lower: Vec<u64>,
        /// Those that count on a hold as a reader's, when it was upgraded.
        as_reader: Vec<u64>,
    },
    /// Of the namespace right before it, when the first ones do not say all. From rules 2 on.
    Limits(Box<Limits>),
    /// Whose turn it was last to go on with what was begun and is not finished. From rules 2 on.
    JobCursors(JobCursors),
    /// A session of the namespace before it that has ended and not all that it has. From rules 2 on.
    EndingSession(Box<EndingSessionItem<S>>),
    /// A granted request of such a session, by its number. From rules 2 on.
    GrantedToEnding(u64, Box<GrantedItem<S>>),
    /// Something long of the namespace before it that was asked for at that revision. From rules 2 on.
    Sweep(Revision, Box<Sweep>),
    /// Some processes that go with what was asked for at that revision, since they are old enough. From rules 2 on.
    OldProcesses(Revision, Vec<S>),
    /// Whoever waits in the namespace before it is granted nothing before its next turn. Then these are looked at, each a
    /// wait and whether it is for another mode. From rules 2 on.
    PendingGrants(Vec<(u64, bool)>),
    /// What the wait before it watches. From rules 2 on.
    BlockedOn(BlockedOnItem),
}

/// What keeps a request waiting. Paths and owners are said by its claims, since their numbers differ between replicas.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum BlockedOnItem {
    /// The hold of that token, so many levels above the claim of that index.
    Hold { claim: u32, above: u32, token: FencingToken },
    /// What is held under the claim of that index.
    Subtree { claim: u32, mode: Mode },
    /// A request, and whether it is for another mode.
    Request(u64, bool),
}

#[derive(Serialize, Deserialize)]
pub(super) struct EndingSessionItem<S> {
    pub(super) session: SessionItem<S>,
    pub(super) reason: SessionEnd,
    pub(super) since_ms: u64,
    /// A wait, and whether it is to change a mode.
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
