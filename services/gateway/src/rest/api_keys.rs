//! API keys: `/v1/accounts/{account}/api-keys` for the operator, `/v1/api-keys` for the own account.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{ApiKeyView, CreateApiKey, CreatedApiKey};
use holdfast_backend::Service;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Body, Rfc3339};
use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{AccountErrors, BodyErrors, CommonErrors, KeyErrors, Problems, QuotaErrors, RateErrors};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateApiKey)]
pub(super) struct CreateBody {
    description: Option<String>,
    scopes: Option<Vec<String>>,
    namespaces: Option<Vec<String>>,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Rfc3339>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ApiKeys {
    api_keys: Vec<ApiKeyView>,
}

type Created = Result<(StatusCode, Json<CreatedApiKey>), Problem>;

/// Create an API key of an account
#[utoipa::path(post, path = "/v1/accounts/{account}/api-keys", tag = "API keys", operation_id = "create_api_key_for",
    security(("operator" = [])),
    request_body(content = CreateBody, example = json!({"description": "for the nightly job", "scopes": ["locks:read"]})),
    responses((status = 201, description = "The key; its secret is shown here and never again.", body = CreatedApiKey), Problems<(CommonErrors, BodyErrors, AccountErrors, QuotaErrors)>))]
pub(super) async fn create_for(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(account): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Created {
    create_key(&service, &call, Some(&account), body).await
}

/// Create an API key of the own account
#[utoipa::path(post, path = "/v1/api-keys", tag = "API keys", operation_id = "create_api_key",
    security(("key" = ["account:admin"])),
    request_body(content = CreateBody, example = json!({"description": "for the nightly job", "scopes": ["locks:read"]})),
    responses((status = 201, description = "The key; its secret is shown here and never again.", body = CreatedApiKey), Problems<(CommonErrors, BodyErrors, RateErrors, AccountErrors, QuotaErrors)>))]
pub(super) async fn create(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Created {
    create_key(&service, &call, None, body).await
}

async fn create_key(service: &Service, call: &AuthenticatedCall, account: Option<&str>, body: CreateBody) -> Created {
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
    responses((status = 200, description = "All keys, in order of creation.", body = ApiKeys), Problems<(CommonErrors, AccountErrors)>))]
pub(super) async fn list_for(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(account): PathParams<String>,
    Query(()): Query<()>,
) -> Result<Json<ApiKeys>, Problem> {
    let api_keys = service.list_api_keys(&call.caller, &call.context, Some(&account)).await?;
    Ok(Json(ApiKeys { api_keys }))
}

/// List the API keys of the own account
#[utoipa::path(get, path = "/v1/api-keys", tag = "API keys", operation_id = "list_api_keys",
    security(("key" = ["account:admin"])),
    responses((status = 200, description = "All keys, in order of creation.", body = ApiKeys), Problems<(CommonErrors, RateErrors, AccountErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(()): Query<()>,
) -> Result<Json<ApiKeys>, Problem> {
    let api_keys = service.list_api_keys(&call.caller, &call.context, None).await?;
    Ok(Json(ApiKeys { api_keys }))
}

/// Revoke an API key of an account
#[utoipa::path(delete, path = "/v1/accounts/{account}/api-keys/{key_id}", tag = "API keys", operation_id = "delete_api_key_for",
    security(("operator" = [])),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, KeyErrors)>))]
pub(super) async fn delete_for(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams((account, key_id)): PathParams<(String, String)>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_api_key(&call.caller, &call.context, Some(&account), &key_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Revoke an API key of the own account
#[utoipa::path(delete, path = "/v1/api-keys/{key_id}", tag = "API keys", operation_id = "delete_api_key",
    security(("key" = ["account:admin"])),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, RateErrors, KeyErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(key_id): PathParams<String>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_api_key(&call.caller, &call.context, None, &key_id).await?;
    Ok(StatusCode::NO_CONTENT)
}
