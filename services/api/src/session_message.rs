//! The messages on the connection of a session, over any transport.

use holdfast_types::{
    BarrierAnswer, Durability, FencingToken, Kind, Metadata, Path, Receipt, ReportedHold, ReportedPermits, Revision,
    RevokedReason, SessionEnd, WaitId, Wanted, Woken,
};

use crate::{ApiError, ApiResult, BlockerInfo, Holder, PermitHolderInfo, ReasonInfo, Resource};

/// A message of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientMessage {
    /// Rises with each message of the connection; a message that does not raise it is ignored.
    pub seq: u64,
    /// The content.
    pub payload: ClientPayload,
}

/// The content of a client message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientPayload {
    /// Opens or resumes the session.
    Open(Open),
    /// Reports the knowledge of a resumed session's client.
    LockInfo(LockInfo),
    /// Requests claims.
    Lock(Lock),
    /// Ends a request.
    Release(Release),
    /// Requests permits.
    AcquirePermits(AcquirePermits),
    /// Requests what cannot be: it is refused.
    Invalid(InvalidRequest),
    /// Reports to a latch what is done.
    CountDown(CountDown),
    /// Arrives at a barrier.
    Arrive(Arrive),
    /// Ends an arrival, or leaves a double barrier.
    Leave(Release),
    /// Gives a lock up to await a condition of it.
    Await(Await),
    /// Wakes those who await a condition.
    Signal(Signal),
    /// Ends all requests.
    ReleaseAll,
    /// Keeps the session alive.
    KeepAlive,
    /// Ends the session.
    Close,
}

/// Opens a session, or resumes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The namespace of the session.
    pub namespace: String,
    /// The session to resume.
    pub session_id: Option<String>,
    /// Shown with the session's holds.
    pub process_id: String,
    /// How long the session lives after the last keep-alive, in milliseconds.
    pub ttl_ms: u64,
    /// Shown with the session.
    pub metadata: Metadata,
    /// Whether the client keeps a table of its holds, and counts the life of the session itself.
    pub keeps_table: bool,
    /// How long each hold stays in transition if the session expires, in milliseconds, in a namespace whose lock table
    /// is in its leader's memory.
    pub transition_ms: u64,
}

/// The knowledge of a resumed session's client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockInfo {
    /// The holds that it believes it has.
    pub held: Vec<ReportedHold>,
    /// The holds of permits, and the arrivals, that it believes it has.
    pub permits: Vec<HeldPermits>,
    /// Its granted requests for locks, with their receipts.
    pub granted: Vec<GrantedLock>,
    /// Its messages without a reply.
    pub pending: Vec<Pending>,
    /// The places of those that are requests for locks, by request id.
    pub places: Vec<(String, QueueTicket)>,
    /// Which part of the list this is.
    pub part: Part,
}

/// A granted request for locks, as its client lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedLock {
    /// The name of the request.
    pub request_id: String,
    /// Distinguishes threads that share the session, as in the request.
    pub holder: Option<String>,
    /// All that it was granted, in the modes that it asked for.
    pub resources: Vec<ReportedHold>,
    /// Proves it.
    pub receipt: Receipt,
}

/// The place of a waiting request in the queue of the leader that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTicket {
    /// Rises in order.
    pub ticket: WaitId,
    /// Proves it.
    pub receipt: Receipt,
}

impl QueueTicket {
    /// Returns the place of a pending message, if it has one.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a malformed receipt, and for a ticket without one.
    pub fn of_pending(ticket: Option<u64>, receipt: Option<ApiResult<Receipt>>) -> ApiResult<Option<Self>> {
        match (ticket, receipt) {
            (Some(ticket), Some(receipt)) => Ok(Some(Self { ticket: WaitId(ticket), receipt: receipt? })),
            (None, None) => Ok(None),
            _ => Err(ApiError::invalid("ticket", "ticket: goes with a receipt")),
        }
    }
}

/// One of the messages that a list comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 1 on.
    pub number: u32,
    /// How many there are.
    pub count: u32,
}

impl Part {
    /// The part with this number of so many. A list that names neither comes in one.
    pub fn new(number: Option<u32>, count: Option<u32>) -> Self {
        Self { number: number.unwrap_or(1), count: count.unwrap_or(1) }
    }

