//! `/v1/namespaces/{namespace}/semaphores`.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{
    AcquirePermits, AcquirePermitsAnswer, CheckPermitsAnswer, ConfigureSemaphore, GetSemaphore, ListThings,
    OwnerFields, PageRequest, ReleasePermits, ReleasePermitsAnswer, SemaphoreHolders, SemaphoreInfo,
};
use holdfast_backend::Service;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Body, StringMap};
use super::call::AuthenticatedCall;
use super::json::Json;
use super::locks::ListQuery;
use super::openapi::{
    BodyErrors, CommonErrors, NamespaceErrors, PrimitiveErrors, Problems, QuotaErrors, RateErrors, SessionErrors,
    ThingErrors,
};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;
use super::things::thing;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConfigureSemaphore)]
pub(super) struct ConfigureBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    permits: u64,
    description: Option<String>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AcquirePermits)]
pub(super) struct AcquireBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    request_id: String,
    weight: Option<u64>,
    permits: Option<u64>,
    priority: Option<u32>,
    ttl_ms: Option<u64>,
    transition_ms: Option<u64>,
    wait_ms: Option<u64>,
    poll_ms: Option<u64>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
    fencing_token: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReleasePermits)]
pub(super) struct ReleaseBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    request_id: Option<String>,
    fencing_token: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GetSemaphore)]
pub(super) struct GetBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    page_size: Option<u32>,
    page_token: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CheckPermits)]
pub(super) struct CheckBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    fencing_token: u64,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeleteSemaphore)]
pub(super) struct DeleteBody {
    name: Option<String>,
    path: Option<Vec<String>>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct OneSemaphore {
    semaphore: SemaphoreInfo,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Semaphores {
    semaphores: Vec<SemaphoreInfo>,
    next_page_token: Option<String>,
}

/// Make a semaphore, or change it; a repeat is harmless
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/semaphores/configure", tag = "Semaphores", operation_id = "configure_semaphore",
    security(("key" = ["locks:force"])),
    request_body(content = ConfigureBody, example = json!({"name": "licences", "permits": 10})),
    responses((status = 200, description = "The semaphore as it now is.", body = OneSemaphore),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, QuotaErrors)>))]
pub(super) async fn configure(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<ConfigureBody>,
) -> Result<Json<OneSemaphore>, Problem> {
    let request = ConfigureSemaphore {
        thing: thing(namespace, (body.name, body.path))?,
        permits: body.permits,
        description: body.description,
        metadata: body.metadata.unwrap_or_default().0,
    };
    let semaphore = service.configure_semaphore(&call.caller, &call.context, request).await?;
    Ok(Json(OneSemaphore { semaphore }))
}

/// Acquire permits, wait for them, or extend a hold. A refused request is a response, not an error
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/semaphores/acquire", tag = "Semaphores", operation_id = "acquire_permits",
    security(("key" = ["locks:write"])),
    request_body(content = AcquireBody, example = json!({"name": "licences", "process_id": "alice", "request_id": "a", "permits": 10, "ttl_ms": 60000})),
    responses((status = 200, description = "Whether they were granted, and the semaphore as it now is.", body = AcquirePermitsAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, ThingErrors, QuotaErrors)>))]
pub(super) async fn acquire(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<AcquireBody>,
) -> Result<Json<AcquirePermitsAnswer>, Problem> {
    let request = AcquirePermits {
        thing: thing(namespace, (body.name, body.path))?,
        owner: OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder },
        request_id: body.request_id,
        weight: body.weight,
        permits: body.permits,
        priority: body.priority.unwrap_or(0),
        ttl_ms: body.ttl_ms,
        transition_ms: body.transition_ms.unwrap_or(0),
        wait_ms: body.wait_ms.unwrap_or(0),
        poll_ms: body.poll_ms,
        metadata: body.metadata.unwrap_or_default().0,
        fencing_token: body.fencing_token,
    };
    Ok(Json(service.acquire_permits(&call.caller, &call.context, request).await?))
}

/// Release a hold of permits, or end the wait for it
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/semaphores/release", tag = "Semaphores", operation_id = "release_permits",
    security(("key" = ["locks:write"])),
    request_body(content = ReleaseBody, example = json!({"name": "licences", "process_id": "alice", "request_id": "a"})),
    responses((status = 200, description = "Whether a hold or a wait ended, and the semaphore as it now is.", body = ReleasePermitsAnswer),
        Problems<(CommonErrors, BodyErrors, NamespaceErrors, SessionErrors)>))]
pub(super) async fn release(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<ReleaseBody>,
) -> Result<Json<ReleasePermitsAnswer>, Problem> {
    let request = ReleasePermits {
        thing: thing(namespace, (body.name, body.path))?,
        owner: OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder },
        request_id: body.request_id,
        fencing_token: body.fencing_token,
    };
    Ok(Json(service.release_permits(&call.caller, &call.context, request).await?))
}

/// Get a semaphore, with a page of its holders, in order of token
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/semaphores/get", tag = "Semaphores", operation_id = "get_semaphore",
    security(("key" = ["locks:read"])),
    request_body(content = GetBody, example = json!({"name": "licences"})),
    responses((status = 200, description = "The semaphore, and a page of its holders.", body = SemaphoreHolders),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors)>))]
pub(super) async fn get(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<GetBody>,
) -> Result<Json<SemaphoreHolders>, Problem> {
    let page = PageRequest { page_size: body.page_size, page_token: body.page_token };
    let request = GetSemaphore { thing: thing(namespace, (body.name, body.path))?, page };
    Ok(Json(service.get_semaphore(&call.caller, &call.context, request).await?))
}

/// Check whether a fencing token of permits is current
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/semaphores/check", tag = "Semaphores", operation_id = "check_permits",
    security(("key" = ["locks:read"])),
    request_body(content = CheckBody, example = json!({"name": "licences", "fencing_token": 57})),
    responses((status = 200, description = "Whether the hold of that token is held.", body = CheckPermitsAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn check(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<CheckBody>,
) -> Result<Json<CheckPermitsAnswer>, Problem> {
    let thing = thing(namespace, (body.name, body.path))?;
    Ok(Json(service.check_permits(&call.caller, &call.context, &thing, body.fencing_token).await?))
}

/// Delete a semaphore: end all its holds and waits
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/semaphores/delete", tag = "Semaphores", operation_id = "delete_semaphore",
    security(("key" = ["locks:force"])),
    request_body(content = DeleteBody, example = json!({"name": "licences"})),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<DeleteBody>,
) -> Result<StatusCode, Problem> {
    let thing = thing(namespace, (body.name, body.path))?;
    service.delete_semaphore(&call.caller, &call.context, &thing).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List semaphores, in order of path
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/semaphores", tag = "Semaphores", operation_id = "list_semaphores",
    security(("key" = ["locks:read"])), params(("prefix" = Option<Vec<String>>, Query, description = "A path, its segments in order, one in each."), PageRequest),
    responses((status = 200, description = "A page.", body = Semaphores), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Semaphores>, Problem> {
    let request = ListThings { namespace, prefix: query.prefix, page: query.page };
    let page = service.list_semaphores(&call.caller, &call.context, request).await?;
    Ok(Json(Semaphores { semaphores: page.items, next_page_token: page.next_page_token }))
}
