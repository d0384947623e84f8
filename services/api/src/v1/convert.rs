//! Converts views of the service to messages, and values of messages to values of the service.

use holdfast_proto::v1;
use holdfast_types::{AccountStatus, Durability, Limits, LockState, Mode, Phase, Reason};
use time::OffsetDateTime;

use crate::{
    AccountView, AcquireAnswer, AcquireLocksAnswer, ApiError, ApiKeyView, ApiResult, BlockerInfo, CycleStepInfo,
    Holder, LimitsPatch, Lock, NamespaceView, PageRequest, PermitHolderInfo, ReasonInfo, ReleaseRequestInfo,
    SessionInfo, TABLE_READY, TableView, Timestamp,
};

/// Converts an instant of a response.
pub fn instant(timestamp: Timestamp) -> prost_types::Timestamp {
    let (seconds, millis) = (timestamp.0 / 1_000, timestamp.0 % 1_000);
    // Both fit: the seconds are a thousandth of a u64, the nanoseconds below 10^9.
    prost_types::Timestamp { seconds: seconds as i64, nanos: (millis * 1_000_000) as i32 }
}

/// Parses an instant of a request.
pub fn parse_instant(field: &'static str, given: Option<prost_types::Timestamp>) -> ApiResult<Option<OffsetDateTime>> {
    let Some(given) = given else { return Ok(None) };
    let nanos = i128::from(given.seconds) * 1_000_000_000 + i128::from(given.nanos);
    match OffsetDateTime::from_unix_timestamp_nanos(nanos) {
        Ok(instant) if (0..1_000_000_000).contains(&given.nanos) => Ok(Some(instant)),
        _ => Err(ApiError::invalid(field, format!("{field}: is not a valid instant"))),
    }
}

/// Returns the requested page; 0 and the empty text mean absent.
pub fn page_request(page_size: u32, page_token: String) -> PageRequest {
    PageRequest {
        page_size: (page_size > 0).then_some(page_size),
        page_token: (!page_token.is_empty()).then_some(page_token),
    }
}

/// Converts an account.
pub fn account(view: AccountView) -> v1::Account {
    let status = match view.status {
        AccountStatus::Active => v1::account::Status::Active,
        AccountStatus::Suspended => v1::account::Status::Suspended,
    };
    v1::Account {
        id: view.id,
        email: view.email,
        full_name: view.full_name,
        max_number_of_namespaces: view.max_number_of_namespaces,
        limits: Some(limits(&view.limits)),
        status: status.into(),
        created_at: Some(instant(view.created_at)),
        updated_at: Some(instant(view.updated_at)),
    }
}

/// Parses the status of an account in a request; unspecified means absent.
pub fn account_status(value: i32) -> ApiResult<Option<AccountStatus>> {
    match v1::account::Status::try_from(value) {
        Ok(v1::account::Status::Unspecified) => Ok(None),
        Ok(v1::account::Status::Active) => Ok(Some(AccountStatus::Active)),
        Ok(v1::account::Status::Suspended) => Ok(Some(AccountStatus::Suspended)),
        Err(_) => Err(ApiError::invalid("status", "status: must be ACTIVE or SUSPENDED")),
    }
}

/// Generates both directions together, so that neither omits a limit.
macro_rules! limits {
    ($($field:ident),* $(,)?) => {
        pub(super) fn limits(limits: &Limits) -> v1::Limits {
            let Limits { $($field),* } = limits;
            v1::Limits { $($field: Some(*$field)),* }
        }

        /// Returns the changes of limits.
        pub fn limits_patch(limits: v1::Limits) -> LimitsPatch {
            let v1::Limits { $($field),* } = limits;
            LimitsPatch { $($field),* }
        }
    };
}