    /// Returns whether no further part follows.
    pub fn is_last(self) -> bool {
        self.number == self.count
    }
}

impl Default for Part {
    fn default() -> Self {
        Self::new(None, None)
    }
}

/// A message without a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    /// A request for claims.
    Lock(Lock),
    /// A request for permits or members.
    AcquirePermits(AcquirePermits),
    /// The end of a request.
    Release(Release),
    /// An arrival at a barrier.
    Arrive(Arrive),
    /// An await of a condition.
    Await(Await),
    /// A request for what cannot be.
    Invalid(InvalidRequest),
}

/// A hold of permits, or an arrival, that a client believes it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPermits {
    /// The hold as its session's shard knows it.
    pub reported: ReportedPermits,
    /// Distinguishes threads that share the session, as in the request.
    pub holder: Option<String>,
}

impl HeldPermits {
    /// Returns the hold or the arrival of a list; `kind` is `semaphore`, `pool` or `barrier`. An arrival has a
    /// generation in place of a token.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for another kind, of which a session holds nothing, and for an arrival without a generation.
    pub fn new(
        kind: &str,
        path: Vec<String>,
        request_id: String,
        holder: Option<String>,
        (fencing_token, generation): (FencingToken, Option<Revision>),
    ) -> ApiResult<Self> {
        let known = [Kind::Semaphore, Kind::Pool, Kind::Barrier];
        // Also by the names of the routes, which are plural.
        let is_named = |known: &Kind| known.name() == kind || kind.strip_suffix('s') == Some(known.name());
        let Some(kind) = known.into_iter().find(is_named) else {
            return Err(ApiError::invalid("kind", format!("kind: must be {}", known.map(Kind::name).join(" or "))));
        };
        let fencing_token = match (kind, generation) {
            (Kind::Barrier, Some(generation)) => generation,
            (Kind::Barrier, None) => return Err(ApiError::invalid("generation", "generation: is needed of a barrier")),
            _ => fencing_token,
        };
        Ok(Self { reported: ReportedPermits { kind, path: Path(path), request_id, fencing_token }, holder })
    }
}

/// A request for permits or members, granted all together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquirePermits {
    /// Names the request until it is released.
    pub request_id: String,
    /// The path of the semaphore, or of the pool.
    pub path: Vec<String>,
    /// What it requests.
    pub wanted: Wanted,
    /// Distinguishes threads that share the session.
    pub holder: Option<String>,
    /// From 0 to 9; 9 goes first.
    pub priority: u32,
    /// How long the hold stays in transition when the session expires, in milliseconds.
    pub transition_ms: u64,
    /// Whether it is refused instead of queued when it cannot be granted at once.
    pub only_try: bool,
}

/// A request whose fields have the right types but contradict each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRequest {
    /// Names the request in its reply.
    pub request_id: String,
    /// What it is refused with.
    pub error: ApiError,
}

/// A request for claims, granted all together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Names the request until it is released.
    pub request_id: String,
    /// The claims.
    pub resources: Vec<Resource>,
    /// Distinguishes threads that share the session.
    pub holder: Option<String>,
    /// How long the holds stay in transition when the session expires, in milliseconds.
    pub transition_ms: u64,
    /// How long the locks are kept from others at least, from the grant on, in milliseconds.
    pub at_least_ms: u64,
    /// Stored with each hold, for readers of the lock.
    pub metadata: Metadata,
    /// Whether a hold that the owner has may change its mode.
    pub allow_upgrade: bool,
    /// Whether it is refused instead of queued when it cannot be granted at once.
    pub only_try: bool,
}

/// The end of a request, waiting or granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The name of the request.
    pub request_id: String,
    /// Whether it awaited a condition, and the client has not heard that it has its lock again.
    pub unheard: bool,
}

/// An await of a condition of the lock that a request holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Await {
    /// The name of the request.
    pub request_id: String,
    /// The name of the condition; empty for the lock's only condition.
    pub condition: String,
    /// How long it awaits the condition, in milliseconds; absent without a limit.
    pub wait_ms: Option<u64>,
    /// The token that it gives up.
    pub fencing_token: Option<FencingToken>,
}

/// A signal to those who await a condition of the lock that a request holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The name of the request.
    pub request_id: String,
    /// The name of the condition; empty for the lock's only condition.
    pub condition: String,
    /// Whether all are woken.
    pub all: bool,
    /// Identifies the signal under the hold, so that it can be sent again.
    pub signal_id: Option<String>,
}

