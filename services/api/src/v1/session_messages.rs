//! Messages of the session protocol as protocol buffers.

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{self as client, Message as Said};
use holdfast_proto::v1::server_message::{self as server, Message as Says};
use holdfast_types::{BarrierAnswer, Mode, Path, Receipt, ReportedHold, RevokedReason, SessionEnd, Wanted, Woken};

use super::{barriers, conditions, convert, latches};
use crate::session_message::{
    self, ClientMessage, ClientPayload, EndReason, InvalidRequest, RefusalCause, ServerMessage,
};
use crate::{ApiError, ApiResult, Resource, validate};

/// Converts a message of a client.
pub fn decode(message: v1::ClientMessage) -> ApiResult<ClientMessage> {
    let payload = match message.message {
        None => return Err(ApiError::invalid("message", "message: is missing or of an unknown kind")),
        Some(Said::Open(open)) => ClientPayload::Open(session_message::Open {
            namespace: open.namespace,
            session_id: open.session_id,
            process_id: open.process_id,
            ttl_ms: open.ttl_ms,
            metadata: open.metadata.into_iter().collect(),
            keeps_table: open.keeps_table,
            transition_ms: open.transition_ms,
        }),
        Some(Said::LockInfo(info)) => {
            let held = info.held.into_iter().map(held).collect::<ApiResult<_>>()?;
            let granted = info.granted.into_iter().map(granted).collect::<ApiResult<_>>()?;
            let places = info.pending.iter().filter_map(ticket_of).collect::<ApiResult<_>>()?;
            let pending = info.pending.into_iter().map(pending).collect::<ApiResult<_>>()?;
            let given = |number: u32| Some(number).filter(|number| *number > 0);
            let part = session_message::Part::new(given(info.part), given(info.parts));
            let permits = info.things.into_iter().map(held_permits).collect::<ApiResult<_>>()?;
            ClientPayload::LockInfo(session_message::LockInfo { held, permits, granted, pending, places, part })
        }
        Some(Said::Lock(message)) => ClientPayload::Lock(lock(message)?),
        Some(Said::Release(message)) => ClientPayload::Release(release(message)),
        Some(Said::AcquirePermits(message)) => ClientPayload::AcquirePermits(acquire_permits(message)),
        Some(Said::Take(message)) => take(message).map_or_else(ClientPayload::Invalid, ClientPayload::AcquirePermits),
        Some(Said::CountDown(message)) => ClientPayload::CountDown(count_down(message)),
        Some(Said::Arrive(message)) => ClientPayload::Arrive(arrive(message)),
        Some(Said::Leave(client::Leave { request_id })) => {
            ClientPayload::Leave(session_message::Release { request_id, unheard: false })
        }
        Some(Said::Await(message)) => ClientPayload::Await(awaits(message)),
        Some(Said::Signal(message)) => ClientPayload::Signal(signal(message)),
        Some(Said::ReleaseAll(_)) => ClientPayload::ReleaseAll,
        Some(Said::Keepalive(_)) => ClientPayload::KeepAlive,
        Some(Said::Close(_)) => ClientPayload::Close,
    };
    Ok(ClientMessage { seq: message.seq, payload })
}

fn held(held: client::Held) -> ApiResult<ReportedHold> {
    Ok(ReportedHold { path: Path(held.path), mode: mode(held.mode)?, fencing_token: held.fencing_token })
}

fn granted(granted: client::Granted) -> ApiResult<session_message::GrantedLock> {
    let client::Granted { request_id, holder, resources, receipt } = granted;
    let resources = resources.into_iter().map(held).collect::<ApiResult<_>>()?;
    Ok(session_message::GrantedLock { request_id, holder, resources, receipt: read_receipt(&receipt)? })
}

/// Returns the place of a pending request for locks; `None` if it has none.
fn ticket_of(pending: &client::Pending) -> Option<ApiResult<(String, session_message::QueueTicket)>> {
    let Some(client::pending::Message::Lock(lock)) = &pending.message else { return None };
    let receipt = (!pending.receipt.is_empty()).then(|| read_receipt(&pending.receipt));
    let place = session_message::QueueTicket::of_pending(pending.ticket, receipt).transpose()?;
    Some(place.map(|place| (lock.request_id.clone(), place)))
}

