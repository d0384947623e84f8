//! `/v1/namespaces/{namespace}/latches`.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{
    ApiError, ApiResult, CountDown, CountDownAnswer, CreateLatch, GetLatch, LatchDone, LatchIdsName, LatchInfo,
    LatchName, ListThings, PageRequest, SetLatchTotal, SetLatchTotalAnswer, WaitForLatch, WaitForLatchAnswer,
    parse_latch_ids,
};
use holdfast_backend::Service;
use holdfast_types::{Jobs, LatchIds};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Body, StringMap};
use super::call::AuthenticatedCall;
use super::json::Json;
use super::locks::ListQuery;
use super::openapi::{
    BodyErrors, CommonErrors, ConflictErrors, NamespaceErrors, PrimitiveErrors, Problems, QuotaErrors, RateErrors,
};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;
use super::things::thing;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateLatch)]
pub(super) struct CreateBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    total: u64,
    #[schema(value_type = Option<LatchIdsName>)]
    ids: Option<String>,
    expires_in_ms: Option<u64>,
    retain_ms: Option<u64>,
    description: Option<String>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CountDown)]
pub(super) struct CountDownBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    id: Option<u64>,
    ids: Option<Vec<String>>,
    ranges: Option<Vec<Vec<u64>>>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SetLatchTotal)]
pub(super) struct SetTotalBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    id: Option<u64>,
    total: u64,
    if_total: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WaitForLatch)]
pub(super) struct WaitBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    id: Option<u64>,
    wait_ms: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GetLatch)]
pub(super) struct GetBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    id: Option<u64>,
    page_size: Option<u32>,
    page_token: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeleteLatch)]
pub(super) struct DeleteBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    id: Option<u64>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct OneLatch {
    latch: LatchInfo,
}

#[derive(Serialize, ToSchema)]
#[schema(as = LatchDone)]
pub(super) struct Done {
    latch: LatchInfo,
    #[schema(value_type = Vec<serde_json::Value>)]
    done: DoneJobs,
    next_page_token: Option<String>,
}

/// Ids, or pairs of the first and the last index of a range.
#[derive(Serialize)]
#[serde(untagged)]
enum DoneJobs {
    Ids(Vec<String>),
    Ranges(Vec<(u64, u64)>),
}

#[derive(Serialize, ToSchema)]
pub(super) struct Latches {
    latches: Vec<LatchInfo>,
    next_page_token: Option<String>,
}

fn latch(namespace: String, named: (Option<String>, Option<Vec<String>>), id: Option<u64>) -> ApiResult<LatchName> {
    Ok(LatchName { thing: thing(namespace, named)?, id })
}

/// Create a latch; a repeat with the same parameters finds it
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/latches/create", tag = "Latches", operation_id = "create_latch",
    security(("key" = ["locks:write"])),
    request_body(content = CreateBody, example = json!({"name": "nightly", "total": 3})),
    responses((status = 201, description = "The new latch.", body = OneLatch),
        (status = 200, description = "The latch, which was there with the same parameters.", body = OneLatch),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, ConflictErrors, QuotaErrors)>))]
pub(super) async fn create(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Result<(StatusCode, Json<OneLatch>), Problem> {
    let ids = match body.ids.as_deref() {
        None => LatchIds::Named,
        Some(name) => {
            let unknown = || ApiError::invalid("ids", "ids: must be NAMED or INDEXED");
            parse_latch_ids(name).ok_or_else(unknown)?
        }
    };
    let request = CreateLatch {
        thing: thing(namespace, (body.name, body.path))?,
        total: body.total,
        ids,
        expires_in_ms: body.expires_in_ms,
        retain_ms: body.retain_ms,
        description: body.description,
        metadata: body.metadata.unwrap_or_default().0,
    };
    let answer = service.create_latch(&call.caller, &call.context, request).await?;
    let status = if answer.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(OneLatch { latch: answer.latch })))
}

/// Report what is done; each id or index counts once
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/latches/count_down", tag = "Latches", operation_id = "count_down",
    security(("key" = ["locks:write"])),
    request_body(content = CountDownBody, example = json!({"name": "nightly", "ids": ["orders"]})),
    responses((status = 200, description = "How many were new, and the latch as it now is.", body = CountDownAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors, QuotaErrors)>))]
