//! `/v1/namespaces/{namespace}/lock-sets` and `/reset`: several paths at once, locks of any path, the whole namespace.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use super::Problem;
use super::acquire_body::{AcquireSetBody, resources};
use super::body::{Body, Object};
use super::call::Call;
use super::locks::OneLock;
use super::names::Names;
use super::query::Query;
use crate::service::{
    AcquireLocks, AcquireLocksAnswer, CheckAnswer, LockName, OwnerFields, ReleaseLocks, ReleaseLocksAnswer,
    ResetAnswer, ResetNamespace, Service,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseSetBody {
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    resources: Option<Vec<Object<PathBody>>>,
    all: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathBody {
    path: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckPathBody {
    path: Vec<String>,
    fencing_token: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetBody {
    live_owners: Vec<String>,
    before_revision: Option<u64>,
}

pub(super) async fn acquire(
    State(service): State<Service>,
    call: Call,
    Names(namespace): Names<String>,
    Query(()): Query<()>,
    Body(mut body): Body<AcquireSetBody>,
) -> Result<Json<AcquireLocksAnswer>, Problem> {
    let resources = resources(std::mem::take(&mut body.resources))?;
    let request_id = body.request_id.take();
    let (owner, terms) = body.owner_and_terms();
    let request = AcquireLocks { namespace, resources, owner, request_id, terms };
    Ok(Json(service.acquire_locks(&call.caller, &call.context, request).await?))
}

pub(super) async fn release(
    State(service): State<Service>,
    call: Call,
    Names(namespace): Names<String>,
    Query(()): Query<()>,
    Body(body): Body<ReleaseSetBody>,
) -> Result<Json<ReleaseLocksAnswer>, Problem> {
    let owner = OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder };
    let paths = body.resources.map(|resources| resources.into_iter().map(|resource| resource.0.path).collect());
    let request = ReleaseLocks { namespace, owner, paths, all: body.all.unwrap_or(false) };
    Ok(Json(service.release_locks(&call.caller, &call.context, request).await?))
}

pub(super) async fn get(
    State(service): State<Service>,
    call: Call,
    Names(namespace): Names<String>,
    Query(()): Query<()>,
    Body(body): Body<PathBody>,
) -> Result<Json<OneLock>, Problem> {
    let lock = service.get_lock(&call.caller, &call.context, &namespace, &LockName::Path(body.path)).await?;
    Ok(Json(OneLock { lock }))
}

pub(super) async fn delete(
    State(service): State<Service>,
    call: Call,
    Names(namespace): Names<String>,
    Query(()): Query<()>,
    Body(body): Body<PathBody>,
) -> Result<StatusCode, Problem> {
    service.delete_lock(&call.caller, &call.context, &namespace, &LockName::Path(body.path)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn check(
    State(service): State<Service>,
    call: Call,
    Names(namespace): Names<String>,
    Query(()): Query<()>,
    Body(body): Body<CheckPathBody>,
) -> Result<Json<CheckAnswer>, Problem> {
    let (lock, token) = (LockName::Path(body.path), body.fencing_token);
    Ok(Json(service.check_lock(&call.caller, &call.context, &namespace, &lock, token).await?))
}

pub(super) async fn reset(
    State(service): State<Service>,
    call: Call,
    Names(namespace): Names<String>,
    Query(()): Query<()>,
    Body(body): Body<ResetBody>,
) -> Result<Json<ResetAnswer>, Problem> {
    let ResetBody { live_owners, before_revision } = body;
    let request = ResetNamespace { namespace, live_owners, before_revision };
    Ok(Json(service.reset_namespace(&call.caller, &call.context, request).await?))
}