limits! {
    max_description_bytes, max_metadata_bytes, max_claims_per_request, max_readers_per_lock, max_path_depth,
    min_ttl_ms, max_ttl_ms, max_transition_ms, max_wait_ms, min_session_ttl_ms, max_session_ttl_ms,
    max_holds_per_namespace, max_waiting_per_namespace, max_waiting_per_lock, max_sessions_per_namespace,
    max_requests_per_second, max_state_bytes, max_tangle, max_waiting_per_owner, max_holds_of_waiting_owner,
    max_requests_per_hold, max_requests_per_session, max_owners_per_session, max_event_bytes, max_lock_info,
    max_connections, max_open_calls, max_held_calls, max_buffered_bytes, max_key_changes, max_namespace_changes,
    max_latches_per_namespace, max_latch_ids, max_latch_indexes, max_semaphores_per_namespace,
    max_holds_per_semaphore, max_waiting_per_semaphore, max_permit_holds_per_session, max_primitive_bytes,
    max_held_questions, max_pools_per_namespace, max_members_per_pool, max_members_per_take,
    max_barriers_per_namespace, max_parties_per_barrier,
    max_awaiting_per_lock, max_conditions_per_lock,
}

/// Converts an API key, with the whole key if it is new.
pub fn api_key(view: ApiKeyView, api_key: Option<String>) -> v1::ApiKey {
    v1::ApiKey {
        key_id: view.key_id,
        api_key,
        account_id: view.account_id,
        description: view.description,
        scopes: view.scopes.into_iter().map(str::to_owned).collect(),
        namespaces: view.namespaces.unwrap_or_default(),
        expires_at: view.expires_at.map(instant),
        created_at: Some(instant(view.created_at)),
        last_used_at: view.last_used_at.map(instant),
    }
}

/// Converts a namespace.
pub fn namespace(view: NamespaceView) -> v1::Namespace {
    v1::Namespace {
        id: view.id,
        name: view.name,
        description: view.description,
        created_at: Some(instant(view.created_at)),
        updated_at: Some(instant(view.updated_at)),
        durability: durability(view.durability).into(),
        table: view.table.map(table_state),
    }
}

fn table_state(view: TableView) -> v1::namespace::Table {
    use v1::namespace::table::State;
    let state = if view.state == TABLE_READY { State::Ready } else { State::Rebuilding };
    v1::namespace::Table {
        state: state.into(),
        epoch: view.epoch,
        since: view.since.map(instant),
        sessions: view.sessions,
        missing: view.missing,
        waiting_for: view.waiting_for,
    }
}

/// Converts the durability of a namespace.
pub(super) fn durability(durability: Durability) -> v1::Durability {
    match durability {
        Durability::Full => v1::Durability::Full,
        Durability::Session => v1::Durability::Session,
    }
}

/// Converts the durability of a new namespace.
///
/// # Errors
/// For a number that stands for none.
pub fn parse_durability(given: i32) -> ApiResult<Durability> {
    match v1::Durability::try_from(given) {
        Ok(v1::Durability::Unspecified | v1::Durability::Full) => Ok(Durability::Full),
        Ok(v1::Durability::Session) => Ok(Durability::Session),
        Err(_) => Err(ApiError::invalid("durability", "durability: must be FULL or SESSION")),
    }
}

/// Converts a session.
pub fn session(session: SessionInfo) -> v1::Session {
    v1::Session {
        session_id: session.session_id,
        process_id: session.process_id,
        ttl_ms: session.ttl_ms,
        remaining_ms: session.remaining_ms,
        metadata: session.metadata.into_iter().collect(),
        opened_at: Some(instant(session.opened_at)),
        holds: session.holds,
        waiting: session.waiting,
    }
}

/// Converts a lock.
pub fn lock(info: Lock) -> v1::Lock {
    let state = match info.state {
        LockState::Unlocked => v1::lock::State::Unlocked,
        LockState::ReadLocked => v1::lock::State::ReadLocked,
        LockState::WriteLocked => v1::lock::State::WriteLocked,
    };
    v1::Lock {
        namespace: info.namespace,
        name: info.name,
        path: info.path,
        state: state.into(),
        locked_at: info.locked_at.map(instant),
        write_lock_holder: info.write_lock_holder.map(holder),
        read_lock_holders: info.read_lock_holders.into_iter().map(holder).collect(),
        holders_total: info.holders_total,
        waiting: info.waiting,
        revision: info.revision,
    }
}

/// Converts a mode.
pub fn mode(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Read => v1::Mode::Read,
        Mode::Write => v1::Mode::Write,
    }
}

