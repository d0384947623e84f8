//! `/v1/namespaces/{namespace}/locks`.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{
    AcquireAnswer, AcquireLock, ApiResult, CheckAnswer, ListLocks, Lock, LockName, OwnerFields, PageRequest,
    ReleaseAnswer, ReleaseLock,
};
use holdfast_backend::Service;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::acquire_body::{AcquireBody, mode};
use super::body::Body;
use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{BodyErrors, CommonErrors, NamespaceErrors, Problems, QuotaErrors, RateErrors, SessionErrors};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::{FromQuery, Parameters, Query};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReleaseLock)]
pub(super) struct ReleaseBody {
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    fencing_token: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CheckLock)]
pub(super) struct CheckBody {
    fencing_token: u64,
}

#[derive(Serialize, ToSchema)]
pub(super) struct OneLock {
    pub(super) lock: Lock,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Locks {
    locks: Vec<Lock>,
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

/// Acquire a lock, wait for it, or extend a hold. A refused request is a response, not an error
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/locks/{name}/acquire", tag = "Locks", operation_id = "acquire_lock",
    security(("key" = ["locks:write"])),
    request_body(content = AcquireBody, example = json!({"process_id": "alice", "ttl_ms": 60000})),
    responses((status = 200, description = "Whether it was granted, and the lock as it now is.", body = AcquireAnswer), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, SessionErrors, QuotaErrors)>))]
pub(super) async fn acquire(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams((namespace, name)): PathParams<(String, String)>,
    Query(()): Query<()>,
    Body(body): Body<AcquireBody>,
) -> Result<Json<AcquireAnswer>, Problem> {
    let mode = mode("mode", body.mode.as_deref())?;
    let (owner, terms) = body.owner_and_terms();
    let request = AcquireLock { namespace, lock: LockName::Flat(name), owner, mode, terms };
    Ok(Json(service.acquire_lock(&call.caller, &call.context, request).await?))
}

/// Release a lock
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/locks/{name}/release", tag = "Locks", operation_id = "release_lock",
    security(("key" = ["locks:write"])),
    request_body(content = ReleaseBody, example = json!({"process_id": "alice"})),
    responses((status = 200, description = "Whether a hold ended, and the lock as it now is.", body = ReleaseAnswer), Problems<(CommonErrors, BodyErrors, NamespaceErrors, SessionErrors)>))]
pub(super) async fn release(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams((namespace, name)): PathParams<(String, String)>,
    Query(()): Query<()>,
    Body(body): Body<ReleaseBody>,
) -> Result<Json<ReleaseAnswer>, Problem> {
    let owner = OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder };
    let request = ReleaseLock { namespace, lock: LockName::Flat(name), owner, fencing_token: body.fencing_token };
    Ok(Json(service.release_lock(&call.caller, &call.context, request).await?))
}

/// Get a lock
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/locks/{name}", tag = "Locks", operation_id = "get_lock",
    security(("key" = ["locks:read"])),
    responses((status = 200, description = "The lock, with all its readers.", body = OneLock), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn get(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams((namespace, name)): PathParams<(String, String)>,
    Query(()): Query<()>,
) -> Result<Json<OneLock>, Problem> {
    let lock = service.get_lock(&call.caller, &call.context, &namespace, &LockName::Flat(name)).await?;
    Ok(Json(OneLock { lock }))
}

/// Force a lock open: end all its holds
#[utoipa::path(delete, path = "/v1/namespaces/{namespace}/locks/{name}", tag = "Locks", operation_id = "delete_lock",
    security(("key" = ["locks:force"])),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams((namespace, name)): PathParams<(String, String)>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_lock(&call.caller, &call.context, &namespace, &LockName::Flat(name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Check whether a fencing token is current
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/locks/{name}/check", tag = "Locks", operation_id = "check_lock",
    security(("key" = ["locks:read"])),
    request_body(content = CheckBody, example = json!({"fencing_token": 57})),
    responses((status = 200, description = "Whether the hold of that token is held.", body = CheckAnswer), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn check(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams((namespace, name)): PathParams<(String, String)>,
    Query(()): Query<()>,
    Body(body): Body<CheckBody>,
) -> Result<Json<CheckAnswer>, Problem> {
    let (lock, token) = (LockName::Flat(name), body.fencing_token);
    Ok(Json(service.check_lock(&call.caller, &call.context, &namespace, &lock, token).await?))
}

/// List held locks, in order of path
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/locks", tag = "Locks", operation_id = "list_locks",
    security(("key" = ["locks:read"])), params(("prefix" = Option<Vec<String>>, Query, description = "A path: its segments in order, one in each parameter."), PageRequest),
    responses((status = 200, description = "A page.", body = Locks), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Locks>, Problem> {
    let request = ListLocks { namespace, prefix: query.prefix, page: query.page };
    let page = service.list_locks(&call.caller, &call.context, request).await?;
    Ok(Json(Locks { locks: page.items, next_page_token: page.next_page_token }))
}
