//! `/v1/namespaces/{namespace}/barriers`.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{
    ApiError, ApiResult, ArriveAtBarrier, BarrierAnswerInfo, BarrierArrivals, BarrierInfo, ConfigureBarrier,
    LeaveBarrier, ListThings, OnLossName, OwnerFields, PageRequest, WaitAtBarrier, parse_on_loss,
};
use holdfast_backend::Service;
use holdfast_types::OnLoss;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Body, StringMap};
use super::call::AuthenticatedCall;
use super::json::Json;
use super::locks::ListQuery;
use super::openapi::{
    BodyErrors, CommonErrors, NamespaceErrors, PrimitiveErrors, Problems, QuotaErrors, RateErrors, ThingErrors,
};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;
use super::things::thing;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConfigureBarrier)]
pub(super) struct ConfigureBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    parties: u32,
    double: Option<bool>,
    #[schema(value_type = Option<OnLossName>)]
    on_loss: Option<String>,
    retain_ms: Option<u64>,
    description: Option<String>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ArriveAtBarrier)]
pub(super) struct ArriveBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    generation: Option<u64>,
    parties: Option<u32>,
    double: Option<bool>,
    ttl_ms: Option<u64>,
    wait_ms: Option<u64>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WaitAtBarrier)]
pub(super) struct WaitBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    generation: u64,
    wait_ms: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaveBarrier)]
pub(super) struct LeaveBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    generation: u64,
    wait_ms: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GetBarrier)]
pub(super) struct GetBody {
    name: Option<String>,
    path: Option<Vec<String>>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeleteBarrier)]
pub(super) struct DeleteBody {
    name: Option<String>,
    path: Option<Vec<String>>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct OneBarrier {
    barrier: BarrierInfo,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Barriers {
    barriers: Vec<BarrierInfo>,
    next_page_token: Option<String>,
}

/// Returns what becomes of a generation that somebody leaves: it breaks, unless the caller says otherwise.
fn on_loss(name: Option<&str>) -> ApiResult<OnLoss> {
    let Some(name) = name else { return Ok(OnLoss::Break) };
    parse_on_loss(name).ok_or_else(|| ApiError::invalid("on_loss", "on_loss: must be BREAK or WITHDRAW"))
}

/// Make a barrier, or change it; a repeat is harmless
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/barriers/configure", tag = "Barriers", operation_id = "configure_barrier",
    security(("key" = ["locks:force"])),
    request_body(content = ConfigureBody, example = json!({"name": "rounds", "parties": 4})),
    responses((status = 200, description = "The barrier as it now is.", body = OneBarrier),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, QuotaErrors)>))]
pub(super) async fn configure(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<ConfigureBody>,
) -> Result<Json<OneBarrier>, Problem> {
    let request = ConfigureBarrier {
        thing: thing(namespace, (body.name, body.path))?,
        parties: body.parties,
        double: body.double.unwrap_or(false),
        on_loss: on_loss(body.on_loss.as_deref())?,
        retain_ms: body.retain_ms,
        description: body.description,
        metadata: body.metadata.unwrap_or_default().0,
    };
    let barrier = service.configure_barrier(&call.caller, &call.context, request).await?;
    Ok(Json(OneBarrier { barrier }))
}

/// Arrive at a barrier, and wait for the others. An arrival whose wait ends first stays
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/barriers/arrive", tag = "Barriers", operation_id = "arrive_at_barrier",
    security(("key" = ["locks:write"])),
    request_body(content = ArriveBody, example = json!({"name": "rounds", "process_id": "alice", "parties": 4, "ttl_ms": 60000})),
    responses((status = 200, description = "What became of the generation, and the barrier as it now is.", body = BarrierAnswerInfo),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, ThingErrors, QuotaErrors)>))]
