//! `/v1/namespaces/{namespace}/locks`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use holdfast_core::Mode;
use serde::{Deserialize, Serialize};

use super::Problem;
use super::body::{Body, Instant, Pairs};
use super::call::Call;
use super::names::Names;
use super::query::{FromQuery, Parameters, Query};
use crate::error::{ApiError, ApiResult};
use crate::service::{
    AcquireAnswer, AcquireLock, CheckAnswer, ListLocks, LockInfo, PageRequest, ReleaseAnswer, ReleaseLock, Service,
    parse_mode,
};

/// Fields of calls that wait and of sessions are known by name, so that asking for what is not served says so.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireBody {
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    mode: Option<String>,
    ttl_ms: Option<u64>,
    expires_at: Option<Instant>,
    wait_ms: Option<u64>,
    poll_ms: Option<u64>,
    transition_ms: Option<u64>,
    metadata: Option<Pairs>,
    allow_upgrade: Option<bool>,
    fencing_token: Option<u64>,
}

impl AcquireBody {
    fn into_request(self, namespace: String, name: String) -> ApiResult<AcquireLock> {
        let process_id = process_id(self.process_id, self.session_id, self.holder)?;
        let mode = match self.mode {
            None => Mode::Write,
            Some(name) => parse_mode(&name).ok_or_else(|| ApiError::invalid("mode", "mode: must be READ or WRITE"))?,
        };
        if self.wait_ms.is_some_and(|wait_ms| wait_ms > 0) {
            return Err(ApiError::not_served("wait_ms"));
        }
        // It bounds a wait, of which there is none.
        let _ = self.poll_ms;
        if self.allow_upgrade == Some(true) {
            return Err(ApiError::not_served("allow_upgrade"));
        }
        Ok(AcquireLock {
            namespace,
            name,
            process_id,
            mode,
            ttl_ms: self.ttl_ms,
            expires_at: self.expires_at.map(|instant| instant.0),
            dlocks_expires_at_ns: None,
            transition_ms: self.transition_ms.unwrap_or(0),
            metadata: self.metadata.unwrap_or_default().0,
            fencing_token: self.fencing_token,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseBody {
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    fencing_token: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckBody {
    fencing_token: u64,
}

#[derive(Serialize)]
pub(super) struct OneLock {
    lock: LockInfo,
}

#[derive(Serialize)]
pub(super) struct Locks {
    locks: Vec<LockInfo>,
    next_page_token: Option<String>,
}

#[derive(Debug)]
pub(super) struct ListQuery {
    pub(super) prefix: Vec<String>,
    pub(super) page: PageRequest,
}

impl FromQuery for ListQuery {
    fn from_query(parameters: &mut Parameters) -> ApiResult<Self> {
        Ok(Self { prefix: parameters.all("prefix"), page: PageRequest::from_query(parameters)? })
    }
}

/// The owner of a call by a process id.
fn process_id(process_id: Option<String>, session_id: Option<String>, holder: Option<String>) -> ApiResult<String> {
    if session_id.is_some() {
        return Err(ApiError::not_served("session_id"));
    }
    if holder.is_some() {
        return Err(ApiError::invalid("holder", "holder: only goes with a session_id"));
    }
    process_id.ok_or_else(|| ApiError::invalid("process_id", "process_id: is needed"))
}

pub(super) async fn acquire(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
    Body(body): Body<AcquireBody>,
) -> Result<Json<AcquireAnswer>, Problem> {
    let request = body.into_request(namespace, name)?;
    Ok(Json(service.acquire_lock(&call.caller, &call.context, request).await?))
}

pub(super) async fn release(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
    Body(body): Body<ReleaseBody>,
) -> Result<Json<ReleaseAnswer>, Problem> {
    let process_id = process_id(body.process_id, body.session_id, body.holder)?;
    let request = ReleaseLock { namespace, name, process_id, fencing_token: body.fencing_token };
    Ok(Json(service.release_lock(&call.caller, &call.context, request).await?))
}

pub(super) async fn get(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
) -> Result<Json<OneLock>, Problem> {
    let lock = service.get_lock(&call.caller, &call.context, &namespace, &name).await?;
    Ok(Json(OneLock { lock }))
}

pub(super) async fn delete(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_lock(&call.caller, &call.context, &namespace, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn check(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
    Body(body): Body<CheckBody>,
) -> Result<Json<CheckAnswer>, Problem> {
    let answer = service.check_lock(&call.caller, &call.context, &namespace, &name, body.fencing_token).await?;
    Ok(Json(answer))
}

pub(super) async fn list(
    State(service): State<Service>,
    call: Call,
    Names(namespace): Names<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Locks>, Problem> {
    let request = ListLocks { namespace, prefix: query.prefix, page: query.page };
    let page = service.list_locks(&call.caller, &call.context, request).await?;
    Ok(Json(Locks { locks: page.items, next_page_token: page.next_page_token }))
}
