//! Messages of the session protocol as JSON: one object with the name of the message in `type`.

use holdfast_api::session_message::{self, ClientMessage, ClientPayload, InvalidRequest, RefusalCause, ServerMessage};
use holdfast_api::{ApiError, ApiResult, BlockerInfo, Holder, PermitHolderInfo, ReasonInfo, Resource};
use holdfast_types::{BarrierAnswer, BarrierOutcome, GenerationEnd, Metadata, Woken};
use serde::{Deserialize, Serialize};

use super::body::parse;
use super::condition_messages::{Await, Signal};
use super::held_message::{Held, mode};
use super::latches;
use super::open_message::Open;
use super::permit_messages::{AcquirePermits, Take};
use super::receipt_messages::{Granted, read_receipt};

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ClientJson {
    Open(Open),
    LockInfo(LockInfo),
    Lock(Lock),
    Release(Release),
    AcquirePermits(AcquirePermits),
    Take(Take),
    CountDown(CountDown),
    Arrive(Arrive),
    Leave(Release),
    Await(Await),
    Signal(Signal),
    ReleaseAll(Empty),
    Keepalive(Empty),
    Close(Empty),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockInfo {
    seq: u64,
    held: Vec<Held>,
    things: Option<Vec<Thing>>,
    granted: Option<Vec<Granted>>,
    pending: Vec<Pending>,
    part: Option<u32>,
    parts: Option<u32>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Pending {
    Lock(Lock),
    AcquirePermits(AcquirePermits),
    Take(Take),
    Release(Release),
    Arrive(Arrive),
    Await(Await),
}

/// A hold of another kind than locks, or an arrival. What its request says besides is known to the service.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Thing {
    kind: String,
    path: Vec<String>,
    request_id: String,
    holder: Option<String>,
    #[serde(rename = "weight")]
    _weight: Option<u64>,
    #[serde(rename = "members")]
    _members: Option<Vec<String>>,
    /// Of an arrival, in place of a token.
    generation: Option<u64>,
    fencing_token: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lock {
    /// In a pending message, the number from its original connection: it does not count here.
    seq: Option<u64>,
    request_id: String,
    resources: Vec<ClaimJson>,
    holder: Option<String>,
    transition_ms: Option<u64>,
    at_least_ms: Option<u64>,
    metadata: Option<Metadata>,
    allow_upgrade: Option<bool>,
    #[serde(rename = "try")]
    only_try: Option<bool>,
    /// In a pending message: its place, and the receipt of that.
    ticket: Option<u64>,
    receipt: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimJson {
    path: Vec<String>,
    mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    seq: Option<u64>,
    request_id: String,
    unheard: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CountDown {
    seq: u64,
    request_id: String,
    path: Vec<String>,
    id: Option<u64>,
    ids: Option<Vec<String>>,
    ranges: Option<Vec<Vec<u64>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arrive {
    /// In a pending message, the number from its original connection: it does not count here.
    seq: Option<u64>,
    request_id: String,
    path: Vec<String>,
    generation: Option<u64>,
    parties: Option<u32>,
    double: Option<bool>,
    holder: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {
    seq: u64,
}

/// Parses a message of a client on the connection to that namespace.
pub(super) fn decode(text: &str, namespace: &str) -> ApiResult<ClientMessage> {
    let parsed = parse::<ClientJson>(text.as_bytes()).map_err(|mut error| {
        error.detail = error.detail.replacen("the body", "the message", 1);
        error
    });
    let (seq, payload) = match parsed? {
        ClientJson::Open(open) => {
            let (seq, open) = open.read(namespace);
            (seq, ClientPayload::Open(open))
        }
        ClientJson::LockInfo(info) => {
            let held = info.held.into_iter().map(Held::read).collect::<ApiResult<_>>()?;
            let granted = info.granted.unwrap_or_default().into_iter();
            let granted = granted.map(Granted::read).collect::<ApiResult<_>>()?;
            let places = info.pending.iter().filter_map(Pending::to_ticket).collect::<ApiResult<_>>()?;
            let pending = info.pending.into_iter().map(Pending::read).collect::<ApiResult<_>>()?;
            let part = session_message::Part::new(info.part, info.parts);
            let things = info.things.unwrap_or_default().into_iter();
            let permits = things.map(Thing::read).collect::<ApiResult<_>>()?;
            let info_of = session_message::LockInfo { held, permits, granted, pending, places, part };
            (info.seq, ClientPayload::LockInfo(info_of))
        }
        ClientJson::Lock(lock) => (require_seq(lock.seq)?, ClientPayload::Lock(lock.read()?)),
        ClientJson::AcquirePermits(acquire) => {
            (require_seq(acquire.seq)?, ClientPayload::AcquirePermits(acquire.read()))
        }
        ClientJson::Take(take) => {
            let seq = require_seq(take.seq)?;
            (seq, take.read().map_or_else(ClientPayload::Invalid, ClientPayload::AcquirePermits))
        }
        ClientJson::Release(release) => (require_seq(release.seq)?, ClientPayload::Release(release.read())),
        ClientJson::CountDown(count) => (count.seq, count.read()),
        ClientJson::Arrive(arrive) => (require_seq(arrive.seq)?, ClientPayload::Arrive(arrive.read())),
        ClientJson::Leave(leave) => (require_seq(leave.seq)?, ClientPayload::Leave(leave.read())),
        ClientJson::Await(awaits) => (require_seq(awaits.seq)?, ClientPayload::Await(awaits.read())),
        ClientJson::Signal(signal) => (signal.seq, ClientPayload::Signal(signal.read())),
        ClientJson::ReleaseAll(Empty { seq }) => (seq, ClientPayload::ReleaseAll),
        ClientJson::Keepalive(Empty { seq }) => (seq, ClientPayload::KeepAlive),
        ClientJson::Close(Empty { seq }) => (seq, ClientPayload::Close),
    };
    Ok(ClientMessage { seq, payload })
}

fn require_seq(seq: Option<u64>) -> ApiResult<u64> {
    seq.ok_or_else(|| ApiError::invalid("seq", "seq: missing field `seq`"))
}

impl Pending {
    /// Returns the place of a request for locks; `None` if it has none.
    fn to_ticket(&self) -> Option<ApiResult<(String, session_message::QueueTicket)>> {
        let Self::Lock(lock) = self else { return None };
        let receipt = lock.receipt.as_deref().map(read_receipt);
        let place = session_message::QueueTicket::of_pending(lock.ticket, receipt).transpose()?;
        Some(place.map(|place| (lock.request_id.clone(), place)))
    }

    fn read(self) -> ApiResult<session_message::Pending> {
        match self {
            Self::Lock(lock) => lock.read().map(session_message::Pending::Lock),
            Self::AcquirePermits(acquire) => Ok(session_message::Pending::AcquirePermits(acquire.read())),
            Self::Take(take) => {
                let pending = session_message::Pending::AcquirePermits;
                Ok(take.read().map_or_else(session_message::Pending::Invalid, pending))
            }
            Self::Release(release) => Ok(session_message::Pending::Release(release.read())),
            Self::Arrive(arrive) => Ok(session_message::Pending::Arrive(arrive.read())),
            Self::Await(awaits) => Ok(session_message::Pending::Await(awaits.read())),
        }
    }
}

impl Lock {
    fn read(self) -> ApiResult<session_message::Lock> {
        let resource = |claimed: ClaimJson| Ok(Resource { path: claimed.path, mode: mode(claimed.mode)? });
        Ok(session_message::Lock {
            request_id: self.request_id,
            resources: self.resources.into_iter().map(resource).collect::<ApiResult<_>>()?,
            holder: self.holder,
            transition_ms: self.transition_ms.unwrap_or(0),
            at_least_ms: self.at_least_ms.unwrap_or(0),
            metadata: self.metadata.unwrap_or_default(),
            allow_upgrade: self.allow_upgrade.unwrap_or(false),
            only_try: self.only_try.unwrap_or(false),
        })
    }
}

impl Thing {
    fn read(self) -> ApiResult<session_message::HeldPermits> {
        let token = match (self.fencing_token, self.generation) {
            (Some(token), generation) => (token, generation),
            (None, Some(generation)) => (0, Some(generation)),
            (None, None) => return Err(ApiError::invalid("fencing_token", "fencing_token: is needed")),
        };
        session_message::HeldPermits::new(&self.kind, self.path, self.request_id, self.holder, token)
    }
}

impl Release {
    fn read(self) -> session_message::Release {
        session_message::Release { request_id: self.request_id, unheard: self.unheard.unwrap_or(false) }
    }
}

impl CountDown {
    fn read(self) -> ClientPayload {
        let Self { seq: _, request_id, path, id, ids, ranges } = self;
        match latches::ranges(ranges) {
            Ok(ranges) => ClientPayload::CountDown(session_message::CountDown { request_id, path, id, ids, ranges }),
            Err(error) => ClientPayload::Invalid(InvalidRequest { request_id, error }),
        }
    }
}

impl Arrive {
    fn read(self) -> session_message::Arrive {
        let Self { seq: _, request_id, path, generation, parties, double, holder } = self;
        session_message::Arrive { request_id, path, generation, parties, double, holder }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ServerJson {
    Opened {
        session_id: String,
        epoch: u64,
        ttl_ms: u64,
        resumed: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        leader: Option<String>,
        durability: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        table_epoch: Option<u64>,
    },
    Revoked {
        path: Vec<String>,
        reason: &'static str,
        current_owner: Option<Box<Holder>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<String>,
        fencing_token: u64,
    },
    State(State),
    Refused {
        request_id: String,
        reason: RefusedReason,
    },
    Signalled {
        request_id: String,
        count: u64,
    },
    Counted {
        request_id: String,
        counted: u64,
        total: u64,
        done: u64,
    },
    ReleaseRequested {
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        kind: &'static str,
        path: Vec<String>,
        fencing_token: u64,
        by: String,
        reason: String,
        within_ms: Option<u64>,
        force: bool,
    },
    Tripped(Tripped),
    KeptAlive {
        remaining_ms: u64,
    },
    SessionEnded {
        reason: &'static str,
    },
    Error {
        code: &'static str,
        detail: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
}

/// Omits fields that do not apply in a state.
#[derive(Serialize)]
struct State {
    request_id: Option<String>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_position: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blockers: Option<Vec<BlockerInfo>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holders: Vec<PermitHolderInfo>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    woken: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<String>,
}

/// What became of the generation of an arrival; omits what does not go with the outcome.
#[derive(Serialize)]
struct Tripped {
    request_id: String,
    outcome: &'static str,
    generation: u64,
    next_generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u32>,
    /// With PAST; null if it is not known any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Option<&'static str>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum RefusedReason {
    Locks(ReasonInfo),
    Fault { code: &'static str, detail: String },
}

impl State {
    fn new(request_id: Option<String>, state: &'static str) -> Self {
        let (fencing_token, queue_position, blockers, generation) = (None, None, None, None);
        let (holders, members, woken) = (Vec::new(), Vec::new(), None);
        let (ticket, receipt) = (None, None);
        Self {
            request_id,
            state,
            fencing_token,
            queue_position,
            blockers,
            holders,
            members,
            generation,
            woken,
            ticket,
            receipt,
        }
    }
}

impl Tripped {
    fn new(request_id: String, answer: BarrierAnswer) -> Self {
        let BarrierAnswer { outcome, generation, next_generation, index, lost, ended } = answer;
        let ended = (outcome == BarrierOutcome::Past).then_some(ended.map(GenerationEnd::name));
        let outcome = outcome.name();
        Self { request_id, outcome, generation, next_generation, index, lost, ended }
    }
}

impl From<ServerMessage> for ServerJson {
    fn from(message: ServerMessage) -> Self {
        match message {
            ServerMessage::Opened { session_id, epoch, ttl_ms, resumed, leader, durability, table_epoch } => {
                let durability = durability.name();
                Self::Opened { session_id, epoch, ttl_ms, resumed, leader, durability, table_epoch }
            }
            ServerMessage::Revoked { path, reason, current_owner, holder, fencing_token } => {
                Self::Revoked { path, reason: reason.name(), current_owner, holder, fencing_token }
            }
            ServerMessage::Acquired { request_id, fencing_token, members, woken, receipt } => Self::State(State {
                fencing_token: Some(fencing_token),
                receipt: receipt.map(|receipt| receipt.to_string()),
                members,
                woken: woken.map(Woken::name),
                ..State::new(Some(request_id), "ACQUIRED")
            }),
            ServerMessage::Awaiting { request_id } => Self::State(State::new(Some(request_id), "AWAITING")),
            ServerMessage::Signalled { request_id, count } => Self::Signalled { request_id, count },
            ServerMessage::Enqueued { request_id, queue_position, blockers, holders, woken, place } => {
                Self::State(State {
                    woken: woken.map(Woken::name),
                    ticket: place.map(|place| place.ticket.0),
                    receipt: place.map(|place| place.receipt.to_string()),
                    queue_position,
                    blockers: Some(blockers),
                    holders,
                    ..State::new(Some(request_id), "ENQUEUED")
                })
            }
            ServerMessage::Arrived { request_id, generation } => {
                Self::State(State { generation: Some(generation), ..State::new(Some(request_id), "ENQUEUED") })
            }
            ServerMessage::Ready { request_id } => Self::State(State::new(request_id, "READY")),
            ServerMessage::Refused { request_id, why } => {
                let reason = match why {
                    RefusalCause::Reason(reason) => RefusedReason::Locks(reason),
                    RefusalCause::Fault(error) => {
                        RefusedReason::Fault { code: error.code.name(), detail: error.detail }
                    }
                };
                Self::Refused { request_id, reason }
            }
            ServerMessage::Counted { request_id, counted, total, done } => {
                Self::Counted { request_id, counted, total, done }
            }
            ServerMessage::ReleaseRequested { request_id, kind, path, fencing_token, by, reason, within_ms, force } => {
                let kind = kind.name();
                Self::ReleaseRequested { request_id, kind, path, fencing_token, by, reason, within_ms, force }
            }
            ServerMessage::Tripped { request_id, answer } => Self::Tripped(Tripped::new(request_id, answer)),
            ServerMessage::KeptAlive { remaining_ms } => Self::KeptAlive { remaining_ms },
            ServerMessage::SessionEnded { reason } => Self::SessionEnded { reason: reason.name() },
            ServerMessage::Error { error, request_id } => {
                Self::Error { code: error.code.name(), detail: error.detail, request_id }
            }
        }
    }
}

/// Renders a message of the service.
pub(super) fn encode(message: ServerMessage) -> String {
    serde_json::to_string(&ServerJson::from(message))
        .expect("a message has only texts and numbers, and keys that are texts")
}

#[cfg(test)]
#[path = "session_messages_tests.rs"]
mod tests;
