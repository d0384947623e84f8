//! `/v1/namespaces/{namespace}/locks`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::Problem;
use super::acquire_body::{AcquireBody, mode};
use super::body::Body;
use super::call::Call;
use super::names::Names;
use super::query::{FromQuery, Parameters, Query};
use crate::error::ApiResult;
use crate::service::{
    AcquireAnswer, AcquireLock, CheckAnswer, ListLocks, LockInfo, LockName, OwnerFields, PageRequest, ReleaseAnswer,
    ReleaseLock, Service,
};

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
    pub(super) lock: LockInfo,
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

pub(super) async fn acquire(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
    Body(body): Body<AcquireBody>,
) -> Result<Json<AcquireAnswer>, Problem> {
    let mode = mode("mode", body.mode.as_deref())?;
    let (owner, terms) = body.owner_and_terms();
    let request = AcquireLock { namespace, lock: LockName::Flat(name), owner, mode, terms };
    Ok(Json(service.acquire_lock(&call.caller, &call.context, request).await?))
}

pub(super) async fn release(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
    Body(body): Body<ReleaseBody>,
) -> Result<Json<ReleaseAnswer>, Problem> {
    let owner = OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder };
    let request = ReleaseLock { namespace, lock: LockName::Flat(name), owner, fencing_token: body.fencing_token };
    Ok(Json(service.release_lock(&call.caller, &call.context, request).await?))
}

pub(super) async fn get(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
) -> Result<Json<OneLock>, Problem> {
    let lock = service.get_lock(&call.caller, &call.context, &namespace, &LockName::Flat(name)).await?;
    Ok(Json(OneLock { lock }))
}

pub(super) async fn delete(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_lock(&call.caller, &call.context, &namespace, &LockName::Flat(name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn check(
    State(service): State<Service>,
    call: Call,
    Names((namespace, name)): Names<(String, String)>,
    Query(()): Query<()>,
    Body(body): Body<CheckBody>,
) -> Result<Json<CheckAnswer>, Problem> {
    let (lock, token) = (LockName::Flat(name), body.fencing_token);
    Ok(Json(service.check_lock(&call.caller, &call.context, &namespace, &lock, token).await?))
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