pub(super) async fn count_down(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<CountDownBody>,
) -> Result<Json<CountDownAnswer>, Problem> {
    let latch = latch(namespace, (body.name, body.path), body.id)?;
    let request = CountDown { latch, ids: body.ids, ranges: ranges(body.ranges)? };
    Ok(Json(service.count_down(&call.caller, &call.context, request).await?))
}

/// Returns the ranges of a count-down. Each is a list of its first and its last index.
pub(super) fn ranges(ranges: Option<Vec<Vec<u64>>>) -> ApiResult<Option<Vec<(u64, u64)>>> {
    let pair = |(index, range): (usize, Vec<u64>)| match range[..] {
        [from, to] => Ok((from, to)),
        _ => {
            let field = format!("ranges[{index}]");
            let detail =
                format!("{field}: must be a pair of the first and the last index, has {} numbers", range.len());
            Err(ApiError::invalid(field, detail))
        }
    };
    ranges.map(|ranges| ranges.into_iter().enumerate().map(pair).collect()).transpose()
}

/// Change how many have to be done
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/latches/set_total", tag = "Latches", operation_id = "set_latch_total",
    security(("key" = ["locks:write"])),
    request_body(content = SetTotalBody, example = json!({"name": "nightly", "total": 4, "if_total": 3})),
    responses((status = 200, description = "Whether it has that total, and the latch as it now is.", body = SetLatchTotalAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors, QuotaErrors)>))]
pub(super) async fn set_total(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<SetTotalBody>,
) -> Result<Json<SetLatchTotalAnswer>, Problem> {
    let latch = latch(namespace, (body.name, body.path), body.id)?;
    let request = SetLatchTotal { latch, total: body.total, if_total: body.if_total };
    Ok(Json(service.set_latch_total(&call.caller, &call.context, request).await?))
}

/// Wait until all is done, or for a time
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/latches/wait", tag = "Latches", operation_id = "wait_for_latch",
    security(("key" = ["locks:read"])),
    request_body(content = WaitBody, example = json!({"name": "nightly", "wait_ms": 0})),
    responses((status = 200, description = "How the wait ended, and the latch as it now is.", body = WaitForLatchAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors, QuotaErrors)>))]
pub(super) async fn wait(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<WaitBody>,
) -> Result<Json<WaitForLatchAnswer>, Problem> {
    let latch = latch(namespace, (body.name, body.path), body.id)?;
    let request = WaitForLatch { latch, wait_ms: body.wait_ms.unwrap_or(0) };
    Ok(Json(service.wait_for_latch(&call.caller, &call.context, request).await?))
}

/// Get a latch, with a page of what is done, in order
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/latches/get", tag = "Latches", operation_id = "get_latch",
    security(("key" = ["locks:read"])),
    request_body(content = GetBody, example = json!({"name": "nightly"})),
    responses((status = 200, description = "The latch, and a page: ids, or pairs of first and last index.", body = Done),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors)>))]
pub(super) async fn get(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<GetBody>,
) -> Result<Json<Done>, Problem> {
    let latch = latch(namespace, (body.name, body.path), body.id)?;
    let page = PageRequest { page_size: body.page_size, page_token: body.page_token };
    let answer = service.get_latch(&call.caller, &call.context, GetLatch { latch, page }).await?;
    let LatchDone { latch, done, next_page_token } = answer;
    let done = match done {
        Jobs::Named(ids) => DoneJobs::Ids(ids),
        Jobs::Indexed(ranges) => DoneJobs::Ranges(ranges),
    };
    Ok(Json(Done { latch, done, next_page_token }))
}

/// Delete a latch
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/latches/delete", tag = "Latches", operation_id = "delete_latch",
    security(("key" = ["locks:write"])),
    request_body(content = DeleteBody, example = json!({"name": "nightly"})),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<DeleteBody>,
) -> Result<StatusCode, Problem> {
    let request = latch(namespace, (body.name, body.path), body.id)?;
    service.delete_latch(&call.caller, &call.context, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List latches, in order of path
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/latches", tag = "Latches", operation_id = "list_latches",
    security(("key" = ["locks:read"])), params(("prefix" = Option<Vec<String>>, Query, description = "A path, its segments in order, one in each."), PageRequest),
    responses((status = 200, description = "A page.", body = Latches), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Latches>, Problem> {
    let request = ListThings { namespace, prefix: query.prefix, page: query.page };
    let page = service.list_latches(&call.caller, &call.context, request).await?;
    Ok(Json(Latches { latches: page.items, next_page_token: page.next_page_token }))
}
