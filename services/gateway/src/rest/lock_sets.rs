//! `/v1/namespaces/{namespace}/lock-sets` and `/reset`: several paths at once, locks of any path, the whole namespace.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{
    AcquireLocks, AcquireLocksAnswer, CheckAnswer, LockName, OwnerFields, ReleaseLocks, ReleaseLocksAnswer,
    ResetAnswer, ResetNamespace,
};
use holdfast_backend::Service;
use serde::Deserialize;
use utoipa::ToSchema;

use super::acquire_body::{AcquireSetBody, resources};
use super::body::{Body, StrictObject};
use super::call::AuthenticatedCall;
use super::json::Json;
use super::locks::OneLock;
use super::openapi::{BodyErrors, CommonErrors, NamespaceErrors, Problems, QuotaErrors, RateErrors, SessionErrors};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReleaseLocks)]
pub(super) struct ReleaseSetBody {
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    #[schema(value_type = Option<Vec<PathBody>>)]
    resources: Option<Vec<StrictObject<PathBody>>>,
    all: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LockPath)]
pub(super) struct PathBody {
    path: Vec<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CheckLockPath)]
pub(super) struct CheckPathBody {
    path: Vec<String>,
    fencing_token: u64,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResetNamespace)]
pub(super) struct ResetBody {
    live_owners: Vec<String>,
    before_revision: Option<u64>,
}

/// Acquire several locks at once: all of them or none
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/lock-sets/acquire", tag = "Sets", operation_id = "acquire_locks",
    security(("key" = ["locks:write"])),
    request_body(content = AcquireSetBody, example = json!({"process_id": "alice", "ttl_ms": 60000, "resources": [{"path": ["a", "b"], "mode": "READ"}]})),
    responses((status = 200, description = "Whether all was granted, and the locks as they now are.", body = AcquireLocksAnswer), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, SessionErrors, QuotaErrors)>))]
pub(super) async fn acquire(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(mut body): Body<AcquireSetBody>,
) -> Result<Json<AcquireLocksAnswer>, Problem> {
    let resources = resources(std::mem::take(&mut body.resources))?;
    let request_id = body.request_id.take();
    let (owner, terms) = body.owner_and_terms();
    let request = AcquireLocks { namespace, resources, owner, request_id, terms };
    Ok(Json(service.acquire_locks(&call.caller, &call.context, request).await?))
}

/// Release several locks, or everything of an owner
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/lock-sets/release", tag = "Sets", operation_id = "release_locks",
    security(("key" = ["locks:write"])),
    request_body(content = ReleaseSetBody, example = json!({"process_id": "alice", "all": true})),
    responses((status = 200, description = "Whether something ended, and the locks as they now are.", body = ReleaseLocksAnswer), Problems<(CommonErrors, BodyErrors, NamespaceErrors, SessionErrors)>))]
pub(super) async fn release(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<ReleaseSetBody>,
) -> Result<Json<ReleaseLocksAnswer>, Problem> {
    let owner = OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder };
    let paths = body.resources.map(|resources| resources.into_iter().map(|resource| resource.0.path).collect());
    let request = ReleaseLocks { namespace, owner, paths, all: body.all.unwrap_or(false) };
    Ok(Json(service.release_locks(&call.caller, &call.context, request).await?))
}

/// Get a lock of any path
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/lock-sets/get", tag = "Sets", operation_id = "get_lock_at",
    security(("key" = ["locks:read"])),
    request_body(content = PathBody, example = json!({"path": ["a", "b"]})),
    responses((status = 200, description = "The lock, with all its readers.", body = OneLock), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn get(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<PathBody>,
) -> Result<Json<OneLock>, Problem> {
    let lock = service.get_lock(&call.caller, &call.context, &namespace, &LockName::Path(body.path)).await?;
    Ok(Json(OneLock { lock }))
}

/// Force a lock of any path open
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/lock-sets/delete", tag = "Sets", operation_id = "delete_lock_at",
    security(("key" = ["locks:force"])),
    request_body(content = PathBody, example = json!({"path": ["a", "b"]})),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<PathBody>,
) -> Result<StatusCode, Problem> {
    service.delete_lock(&call.caller, &call.context, &namespace, &LockName::Path(body.path)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Check whether a fencing token is current, for a lock of any path
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/lock-sets/check", tag = "Sets", operation_id = "check_lock_at",
    security(("key" = ["locks:read"])),
    request_body(content = CheckPathBody, example = json!({"path": ["a", "b"], "fencing_token": 57})),
    responses((status = 200, description = "Whether the hold of that token is held.", body = CheckAnswer), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn check(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<CheckPathBody>,
) -> Result<Json<CheckAnswer>, Problem> {
    let (lock, token) = (LockName::Path(body.path), body.fencing_token);
    Ok(Json(service.check_lock(&call.caller, &call.context, &namespace, &lock, token).await?))
}

/// End everything of every owner that is not listed
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/reset", tag = "Sets", operation_id = "reset_namespace",
    security(("key" = ["locks:force"])),
    request_body(content = ResetBody, example = json!({"live_owners": ["alice"]})),
    responses((status = 200, description = "What ended.", body = ResetAnswer), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn reset(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<ResetBody>,
) -> Result<Json<ResetAnswer>, Problem> {
    let ResetBody { live_owners, before_revision } = body;
    let request = ResetNamespace { namespace, live_owners, before_revision };
    Ok(Json(service.reset_namespace(&call.caller, &call.context, request).await?))
}
