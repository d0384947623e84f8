//! The bytes of messages that wait in the queues of a session's connection. Each direction has a budget of its own,
//! within that of the account.

use holdfast_api::session_message::{
    ClientMessage, ClientPayload, Lock, LockInfo, Pending, RefusalCause, ServerMessage,
};
use holdfast_api::{ApiError, BlockerInfo, CycleStepInfo, Holder, ReasonInfo};

/// Bytes that may wait in one direction.
pub(super) const MAX_BYTES: u32 = 1 << 20;
/// What a message, or a part of one, counts as besides its texts: small messages reach the limit of their number first.
const OVERHEAD: usize = 256;

/// Returns what a message of a client counts as.
pub(super) fn client_message_bytes(message: &ClientMessage) -> usize {
    OVERHEAD
        + match &message.payload {
            ClientPayload::Open(open) => {
                let metadata = open.metadata.iter().map(|(key, value)| OVERHEAD + key.len() + value.len());
                open.namespace.len() + optional(&open.session_id) + open.process_id.len() + metadata.sum::<usize>()
            }
            ClientPayload::LockInfo(info) => lock_info_bytes(info),
            ClientPayload::Lock(lock) => lock_bytes(lock),
            ClientPayload::Release(release) => release.request_id.len(),
            ClientPayload::ReleaseAll | ClientPayload::KeepAlive | ClientPayload::Close => 0,
        }
}

/// Returns what a message of the service counts as.
pub(super) fn server_message_bytes(message: &ServerMessage) -> usize {
    OVERHEAD
        + match message {
            ServerMessage::Opened { session_id, leader, .. } => session_id.len() + optional(leader),
            ServerMessage::Revoked { path, current_owner, .. } => {
                path_bytes(path) + current_owner.as_ref().map_or(0, holder_bytes)
            }
            ServerMessage::Acquired { request_id, .. } => request_id.len(),
            ServerMessage::Enqueued { request_id, blockers, .. } => request_id.len() + blockers_bytes(blockers),
            ServerMessage::Ready { request_id } => optional(request_id),
            ServerMessage::Refused { request_id, why } => {
                let why = match why {
                    RefusalCause::Reason(reason) => reason_bytes(reason),
                    RefusalCause::Fault(error) => error_bytes(error),
                };
                request_id.len() + why
            }
            ServerMessage::KeptAlive { .. } | ServerMessage::SessionEnded { .. } => 0,
            ServerMessage::Error { error, request_id } => error_bytes(error) + optional(request_id),
        }
}

fn optional(text: &Option<String>) -> usize {
    text.as_ref().map_or(0, String::len)
}

fn path_bytes(path: &[String]) -> usize {
    path.iter().map(|segment| size_of::<String>() + segment.len()).sum()
}

fn lock_bytes(lock: &Lock) -> usize {
    let resources = lock.resources.iter().map(|resource| size_of_val(resource) + path_bytes(&resource.path));
    lock.request_id.len() + optional(&lock.holder) + resources.sum::<usize>()
}

fn lock_info_bytes(info: &LockInfo) -> usize {
    let pending = info.pending.iter().map(|message| match message {
        Pending::Lock(lock) => OVERHEAD + lock_bytes(lock),
        Pending::Release(release) => OVERHEAD + release.request_id.len(),
    });
    let held = info.held.iter().map(|hold| size_of_val(hold) + path_bytes(&hold.path.0));
    pending.sum::<usize>() + held.sum::<usize>()
}

fn holder_bytes(holder: &Holder) -> usize {
    let texts = holder.process_id.len() + optional(&holder.session_id) + optional(&holder.holder);
    size_of_val(holder) + texts + holder.metadata.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
}

fn blockers_bytes(blockers: &[BlockerInfo]) -> usize {
    blockers.iter().map(|blocker| path_bytes(&blocker.path) + holder_bytes(&blocker.holder)).sum()
}

fn reason_bytes(reason: &ReasonInfo) -> usize {
    let step_bytes = |step: &CycleStepInfo| {
        let texts = step.process_id.len() + optional(&step.session_id) + optional(&step.holder);
        size_of_val(step) + texts + path_bytes(&step.path)
    };
    blockers_bytes(&reason.blockers) + reason.cycle.iter().map(step_bytes).sum::<usize>()
}

fn error_bytes(error: &ApiError) -> usize {
    let ids = error.ids.iter().map(|id| size_of_val(id) + id.1.len());
    error.detail.len() + ids.sum::<usize>()
}
