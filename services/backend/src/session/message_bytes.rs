//! The bytes of messages that wait in the queues of a session's connection. Each direction has a budget of its own,
//! within that of the account.

use holdfast_api::session_message::{
    AcquirePermits, Arrive, Await, ClientMessage, ClientPayload, CountDown, GrantedLock, InvalidRequest, Lock,
    LockInfo, Pending, RefusalCause, ServerMessage, Signal,
};
use holdfast_api::{ApiError, BlockerInfo, CycleStepInfo, Holder, PermitHolderInfo, ReasonInfo, ReleaseRequestInfo};
use holdfast_types::{ReportedHold, Wanted};

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
            ClientPayload::AcquirePermits(acquire) => acquire_bytes(acquire),
            ClientPayload::Invalid(invalid) => invalid_bytes(invalid),
            ClientPayload::CountDown(count) => count_down_bytes(count),
            ClientPayload::Arrive(arrive) => arrive_bytes(arrive),
            ClientPayload::Release(release) | ClientPayload::Leave(release) => release.request_id.len(),
            ClientPayload::Await(awaits) => await_bytes(awaits),
            ClientPayload::Signal(signal) => signal_bytes(signal),
            ClientPayload::ReleaseAll | ClientPayload::KeepAlive | ClientPayload::Close => 0,
        }
}