fn read_receipt(bytes: &[u8]) -> ApiResult<Receipt> {
    Receipt::try_from(bytes).map_err(|error| ApiError::invalid("receipt", format!("receipt: {error}")))
}

fn pending(pending: client::Pending) -> ApiResult<session_message::Pending> {
    match pending.message {
        None => Err(ApiError::invalid("pending", "pending: a message is missing or of an unknown kind")),
        Some(client::pending::Message::Lock(message)) => lock(message).map(session_message::Pending::Lock),
        Some(client::pending::Message::Release(message)) => Ok(session_message::Pending::Release(release(message))),
        Some(client::pending::Message::AcquirePermits(message)) => {
            Ok(session_message::Pending::AcquirePermits(acquire_permits(message)))
        }
        Some(client::pending::Message::Take(message)) => {
            Ok(take(message).map_or_else(session_message::Pending::Invalid, session_message::Pending::AcquirePermits))
        }
        Some(client::pending::Message::Arrive(message)) => Ok(session_message::Pending::Arrive(arrive(message))),
        Some(client::pending::Message::Await(message)) => Ok(session_message::Pending::Await(awaits(message))),
    }
}

fn lock(lock: client::Lock) -> ApiResult<session_message::Lock> {
    let resource = |given: v1::Resource| Ok(Resource { path: given.path, mode: mode(given.mode)? });
    Ok(session_message::Lock {
        request_id: lock.request_id,
        resources: lock.resources.into_iter().map(resource).collect::<ApiResult<_>>()?,
        holder: lock.holder,
        transition_ms: lock.transition_ms,
        at_least_ms: lock.at_least_ms,
        metadata: lock.metadata.into_iter().collect(),
        allow_upgrade: lock.allow_upgrade,
        only_try: lock.r#try,
    })
}

fn release(release: client::Release) -> session_message::Release {
    session_message::Release { request_id: release.request_id, unheard: release.unheard }
}

fn awaits(awaits: client::Await) -> session_message::Await {
    let client::Await { request_id, condition, wait_ms, fencing_token } = awaits;
    session_message::Await { request_id, condition, wait_ms, fencing_token }
}

fn signal(signal: client::Signal) -> session_message::Signal {
    let client::Signal { request_id, condition, all, signal_id } = signal;
    session_message::Signal { request_id, condition, all, signal_id }
}

fn held_permits(thing: client::Thing) -> ApiResult<session_message::HeldPermits> {
    let numbers = (thing.fencing_token, thing.generation);
    session_message::HeldPermits::new(&thing.kind, thing.path, thing.request_id, thing.holder, numbers)
}

fn acquire_permits(acquire: client::AcquirePermits) -> session_message::AcquirePermits {
    session_message::AcquirePermits {
        request_id: acquire.request_id,
        path: acquire.path,
        wanted: Wanted::Permits { weight: acquire.weight.unwrap_or(1), permits: acquire.permits },
        holder: acquire.holder,
        priority: acquire.priority,
        transition_ms: acquire.transition_ms,
        only_try: acquire.r#try,
    }
}

fn take(take: client::Take) -> Result<session_message::AcquirePermits, InvalidRequest> {
    let wanted = match validate::wanted_members(take.count, take.member, take.prefer) {
        Ok(wanted) => wanted,
        Err(error) => return Err(InvalidRequest { request_id: take.request_id, error }),
    };
    Ok(session_message::AcquirePermits {
        request_id: take.request_id,
        path: take.path,
        wanted,
        holder: take.holder,
        priority: take.priority,
        transition_ms: take.transition_ms,
        only_try: take.r#try,
    })
}

fn count_down(count: client::CountDown) -> session_message::CountDown {
    let (ids, ranges) = latches::given_jobs(count.ids, count.ranges);
    session_message::CountDown { request_id: count.request_id, path: count.path, id: count.id, ids, ranges }
}

fn arrive(arrive: client::Arrive) -> session_message::Arrive {
    let client::Arrive { request_id, path, generation, parties, double, holder } = arrive;
    session_message::Arrive { request_id, path, generation, parties, double, holder }
}

fn mode(mode: i32) -> ApiResult<Mode> {
    match v1::Mode::try_from(mode) {
        Ok(v1::Mode::Write) => Ok(Mode::Write),
        Ok(v1::Mode::Read) => Ok(Mode::Read),
        Err(_) => Err(ApiError::invalid("mode", "mode: must be READ or WRITE")),
    }
}

