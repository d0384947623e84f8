//! API keys: `/v1/accounts/{account}/api-keys` for the operator, `/v1/api-keys` for the own account.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::Problem;
use super::body::{Body, Instant};
use super::call::Call;
use super::names::Names;
use super::query::Query;
use crate::service::{ApiKeyView, CreateApiKey, CreatedApiKey, Service};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateBody {
    description: Option<String>,
    scopes: Option<Vec<String>>,
    namespaces: Option<Vec<String>>,
    expires_at: Option<Instant>,
}

#[derive(Serialize)]
pub(super) struct ApiKeys {
    api_keys: Vec<ApiKeyView>,
}

type Created = Result<(StatusCode, Json<CreatedApiKey>), Problem>;

pub(super) async fn create_for(
    State(service): State<Service>,
    call: Call,
    Names(account): Names<String>,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Created {
    make(&service, &call, Some(&account), body).await
}

pub(super) async fn create(
    State(service): State<Service>,
    call: Call,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Created {
    make(&service, &call, None, body).await
}

async fn make(service: &Service, call: &Call, account: Option<&str>, body: CreateBody) -> Created {
    let request = CreateApiKey {
        description: body.description,
        scopes: body.scopes,
        namespaces: body.namespaces,
        expires_at: body.expires_at.map(|instant| instant.0),
    };
    let created = service.create_api_key(&call.caller, &call.context, account, request).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

pub(super) async fn list_for(
    State(service): State<Service>,
    call: Call,
    Names(account): Names<String>,
    Query(()): Query<()>,
) -> Result<Json<ApiKeys>, Problem> {
    let api_keys = service.list_api_keys(&call.caller, &call.context, Some(&account)).await?;
    Ok(Json(ApiKeys { api_keys }))
}

pub(super) async fn list(
    State(service): State<Service>,
    call: Call,
    Query(()): Query<()>,
) -> Result<Json<ApiKeys>, Problem> {
    let api_keys = service.list_api_keys(&call.caller, &call.context, None).await?;
    Ok(Json(ApiKeys { api_keys }))
}

pub(super) async fn delete_for(
    State(service): State<Service>,
    call: Call,
    Names((account, key_id)): Names<(String, String)>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_api_key(&call.caller, &call.context, Some(&account), &key_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn delete(
    State(service): State<Service>,
    call: Call,
    Names(key_id): Names<String>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_api_key(&call.caller, &call.context, None, &key_id).await?;
    Ok(StatusCode::NO_CONTENT)
}