pub(super) async fn arrive(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<ArriveBody>,
) -> Result<Json<BarrierAnswerInfo>, Problem> {
    let request = ArriveAtBarrier {
        thing: thing(namespace, (body.name, body.path))?,
        owner: OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder },
        generation: body.generation,
        parties: body.parties,
        double: body.double,
        ttl_ms: body.ttl_ms,
        wait_ms: body.wait_ms.unwrap_or(0),
        metadata: body.metadata.unwrap_or_default().0,
    };
    Ok(Json(service.arrive_at_barrier(&call.caller, &call.context, request).await?))
}

/// Wait for the end of a generation, without arriving
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/barriers/wait", tag = "Barriers", operation_id = "wait_at_barrier",
    security(("key" = ["locks:read"])),
    request_body(content = WaitBody, example = json!({"name": "rounds", "generation": 1, "wait_ms": 0})),
    responses((status = 200, description = "What became of the generation, and the barrier as it now is.", body = BarrierAnswerInfo),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors, QuotaErrors)>))]
pub(super) async fn wait(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<WaitBody>,
) -> Result<Json<BarrierAnswerInfo>, Problem> {
    let thing = thing(namespace, (body.name, body.path))?;
    let request = WaitAtBarrier { thing, generation: body.generation, wait_ms: body.wait_ms.unwrap_or(0) };
    Ok(Json(service.wait_at_barrier(&call.caller, &call.context, request).await?))
}

/// End an arrival before all have come; at a double barrier: leave, and wait until all have left
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/barriers/leave", tag = "Barriers", operation_id = "leave_barrier",
    security(("key" = ["locks:write"])),
    request_body(content = LeaveBody, example = json!({"name": "rounds", "process_id": "alice", "generation": 1})),
    responses((status = 200, description = "What became of the generation, and the barrier as it now is.", body = BarrierAnswerInfo),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, ThingErrors, QuotaErrors)>))]
pub(super) async fn leave(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<LeaveBody>,
) -> Result<Json<BarrierAnswerInfo>, Problem> {
    let request = LeaveBarrier {
        thing: thing(namespace, (body.name, body.path))?,
        owner: OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder },
        generation: body.generation,
        wait_ms: body.wait_ms.unwrap_or(0),
    };
    Ok(Json(service.leave_barrier(&call.caller, &call.context, request).await?))
}

/// Get a barrier, who has come, and how its latest generations ended
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/barriers/get", tag = "Barriers", operation_id = "get_barrier",
    security(("key" = ["locks:read"])),
    request_body(content = GetBody, example = json!({"name": "rounds"})),
    responses((status = 200, description = "The barrier, those who have come in order, and the latest outcomes.", body = BarrierArrivals),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors)>))]
pub(super) async fn get(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<GetBody>,
) -> Result<Json<BarrierArrivals>, Problem> {
    let thing = thing(namespace, (body.name, body.path))?;
    Ok(Json(service.get_barrier(&call.caller, &call.context, &thing).await?))
}

/// Delete a barrier: end all arrivals
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/barriers/delete", tag = "Barriers", operation_id = "delete_barrier",
    security(("key" = ["locks:force"])),
    request_body(content = DeleteBody, example = json!({"name": "rounds"})),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<DeleteBody>,
) -> Result<StatusCode, Problem> {
    let thing = thing(namespace, (body.name, body.path))?;
    service.delete_barrier(&call.caller, &call.context, &thing).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List barriers, in order of path
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/barriers", tag = "Barriers", operation_id = "list_barriers",
    security(("key" = ["locks:read"])), params(("prefix" = Option<Vec<String>>, Query, description = "A path, its segments in order, one in each."), PageRequest),
    responses((status = 200, description = "A page.", body = Barriers), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Barriers>, Problem> {
    let request = ListThings { namespace, prefix: query.prefix, page: query.page };
    let page = service.list_barriers(&call.caller, &call.context, request).await?;
    Ok(Json(Barriers { barriers: page.items, next_page_token: page.next_page_token }))
}