/// A report of what is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountDown {
    /// Names the message in its reply.
    pub request_id: String,
    /// The path of the latch.
    pub path: Vec<String>,
    /// If given, only the latch with this id.
    pub id: Option<Revision>,
    /// Ids, for a latch that counts ids.
    pub ids: Option<Vec<String>>,
    /// Ranges of indexes, both ends included, for a latch that counts indexes.
    pub ranges: Option<Vec<(u64, u64)>>,
}

/// An arrival at a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrive {
    /// Names the arrival until it is told how its generation ended; at a double barrier, until all have left.
    pub request_id: String,
    /// The path of the barrier.
    pub path: Vec<String>,
    /// The generation, if the client knows it.
    pub generation: Option<Revision>,
    /// How many meet at a barrier that nobody configured.
    pub parties: Option<u32>,
    /// Whether such a barrier is a double one.
    pub double: Option<bool>,
    /// Distinguishes threads that share the session.
    pub holder: Option<String>,
}

/// A message of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the contract explains the fields")]
pub enum ServerMessage {
    /// The session is open on this connection. `leader` is the address of the gateway in the node that leads its shard.
    /// `table_epoch` is that of the namespace's lock table, if the table is in the leader's memory.
    Opened {
        session_id: String,
        epoch: u64,
        ttl_ms: u64,
        resumed: bool,
        leader: Option<String>,
        durability: Durability,
        table_epoch: Option<Revision>,
    },
    /// The session lost a hold without releasing it: that of `holder`, a thread of the session, or of the session as a
    /// whole. `current_owner` has a lock now.
    Revoked {
        path: Vec<String>,
        reason: RevokedReason,
        current_owner: Option<Box<Holder>>,
        holder: Option<String>,
        fencing_token: u64,
    },
    /// The request holds all its claims, or its permits. `members` are those of a pool. `woken` says why it waited for
    /// a lock that it had given up. `receipt` proves locks of a table that is in the leader's memory.
    Acquired {
        request_id: String,
        fencing_token: u64,
        members: Vec<String>,
        woken: Option<Woken>,
        receipt: Option<Receipt>,
    },
    /// The request gave its lock up and awaits a condition.
    Awaiting { request_id: String },
    /// The request waits.
    Enqueued {
        request_id: String,
        queue_position: Option<u64>,
        blockers: Vec<BlockerInfo>,
        holders: Vec<PermitHolderInfo>,
        woken: Option<Woken>,
        place: Option<QueueTicket>,
    },
    /// The arrival is in this generation, which gathers.
    Arrived { request_id: String, generation: Revision },
    /// So many were woken.
    Signalled { request_id: String, count: u64 },
    /// The request is released. Names no request when a client that had named none released everything.
    Ready { request_id: Option<String> },
    /// The request has no holds and does not wait.
    Refused { request_id: String, why: RefusalCause },
    /// The latch counted: so many were new, and so many are done.
    Counted { request_id: String, counted: u64, total: u64, done: u64 },
    /// Somebody asks for a hold. `request_id` is absent for locks: several requests may claim one.
    ReleaseRequested {
        request_id: Option<String>,
        kind: Kind,
        path: Vec<String>,
        fencing_token: u64,
        by: String,
        reason: String,
        within_ms: Option<u64>,
        force: bool,
    },
    /// What became of the generation of an arrival.
    Tripped { request_id: String, answer: BarrierAnswer },
    /// The session lives for this many milliseconds without a further keep-alive.
    KeptAlive { remaining_ms: u64 },
    /// The session ended, or belongs to another connection. This is the last message.
    SessionEnded { reason: EndReason },
    /// The request failed without effect or, with `DEADLINE_EXCEEDED` and `INTERNAL`, may have taken effect.
    Error { error: ApiError, request_id: Option<String> },
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// Because of other owners' holds, or because of how its wait ended.
    Reason(ReasonInfo),
    /// Because of a limit or its content. It had no effect.
    Fault(ApiError),
}

/// Why a connection has no session any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The session ended.
    Ended(SessionEnd),
    /// Another connection resumed it.
    Superseded,
}

impl EndReason {
    /// The public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ended(reason) => reason.name(),
            Self::Superseded => "SUPERSEDED",
        }
    }
}
