//! `/v1/namespaces/{namespace}/conditions`.

use axum::extract::State;
use holdfast_api::{
    AwaitAnswer, AwaitCondition, ConditionInfo, ListThings, OwnerFields, PageRequest, SignalAnswer, SignalCondition,
};
use holdfast_backend::Service;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Body, StringMap};
use super::call::AuthenticatedCall;
use super::json::Json;
use super::locks::ListQuery;
use super::openapi::{BodyErrors, CommonErrors, NamespaceErrors, Problems, QuotaErrors, RateErrors, SessionErrors};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;
use super::things::thing;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AwaitCondition)]
pub(super) struct AwaitBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    fencing_token: u64,
    condition: Option<String>,
    wait_ms: u64,
    relock_ms: Option<u64>,
    poll_ms: Option<u64>,
    ttl_ms: Option<u64>,
    transition_ms: Option<u64>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SignalCondition)]
pub(super) struct SignalBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    condition: Option<String>,
    all: Option<bool>,
    fencing_token: Option<u64>,
    signal_id: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Conditions {
    conditions: Vec<ConditionInfo>,
    next_page_token: Option<String>,
}

/// Give a lock up, await a condition of it, and wait for the lock again; a repeat with the same token goes on
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/conditions/await", tag = "Conditions", operation_id = "await_condition",
    security(("key" = ["locks:write"])),
    request_body(content = AwaitBody, example = json!({"name": "jobs", "process_id": "alice", "fencing_token": 57, "wait_ms": 60000, "ttl_ms": 60000})),
    responses((status = 200, description = "Whether the owner has the lock again, and the lock as it now is.", body = AwaitAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, SessionErrors, QuotaErrors)>))]
pub(super) async fn await_condition(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<AwaitBody>,
) -> Result<Json<AwaitAnswer>, Problem> {
    let request = AwaitCondition {
        lock: thing(namespace, (body.name, body.path))?,
        owner: OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder },
        fencing_token: body.fencing_token,
        condition: body.condition.unwrap_or_default(),
        wait_ms: body.wait_ms,
        relock_ms: body.relock_ms,
        poll_ms: body.poll_ms,
        ttl_ms: body.ttl_ms,
        transition_ms: body.transition_ms,
        metadata: body.metadata.map(|metadata| metadata.0),
    };
    Ok(Json(service.await_condition(&call.caller, &call.context, request).await?))
}

/// Wake whoever awaits a condition of a lock longest, or all. The owner must hold the lock
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/conditions/signal", tag = "Conditions", operation_id = "signal_condition",
    security(("key" = ["locks:write"])),
    request_body(content = SignalBody, example = json!({"name": "jobs", "process_id": "alice"})),
    responses((status = 200, description = "How many were woken, and the lock as it now is.", body = SignalAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, SessionErrors, QuotaErrors)>))]
pub(super) async fn signal(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<SignalBody>,
) -> Result<Json<SignalAnswer>, Problem> {
    let request = SignalCondition {
        lock: thing(namespace, (body.name, body.path))?,
        owner: OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder },
        condition: body.condition.unwrap_or_default(),
        all: body.all.unwrap_or(false),
        fencing_token: body.fencing_token,
        signal_id: body.signal_id,
    };
    Ok(Json(service.signal_condition(&call.caller, &call.context, request).await?))
}

/// List the conditions that somebody awaits, in order of path and name
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/conditions", tag = "Conditions", operation_id = "list_conditions",
    security(("key" = ["locks:read"])), params(("prefix" = Option<Vec<String>>, Query, description = "A path, its segments in order, one in each."), PageRequest),
    responses((status = 200, description = "A page.", body = Conditions), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Conditions>, Problem> {
    let request = ListThings { namespace, prefix: query.prefix, page: query.page };
    let page = service.list_conditions(&call.caller, &call.context, request).await?;
    Ok(Json(Conditions { conditions: page.items, next_page_token: page.next_page_token }))
}