/// Returns what a message of the service counts as.
pub(super) fn server_message_bytes(message: &ServerMessage) -> usize {
    OVERHEAD
        + match message {
            ServerMessage::Opened { session_id, leader, .. } => session_id.len() + optional(leader),
            ServerMessage::Revoked { path, current_owner, holder, .. } => {
                path_bytes(path) + optional(holder) + current_owner.as_ref().map_or(0, |it| holder_bytes(it))
            }
            ServerMessage::Acquired { request_id, members, .. } => request_id.len() + path_bytes(members),
            ServerMessage::Counted { request_id, .. }
            | ServerMessage::Arrived { request_id, .. }
            | ServerMessage::Tripped { request_id, .. }
            | ServerMessage::Awaiting { request_id }
            | ServerMessage::Signalled { request_id, .. } => request_id.len(),
            ServerMessage::Enqueued { request_id, blockers, holders, .. } => {
                request_id.len() + blockers_bytes(blockers) + permit_holders_bytes(holders)
            }
            ServerMessage::ReleaseRequested { request_id, path, by, reason, .. } => {
                optional(request_id) + path_bytes(path) + by.len() + reason.len()
            }
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

/// Returns what a request for locks counts as, without the message around it.
pub(super) fn lock_bytes(lock: &Lock) -> usize {
    let resources = lock.resources.iter().map(|resource| size_of_val(resource) + path_bytes(&resource.path));
    let metadata =
        lock.metadata.iter().map(|(key, value)| size_of_val(key) + size_of_val(value) + key.len() + value.len());
    lock.request_id.len() + optional(&lock.holder) + resources.sum::<usize>() + metadata.sum::<usize>()
}

/// Returns what a request for permits or members counts as, without the message around it.
pub(super) fn acquire_bytes(acquire: &AcquirePermits) -> usize {
    let wanted = match &acquire.wanted {
        Wanted::Permits { .. } => 0,
        Wanted::Members { prefer, .. } => optional(prefer),
        Wanted::Member(name) => name.len(),
    };
    acquire.request_id.len() + path_bytes(&acquire.path) + optional(&acquire.holder) + wanted
}

fn invalid_bytes(invalid: &InvalidRequest) -> usize {
    invalid.request_id.len() + error_bytes(&invalid.error)
}

/// Returns what an arrival counts as, without the message around it.
pub(super) fn arrive_bytes(arrive: &Arrive) -> usize {
    arrive.request_id.len() + path_bytes(&arrive.path) + optional(&arrive.holder)
}

/// Returns what a count-down counts as, without the message around it.
pub(super) fn count_down_bytes(count: &CountDown) -> usize {
    let ids = count.ids.iter().flatten().map(|id| size_of_val(id) + id.len());
    let ranges = count.ranges.as_ref().map_or(0, |ranges| size_of_val(ranges.as_slice()));
    count.request_id.len() + path_bytes(&count.path) + ids.sum::<usize>() + ranges
}

pub(super) fn await_bytes(awaits: &Await) -> usize {
    awaits.request_id.len() + awaits.condition.len()
}

pub(super) fn signal_bytes(signal: &Signal) -> usize {
    signal.request_id.len() + signal.condition.len() + signal.signal_id.as_ref().map_or(0, String::len)
}

fn lock_info_bytes(info: &LockInfo) -> usize {
    let pending = info.pending.iter().map(|message| match message {
        Pending::Lock(lock) => OVERHEAD + lock_bytes(lock),
        Pending::AcquirePermits(acquire) => OVERHEAD + acquire_bytes(acquire),
        Pending::Invalid(invalid) => OVERHEAD + invalid_bytes(invalid),
        Pending::Arrive(arrive) => OVERHEAD + arrive_bytes(arrive),
        Pending::Await(awaits) => OVERHEAD + await_bytes(awaits),
        Pending::Release(release) => OVERHEAD + release.request_id.len(),
    });
    let held = info.held.iter().map(hold_bytes);
    let permits = info.permits.iter().map(|hold| {
        let texts = hold.reported.request_id.len() + optional(&hold.holder);
        size_of_val(hold) + texts + path_bytes(&hold.reported.path.0)
    });
    let granted = info.granted.iter().map(granted_bytes);
    let places = info.places.iter().map(|place| size_of_val(place) + place.0.len());
    let proven = granted.sum::<usize>() + places.sum::<usize>();
    pending.sum::<usize>() + held.sum::<usize>() + permits.sum::<usize>() + proven
}

/// Returns what a granted request of a list counts as.
pub(super) fn granted_bytes(granted: &GrantedLock) -> usize {
    let resources = granted.resources.iter().map(hold_bytes).sum::<usize>();
    size_of_val(granted) + granted.request_id.len() + optional(&granted.holder) + resources
}

/// Returns what a hold of a list counts as.
pub(super) fn hold_bytes(hold: &ReportedHold) -> usize {
    size_of_val(hold) + path_bytes(&hold.path.0)
}

fn holder_bytes(holder: &Holder) -> usize {
    let texts = holder.process_id.len() + optional(&holder.session_id) + optional(&holder.holder);
    let metadata = holder.metadata.iter().map(|(key, value)| key.len() + value.len());
    size_of_val(holder) + texts + metadata.sum::<usize>() + release_request_bytes(&holder.release_requested)
}

fn release_request_bytes(request: &Option<ReleaseRequestInfo>) -> usize {
    request.as_ref().map_or(0, |request| request.by.len() + request.reason.len())
}

fn blockers_bytes(blockers: &[BlockerInfo]) -> usize {
    blockers.iter().map(|blocker| path_bytes(&blocker.path) + holder_bytes(&blocker.holder)).sum()
}

fn permit_holders_bytes(holders: &[PermitHolderInfo]) -> usize {
    let bytes = |holder: &PermitHolderInfo| {
        let texts =
            holder.process_id.len() + optional(&holder.session_id) + optional(&holder.holder) + holder.request_id.len();
        let metadata = holder.metadata.iter().map(|(key, value)| key.len() + value.len());
        let request = release_request_bytes(&holder.release_requested);
        size_of_val(holder) + texts + path_bytes(&holder.members) + metadata.sum::<usize>() + request
    };
    holders.iter().map(bytes).sum()
}

fn reason_bytes(reason: &ReasonInfo) -> usize {
    let step_bytes = |step: &CycleStepInfo| {
        let texts = step.process_id.len() + optional(&step.session_id) + optional(&step.holder);
        size_of_val(step) + texts + path_bytes(&step.path)
    };
    let cycle = reason.cycle.iter().map(step_bytes).sum::<usize>();
    blockers_bytes(&reason.blockers) + permit_holders_bytes(&reason.holders) + cycle
}

fn error_bytes(error: &ApiError) -> usize {
    let ids = error.ids.iter().map(|id| size_of_val(id) + id.1.len());
    error.detail.len() + ids.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use holdfast_api::session_message::HeldPermits;
    use holdfast_api::validate::MAX_BODY_BYTES;
    use holdfast_api::{Resource, Timestamp};
    use holdfast_types::{Kind, Limits, Metadata, Mode, Path, Phase, Reason, ReportedPermits};

    use super::*;
    use crate::admission::{DeferredCalls, Share, Sharer};
    use crate::session::test_lock;

    fn of_client(payload: ClientPayload) -> usize {
        client_message_bytes(&ClientMessage { seq: 1, payload })
    }

    fn acquire(path: &str) -> AcquirePermits {
        AcquirePermits {
            request_id: "a".to_owned(),
            path: vec![path.to_owned()],
            wanted: Wanted::Permits { weight: 1, permits: None },
            holder: None,
            priority: 0,
            transition_ms: 0,
            only_try: false,
        }
    }

    #[test]
    fn every_text_of_a_client_about_latches_and_semaphores_counts() {
        let long = "x".repeat(10_000);
        let count = |ids: &str, ranges: usize| {
            let (request_id, path) = ("a".to_owned(), vec!["l".to_owned()]);
            let (ids, ranges) = (Some(vec![ids.to_owned()]), Some(vec![(0, 0); ranges]));
            of_client(ClientPayload::CountDown(CountDown { request_id, path, id: None, ids, ranges }))
        };
        assert_eq!(count(&long, 1_000) - count("", 0), 10_000 + 16_000);
        let asked = |path: &str| of_client(ClientPayload::AcquirePermits(acquire(path)));
        assert_eq!(asked(&long) - asked(""), 10_000);
        let taken = |member: &str| {
            let wanted = Wanted::Member(member.to_owned());
            of_client(ClientPayload::AcquirePermits(AcquirePermits { wanted, ..acquire("p") }))
        };
        assert_eq!(taken(&long) - taken(""), 10_000);
        let info = |path: &str, request_id: &str, pending: &str| {
            let (path, request_id) = (Path::flat(path), request_id.to_owned());
            let reported = ReportedPermits { kind: Kind::Semaphore, path, request_id, fencing_token: 1 };
            let permits = vec![HeldPermits { reported, holder: None }];
            let pending = vec![Pending::AcquirePermits(acquire(pending))];
            of_client(ClientPayload::LockInfo(LockInfo { permits, pending, ..LockInfo::default() }))
        };
        assert_eq!(info(&long, &long, &long) - info("", "", ""), 30_000);
    }

    #[test]
    fn the_largest_request_for_locks_fits_into_what_every_account_may_hold() {
        let (paths, depth) = (Limits::CLAIMS_PER_REQUEST as usize, Limits::PATH_DEPTH as usize);
        // Each segment takes two bytes besides its text in a message.
        let text = "x".repeat(MAX_BODY_BYTES / (paths * depth) - 2);
        let claim = |_| Resource { path: vec![text.clone(); depth], mode: Mode::Write };
        let largest = Lock { resources: (0..paths).map(claim).collect(), ..test_lock::lock("a", &[], Mode::Write) };
        let share = Share { max_held_calls: 1, ..Share::of(Sharer::Operator) };
        assert!(DeferredCalls::default().acquire(share, lock_bytes(&largest)).is_ok(), "{}", lock_bytes(&largest));
    }

    #[test]
    fn every_text_of_an_arrival_counts() {
        let arrive = |text: &str| {
            let (request_id, path, holder) = (text.to_owned(), vec![text.to_owned()], Some(text.to_owned()));
            Arrive { request_id, path, generation: None, parties: None, double: None, holder }
        };
        let long = "x".repeat(10_000);
        let sent = |text: &str| of_client(ClientPayload::Arrive(arrive(text)));
        assert_eq!(sent(&long) - sent(""), 30_000);
        let listed = |text: &str| {
            let pending = vec![Pending::Arrive(arrive(text))];
            of_client(ClientPayload::LockInfo(LockInfo { pending, ..LockInfo::default() }))
        };
        assert_eq!(listed(&long) - listed(""), 30_000);
    }

    #[test]
    fn shown_holders_of_permits_count() {
        let holder = |text: &str| PermitHolderInfo {
            process_id: text.to_owned(),
            session_id: None,
            holder: Some(text.to_owned()),
            request_id: text.to_owned(),
            weight: 1,
            members: Vec::new(),
            fencing_token: 1,
            locked_at: Timestamp::now(),
            expires_at: None,
            remaining_ms: None,
            phase: Phase::Held,
            metadata: Metadata::new(),
            release_requested: None,
        };
        let bytes = |holders: Vec<PermitHolderInfo>| {
            let (request_id, shown) = ("a".to_owned(), holders.clone());
            let (blockers, queue_position) = (Vec::new(), Some(0));
            let enqueued =
                ServerMessage::Enqueued { request_id, queue_position, blockers, holders, woken: None, place: None };
            let (code, blockers, cycle) = (Reason::Queued, Vec::new(), Vec::new());
            let why = RefusalCause::Reason(ReasonInfo { code, blockers, queue_position, cycle, holders: shown });
            let refused = ServerMessage::Refused { request_id: "a".to_owned(), why };
            (server_message_bytes(&enqueued), server_message_bytes(&refused))
        };
        let (none, one, long) = (bytes(Vec::new()), bytes(vec![holder("")]), bytes(vec![holder(&"x".repeat(1_000))]));
        let size = size_of::<PermitHolderInfo>();
        assert_eq!((one.0 - none.0, one.1 - none.1), (size, size));
        assert_eq!((long.0 - one.0, long.1 - one.1), (3_000, 3_000));
    }
}
