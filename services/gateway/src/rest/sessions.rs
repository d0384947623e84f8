//! `/v1/namespaces/{namespace}/sessions`.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{CreateSession, PageRequest, SessionInfo};
use holdfast_backend::Service;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Body, StringMap};
use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{BodyErrors, CommonErrors, NamespaceErrors, Problems, QuotaErrors, RateErrors, SessionErrors};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateSession)]
pub(super) struct CreateBody {
    process_id: String,
    ttl_ms: u64,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = CreatedSession)]
pub(super) struct Created {
    session_id: String,
    process_id: String,
    ttl_ms: u64,
    remaining_ms: u64,
}

#[derive(Serialize, ToSchema)]
pub(super) struct KeptAlive {
    remaining_ms: u64,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Sessions {
    sessions: Vec<SessionInfo>,
    next_page_token: Option<String>,
}

/// Open a session
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/sessions", tag = "Sessions", operation_id = "create_session",
    security(("key" = ["locks:write"])),
    request_body(content = CreateBody, example = json!({"process_id": "alice", "ttl_ms": 10000})),
    responses((status = 201, description = "The session.", body = Created), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, QuotaErrors)>))]
pub(super) async fn create(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Result<(StatusCode, Json<Created>), Problem> {
    let CreateBody { process_id, ttl_ms, metadata } = body;
    let request = CreateSession { namespace, process_id, ttl_ms, metadata: metadata.unwrap_or_default().0 };
    let session = service.create_session(&call.caller, &call.context, request).await?;
    let SessionInfo { session_id, process_id, ttl_ms, remaining_ms, .. } = session;
    Ok((StatusCode::CREATED, Json(Created { session_id, process_id, ttl_ms, remaining_ms })))
}

/// Keep a session alive
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/sessions/{session}/keepalive", tag = "Sessions", operation_id = "keep_session_alive",
    security(("key" = ["locks:write"])),
    responses((status = 200, description = "How long the session lives without another keep-alive.", body = KeptAlive), Problems<(CommonErrors, NamespaceErrors, SessionErrors)>))]
pub(super) async fn keep_alive(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams((namespace, session_id)): PathParams<(String, String)>,
    Query(()): Query<()>,
) -> Result<Json<KeptAlive>, Problem> {
    let remaining_ms = service.keep_session_alive(&call.caller, &call.context, &namespace, &session_id).await?;
    Ok(Json(KeptAlive { remaining_ms }))
}

/// Get a session
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/sessions/{session}", tag = "Sessions", operation_id = "get_session",
    security(("key" = ["locks:read"])),
    responses((status = 200, description = "The session.", body = SessionInfo), Problems<(CommonErrors, RateErrors, NamespaceErrors, SessionErrors)>))]
pub(super) async fn get(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams((namespace, session_id)): PathParams<(String, String)>,
    Query(()): Query<()>,
) -> Result<Json<SessionInfo>, Problem> {
    Ok(Json(service.get_session(&call.caller, &call.context, &namespace, &session_id).await?))
}

/// End a session with all its holds and waiting requests
#[utoipa::path(delete, path = "/v1/namespaces/{namespace}/sessions/{session}", tag = "Sessions", operation_id = "delete_session",
    security(("key" = ["locks:write"])),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, NamespaceErrors, SessionErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams((namespace, session_id)): PathParams<(String, String)>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_session(&call.caller, &call.context, &namespace, &session_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List sessions, in order of id
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/sessions", tag = "Sessions", operation_id = "list_sessions",
    security(("key" = ["locks:read"])), params(PageRequest),
    responses((status = 200, description = "A page.", body = Sessions), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(page): Query<PageRequest>,
) -> Result<Json<Sessions>, Problem> {
    let page = service.list_sessions(&call.caller, &call.context, &namespace, page).await?;
    Ok(Json(Sessions { sessions: page.items, next_page_token: page.next_page_token }))
}