/// Converts a message of the service.
pub fn encode(message: ServerMessage) -> v1::ServerMessage {
    let message = match message {
        ServerMessage::Opened { session_id, epoch, ttl_ms, resumed, leader, durability, table_epoch } => {
            let durability = convert::durability(durability).into();
            Says::Opened(server::Opened { session_id, epoch, ttl_ms, resumed, leader, durability, table_epoch })
        }
        ServerMessage::Revoked { path, reason, current_owner, holder, fencing_token } => {
            Says::Revoked(server::Revoked {
                path,
                holder,
                fencing_token: Some(fencing_token),
                reason: revoked_reason(reason).into(),
                current_owner: current_owner.map(|it| convert::holder(*it)),
            })
        }
        ServerMessage::Acquired { request_id, fencing_token, members, woken, receipt } => Says::State(server::State {
            fencing_token: Some(fencing_token),
            members,
            receipt: receipt.map(receipt_bytes).unwrap_or_default(),
            woken: woken_number(woken),
            ..state_of(request_id, server::state::Value::Acquired)
        }),
        ServerMessage::Arrived { request_id, generation } => Says::State(server::State {
            generation: Some(generation),
            ..state_of(request_id, server::state::Value::Enqueued)
        }),
        ServerMessage::Awaiting { request_id } => Says::State(state_of(request_id, server::state::Value::Awaiting)),
        ServerMessage::Signalled { request_id, count } => Says::Signalled(server::Signalled { request_id, count }),
        ServerMessage::Enqueued { request_id, queue_position, blockers, holders, woken, place } => {
            let (ticket, receipt) = place.map(|place| (place.ticket.0, receipt_bytes(place.receipt))).unzip();
            Says::State(server::State {
                ticket,
                receipt: receipt.unwrap_or_default(),
                queue_position,
                blockers: blockers.into_iter().map(convert::blocker).collect(),
                holders: holders.into_iter().map(convert::permit_holder).collect(),
                woken: woken_number(woken),
                ..state_of(request_id, server::state::Value::Enqueued)
            })
        }
        ServerMessage::Ready { request_id } => {
            Says::State(server::State { request_id, ..state_of(String::new(), server::state::Value::Ready) })
        }
        ServerMessage::Refused { request_id, why } => {
            Says::Refused(server::Refused { request_id, why: Some(refusal_cause(why)) })
        }
        ServerMessage::Counted { request_id, counted, total, done } => {
            Says::Counted(server::Counted { request_id, counted, total, done })
        }
        ServerMessage::ReleaseRequested { request_id, kind, path, fencing_token, by, reason, within_ms, force } => {
            let kind = kind.name().to_owned();
            let asked =
                server::ReleaseRequested { request_id, kind, path, fencing_token, by, reason, within_ms, force };
            Says::ReleaseRequested(asked)
        }
        ServerMessage::Tripped { request_id, answer } => Says::Tripped(tripped(request_id, answer)),
        ServerMessage::KeptAlive { remaining_ms } => Says::KeptAlive(server::KeptAlive { remaining_ms }),
        ServerMessage::SessionEnded { reason } => {
            Says::SessionEnded(server::SessionEnded { reason: ended_reason(reason).into() })
        }
        ServerMessage::Error { error, request_id } => {
            Says::Error(server::Error { code: error.code.name().into(), detail: error.detail, request_id })
        }
    };
    v1::ServerMessage { message: Some(message) }
}

fn receipt_bytes(receipt: Receipt) -> Vec<u8> {
    receipt.bytes().to_vec()
}

/// Returns a state of a request, and nothing more of it.
fn state_of(request_id: String, state: server::state::Value) -> server::State {
    server::State { request_id: Some(request_id), state: state.into(), ..Default::default() }
}

fn refusal_cause(why: RefusalCause) -> server::refused::Why {
    match why {
        RefusalCause::Reason(reason) => server::refused::Why::Reason(convert::refusal(reason)),
        RefusalCause::Fault(error) => {
            server::refused::Why::Fault(server::Fault { code: error.code.name().into(), detail: error.detail })
        }
    }
}

