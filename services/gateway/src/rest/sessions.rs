//! `/v1/namespaces/{namespace}/sessions`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::Problem;
use super::body::{Body, Pairs};
use super::call::Call;
use super::names::Names;
use super::query::Query;
use crate::service::{CreateSession, PageRequest, Service, SessionInfo};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateBody {
    process_id: String,
    ttl_ms: u64,
    metadata: Option<Pairs>,
}

#[derive(Serialize)]
pub(super) struct Created {
    session_id: String,
    process_id: String,
    ttl_ms: u64,
    remaining_ms: u64,
}

#[derive(Serialize)]
pub(super) struct KeptAlive {
    remaining_ms: u64,
}

#[derive(Serialize)]
pub(super) struct Sessions {
    sessions: Vec<SessionInfo>,
    next_page_token: Option<String>,
}

pub(super) async fn create(
    State(service): State<Service>,
    call: Call,
    Names(namespace): Names<String>,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Result<(StatusCode, Json<Created>), Problem> {
    let CreateBody { process_id, ttl_ms, metadata } = body;
    let request = CreateSession { namespace, process_id, ttl_ms, metadata: metadata.unwrap_or_default().0 };
    let session = service.create_session(&call.caller, &call.context, request).await?;
    let SessionInfo { session_id, process_id, ttl_ms, remaining_ms, .. } = session;
    Ok((StatusCode::CREATED, Json(Created { session_id, process_id, ttl_ms, remaining_ms })))
}

pub(super) async fn keep_alive(
    State(service): State<Service>,
    call: Call,
    Names((namespace, session_id)): Names<(String, String)>,
    Query(()): Query<()>,
) -> Result<Json<KeptAlive>, Problem> {
    let remaining_ms = service.keep_session_alive(&call.caller, &call.context, &namespace, &session_id).await?;
    Ok(Json(KeptAlive { remaining_ms }))
}

pub(super) async fn get(
    State(service): State<Service>,
    call: Call,
    Names((namespace, session_id)): Names<(String, String)>,
    Query(()): Query<()>,
) -> Result<Json<SessionInfo>, Problem> {
    Ok(Json(service.get_session(&call.caller, &call.context, &namespace, &session_id).await?))
}

pub(super) async fn delete(
    State(service): State<Service>,
    call: Call,
    Names((namespace, session_id)): Names<(String, String)>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_session(&call.caller, &call.context, &namespace, &session_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list(
    State(service): State<Service>,
    call: Call,
    Names(namespace): Names<String>,
    Query(page): Query<PageRequest>,
) -> Result<Json<Sessions>, Problem> {
    let page = service.list_sessions(&call.caller, &call.context, &namespace, page).await?;
    Ok(Json(Sessions { sessions: page.items, next_page_token: page.next_page_token }))
}