/// Converts a hold.
pub fn holder(holder: Holder) -> v1::Holder {
    v1::Holder {
        process_id: holder.process_id,
        session_id: holder.session_id,
        holder: holder.holder,
        mode: mode(holder.mode).into(),
        fencing_token: holder.fencing_token,
        locked_at: Some(instant(holder.locked_at)),
        expires_at: holder.expires_at.map(instant),
        remaining_ms: holder.remaining_ms,
        phase: phase(holder.phase).into(),
        metadata: holder.metadata.into_iter().collect(),
        release_requested: holder.release_requested.map(release_request),
    }
}

/// Converts the response of an acquire of one lock.
pub fn acquired(answer: AcquireAnswer) -> v1::AcquireLockResponse {
    v1::AcquireLockResponse {
        success: answer.success,
        fencing_token: answer.fencing_token,
        reason: answer.reason.map(refusal),
        signed_grant: answer.signed_grant,
        lock: Some(lock(answer.lock)),
    }
}

/// Converts the response of an acquire of a set.
pub fn acquired_set(answer: AcquireLocksAnswer) -> v1::AcquireLocksResponse {
    v1::AcquireLocksResponse {
        success: answer.success,
        fencing_token: answer.fencing_token,
        reason: answer.reason.map(refusal),
        signed_grants: answer.signed_grants.unwrap_or_default(),
        locks: answer.locks.into_iter().map(lock).collect(),
    }
}

/// Converts the reason why a lock was not granted.
pub fn refusal(reason: ReasonInfo) -> v1::Refusal {
    use v1::refusal::Code;
    let code = match reason.code {
        Reason::Upgrade => Code::Upgrade,
        Reason::Held => Code::Held,
        Reason::Ancestor => Code::Ancestor,
        Reason::Descendant => Code::Descendant,
        Reason::Transition => Code::Transition,
        Reason::Queued => Code::Queued,
        Reason::Deadlock => Code::Deadlock,
        Reason::TimedOut => Code::TimedOut,
        Reason::NotHeld => Code::NotHeld,
        Reason::Ended => Code::Ended,
        Reason::Exhausted => Code::Exhausted,
        Reason::TooLarge => Code::TooLarge,
        Reason::NoMember => Code::NoMember,
    };
    v1::Refusal {
        code: code.into(),
        blockers: reason.blockers.into_iter().map(blocker).collect(),
        queue_position: reason.queue_position,
        cycle: reason.cycle.into_iter().map(cycle_step).collect(),
        holders: reason.holders.into_iter().map(permit_holder).collect(),
    }
}

fn cycle_step(step: CycleStepInfo) -> v1::CycleStep {
    let CycleStepInfo { process_id, session_id, holder, path, waiting } = step;
    v1::CycleStep { process_id, session_id, holder, path, waiting }
}

/// Converts a hold of permits.
pub fn permit_holder(holder: PermitHolderInfo) -> v1::PermitHolder {
    v1::PermitHolder {
        process_id: holder.process_id,
        session_id: holder.session_id,
        holder: holder.holder,
        request_id: holder.request_id,
        weight: holder.weight,
        members: holder.members,
        fencing_token: holder.fencing_token,
        locked_at: Some(instant(holder.locked_at)),
        expires_at: holder.expires_at.map(instant),
        remaining_ms: holder.remaining_ms,
        phase: phase(holder.phase).into(),
        metadata: holder.metadata.into_iter().collect(),
        release_requested: holder.release_requested.map(release_request),
    }
}

fn phase(phase: Phase) -> v1::holder::Phase {
    match phase {
        Phase::Held => v1::holder::Phase::Held,
        Phase::Transition => v1::holder::Phase::Transition,
    }
}

/// Converts a blocker.
pub fn blocker(blocker: BlockerInfo) -> v1::Blocker {
    v1::Blocker { path: blocker.path, waiting: blocker.waiting, holder: Some(holder(blocker.holder)) }
}

/// Converts what a hold keeps of a request to release it.
pub(super) fn release_request(request: ReleaseRequestInfo) -> v1::ReleaseRequest {
    v1::ReleaseRequest {
        by: request.by,
        reason: request.reason,
        within_ms: request.within_ms,
        requested_at: Some(instant(request.requested_at)),
        remaining_ms: request.remaining_ms,
        force: request.force,
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