fn tripped(request_id: String, answer: BarrierAnswer) -> server::Tripped {
    server::Tripped {
        request_id,
        outcome: barriers::outcome(answer.outcome).into(),
        generation: answer.generation,
        next_generation: answer.next_generation,
        index: answer.index,
        lost: answer.lost,
        ended: answer.ended.map(|end| barriers::outcome(end.into()).into()),
    }
}

fn woken_number(woken: Option<Woken>) -> i32 {
    woken.map_or(v1::Woken::Unspecified, conditions::woken).into()
}

fn revoked_reason(reason: RevokedReason) -> server::revoked::Reason {
    match reason {
        RevokedReason::Expired => server::revoked::Reason::Expired,
        RevokedReason::Deleted => server::revoked::Reason::Deleted,
        RevokedReason::Reset => server::revoked::Reason::Reset,
        RevokedReason::Duplicate => server::revoked::Reason::Duplicate,
    }
}

fn ended_reason(reason: EndReason) -> server::session_ended::Reason {
    use server::session_ended::Reason;
    match reason {
        EndReason::Superseded => Reason::Superseded,
        EndReason::Ended(SessionEnd::Closed) => Reason::Closed,
        EndReason::Ended(SessionEnd::Expired) => Reason::Expired,
        EndReason::Ended(SessionEnd::Reset) => Reason::Reset,
        EndReason::Ended(SessionEnd::NamespaceDeleted) => Reason::NamespaceDeleted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    fn decoded(message: Said) -> ApiResult<ClientPayload> {
        decode(v1::ClientMessage { seq: 3, message: Some(message) }).map(|message| message.payload)
    }

    #[test]
    fn names_of_reasons_are_the_same_as_in_json() {
        for reason in [SessionEnd::Closed, SessionEnd::Expired, SessionEnd::Reset, SessionEnd::NamespaceDeleted] {
            assert_eq!(ended_reason(EndReason::Ended(reason)).as_str_name(), reason.name());
        }
        assert_eq!(ended_reason(EndReason::Superseded).as_str_name(), EndReason::Superseded.name());
        for reason in [RevokedReason::Expired, RevokedReason::Deleted, RevokedReason::Reset, RevokedReason::Duplicate] {
            assert_eq!(revoked_reason(reason).as_str_name(), reason.name());
        }
    }

    #[test]
    fn a_lock_that_does_not_say_how_is_for_writing() {
        let resources = vec![v1::Resource { path: vec!["x".into()], ..Default::default() }];
        let lock = client::Lock { request_id: "a".into(), resources, ..Default::default() };
        let ClientPayload::Lock(lock) = decoded(Said::Lock(lock)).unwrap() else { panic!("not a lock") };
        assert_eq!(lock.resources, [Resource { path: vec!["x".into()], mode: Mode::Write }]);
        assert!(!lock.only_try);
    }

    #[test]
    fn a_take_that_contradicts_itself_keeps_its_request_id_to_be_refused() {
        let take = || client::Take {
            request_id: "a".into(),
            path: vec!["p".into()],
            count: Some(2),
            member: Some("m".into()),
            ..Default::default()
        };
        let ClientPayload::Invalid(sent) = decoded(Said::Take(take())).unwrap() else { panic!("not invalid") };
        assert_eq!((sent.request_id.as_str(), sent.error.ids[0].1.as_str()), ("a", "member"));
        let pending =
            vec![client::Pending { message: Some(client::pending::Message::Take(take())), ..Default::default() }];
        let info = decoded(Said::LockInfo(client::LockInfo { pending, ..Default::default() })).unwrap();
        let ClientPayload::LockInfo(info) = info else { panic!("not a lock info") };
        assert_eq!(info.pending, [session_message::Pending::Invalid(sent)]);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let nothing = decode(v1::ClientMessage { seq: 1, message: None }).unwrap_err();
        assert_eq!(nothing.code, Code::InvalidArgument);
        let held = vec![client::Held { path: vec!["x".into()], mode: 9, fencing_token: 1 }];
        assert!(decoded(Said::LockInfo(client::LockInfo { held, ..Default::default() })).is_err());
        let things = vec![client::Thing { kind: "latch".into(), path: vec!["x".into()], ..Default::default() }];
        assert!(decoded(Said::LockInfo(client::LockInfo { things, ..Default::default() })).is_err());
        let pending = vec![client::Pending { message: None, ..Default::default() }];
        assert!(decoded(Said::LockInfo(client::LockInfo { pending, ..Default::default() })).is_err());
    }
}
