//! What the messages on a connection say of the message that a client sent.

use holdfast_api::session_message::{Await, ClientPayload, Pending, RefusalCause, ServerMessage};
use holdfast_api::{ApiError, Code};
use holdfast_core::{BarrierAnswer, Woken};

/// What a client is told of its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// It has what it asked for.
    Acquired { token: u64, members: Vec<String>, woken: Option<Woken> },
    /// It waits, awaits a condition or has arrived.
    Begun,
    /// A request is over.
    Ready,
    /// So many were woken.
    Signalled(u64),
    /// So many jobs were new, and so many are done.
    Counted { counted: u64, done: u64 },
    /// What became of an arrival.
    Tripped(BarrierAnswer),
    /// The session ended.
    Ended,
    /// It has nothing.
    Refused(String),
    /// It may have been done, and is not to be sent again.
    Unknown,
    /// It is to be sent again.
    Again,
}

/// Whether a message must not be sent again once it may have been done.
pub(super) fn is_done_once(message: &ClientPayload) -> bool {
    matches!(message, ClientPayload::Signal(signal) if signal.signal_id.is_none())
}

/// Returns the message as a resuming client lists it.
pub(super) fn pending_of(message: &ClientPayload) -> Option<Pending> {
    Some(match message.clone() {
        ClientPayload::Lock(lock) => Pending::Lock(lock),
        ClientPayload::AcquirePermits(acquire) => Pending::AcquirePermits(acquire),
        ClientPayload::Arrive(arrive) => Pending::Arrive(arrive),
        ClientPayload::Await(awaits) => Pending::Await(awaits),
        ClientPayload::Release(release) => Pending::Release(release),
        _ => return None,
    })
}

/// Returns the request that a message is about.
pub(super) fn request_id_of(message: &ClientPayload) -> Option<&str> {
    match message {
        ClientPayload::Lock(lock) => Some(&lock.request_id),
        ClientPayload::AcquirePermits(acquire) => Some(&acquire.request_id),
        ClientPayload::Arrive(arrive) => Some(&arrive.request_id),
        ClientPayload::Await(Await { request_id, .. }) => Some(request_id),
        ClientPayload::Release(release) | ClientPayload::Leave(release) => Some(&release.request_id),
        ClientPayload::Signal(signal) => Some(&signal.request_id),
        ClientPayload::CountDown(count) => Some(&count.request_id),
        _ => None,
    }
}

/// Returns what a message of the service says of one of the client, if it is about that.
pub(super) fn told_by(asked: &ClientPayload, message: &ServerMessage) -> Option<Told> {
    let is_own = |id: &String| request_id_of(asked) == Some(id.as_str());
    match (asked, message) {
        (_, ServerMessage::SessionEnded { .. }) => Some(Told::Ended),
        // One without a reason tells how it was before the lock was given up.
        (ClientPayload::Await(_), ServerMessage::Acquired { woken: None, .. }) => None,
        (
            ClientPayload::Lock(_) | ClientPayload::AcquirePermits(_) | ClientPayload::Await(_),
            ServerMessage::Acquired { request_id, fencing_token, members, woken, .. },
        ) if is_own(request_id) => {
            Some(Told::Acquired { token: *fencing_token, members: members.clone(), woken: *woken })
        }
        (
            ClientPayload::Lock(_) | ClientPayload::AcquirePermits(_) | ClientPayload::Await(_),
            ServerMessage::Enqueued { request_id, .. } | ServerMessage::Awaiting { request_id },
        )
        | (ClientPayload::Arrive(_), ServerMessage::Arrived { request_id, .. })
            if is_own(request_id) =>
        {
            Some(Told::Begun)
        }
        (ClientPayload::Release(_), ServerMessage::Ready { request_id: Some(request_id) }) if is_own(request_id) => {
            Some(Told::Ready)
        }
        (ClientPayload::ReleaseAll, ServerMessage::Ready { .. }) => Some(Told::Ready),
        (ClientPayload::Signal(_), ServerMessage::Signalled { request_id, count }) if is_own(request_id) => {
            Some(Told::Signalled(*count))
        }
        (ClientPayload::CountDown(_), ServerMessage::Counted { request_id, counted, done, .. })
            if is_own(request_id) =>
        {
            Some(Told::Counted { counted: *counted, done: *done })
        }
        (ClientPayload::Arrive(_) | ClientPayload::Leave(_), ServerMessage::Tripped { request_id, answer })
            if is_own(request_id) =>
        {
            Some(Told::Tripped(*answer))
        }
        (_, ServerMessage::Refused { request_id, why }) if is_own(request_id) => Some(match why {
            RefusalCause::Fault(error) => failed(asked, error),
            RefusalCause::Reason(reason) => Told::Refused(format!("{:?}", reason.code)),
        }),
        (_, ServerMessage::Error { error, request_id: Some(request_id) }) if is_own(request_id) => {
            Some(failed(asked, error))
        }
        (ClientPayload::Close | ClientPayload::ReleaseAll, ServerMessage::Error { error, request_id: None }) => {
            Some(failed(asked, error))
        }
        _ => None,
    }
}

fn failed(asked: &ClientPayload, error: &ApiError) -> Told {
    match error.code {
        Code::DeadlineExceeded if is_done_once(asked) => Told::Unknown,
        Code::DeadlineExceeded | Code::Unavailable => Told::Again,
        _ => Told::Refused(format!("{error:?}")),
    }
}
