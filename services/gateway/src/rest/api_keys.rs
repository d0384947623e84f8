//! API keys: `/v1/accounts/{account}/api-keys` for the operator, `/v1/api-keys` for the own account.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Problem;
use super::body::{Body, Instant};
use super::call::Call;
use super::names::Names;
use super::openapi::{Called, Counted, Limited, OfAccount, OfKey, Problems, Reads};
use super::query::Query;
use crate::service::{ApiKeyView, CreateApiKey, CreatedApiKey, Service};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateApiKey)]
pub(super) struct CreateBody {
    description: Option<String>,
    scopes: Option<Vec<String>>,
    namespaces: Option<Vec<String>>,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Instant>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ApiKeys {
    api_keys: Vec<ApiKeyView>,
}

type Created = Result<(StatusCode, Json<CreatedApiKey>), Problem>;

/// Make an API key of an account
#[utoipa::path(post, path = "/v1/accounts/{account}/api-keys", tag = "API keys", operation_id = "create_api_key_for",
    security(("operator" = [])),
    request_body(content = CreateBody, example = json!({"description": "for the nightly job", "scopes": ["locks:read"]})),
    responses((status = 201, description = "The key; its secret is shown here and never again.", body = CreatedApiKey), Problems<(Called, Reads, OfAccount, Limited)>))]
pub(super) async fn create_for(
    State(service): State<Service>,
    call: Call,
    Names(account): Names<String>,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Created {
    make(&service, &call, Some(&account), body).await
}

/// Make an API key of the own account
#[utoipa::path(post, path = "/v1/api-keys", tag = "API keys", operation_id = "create_api_key",
    security(("key" = ["account:admin"])),
    request_body(content = CreateBody, example = json!({"description": "for the nightly job", "scopes": ["locks:read"]})),
    responses((status = 201, description = "The key; its secret is shown here and never again.", body = CreatedApiKey), Problems<(Called, Reads, Counted, OfAccount, Limited)>))]
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

/// List the API keys of an account
#[utoipa::path(get, path = "/v1/accounts/{account}/api-keys", tag = "API keys", operation_id = "list_api_keys_for",
    security(("operator" = [])),
    responses((status = 200, description = "All keys, in order of creation.", body = ApiKeys), Problems<(Called, OfAccount)>))]
pub(super) async fn list_for(
    State(service): State<Service>,
    call: Call,
    Names(account): Names<String>,
    Query(()): Query<()>,
) -> Result<Json<ApiKeys>, Problem> {
    let api_keys = service.list_api_keys(&call.caller, &call.context, Some(&account)).await?;
    Ok(Json(ApiKeys { api_keys }))
}

/// List the API keys of the own account
#[utoipa::path(get, path = "/v1/api-keys", tag = "API keys", operation_id = "list_api_keys",
    security(("key" = ["account:admin"])),
    responses((status = 200, description = "All keys, in order of creation.", body = ApiKeys), Problems<(Called, Counted, OfAccount)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: Call,
    Query(()): Query<()>,
) -> Result<Json<ApiKeys>, Problem> {
    let api_keys = service.list_api_keys(&call.caller, &call.context, None).await?;
    Ok(Json(ApiKeys { api_keys }))
}

/// Revoke an API key of an account
#[utoipa::path(delete, path = "/v1/accounts/{account}/api-keys/{key_id}", tag = "API keys", operation_id = "delete_api_key_for",
    security(("operator" = [])),
    responses((status = 204, description = "Done."), Problems<(Called, OfKey)>))]
pub(super) async fn delete_for(
    State(service): State<Service>,
    call: Call,
    Names((account, key_id)): Names<(String, String)>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_api_key(&call.caller, &call.context, Some(&account), &key_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Revoke an API key of the own account
#[utoipa::path(delete, path = "/v1/api-keys/{key_id}", tag = "API keys", operation_id = "delete_api_key",
    security(("key" = ["account:admin"])),
    responses((status = 204, description = "Done."), Problems<(Called, Counted, OfKey)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: Call,
    Names(key_id): Names<String>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_api_key(&call.caller, &call.context, None, &key_id).await?;
    Ok(StatusCode::NO_CONTENT)
}
