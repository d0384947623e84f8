//! `/v1/accounts`: for the operator.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{
    AccountView, ApiError, ApiResult, CreateAccount, LimitsPatch, PageRequest, UpdateAccount, parse_status,
};
use holdfast_backend::Service;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Body, StrictObject};
use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{AccountErrors, BodyErrors, CommonErrors, ConflictErrors, Problems};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateAccount)]
pub(super) struct CreateBody {
    email: String,
    full_name: String,
    max_number_of_namespaces: Option<u32>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateAccount)]
pub(super) struct UpdateBody {
    full_name: Option<String>,
    status: Option<String>,
    max_number_of_namespaces: Option<u32>,
    #[schema(value_type = Option<LimitsPatch>)]
    limits: Option<StrictObject<LimitsPatch>>,
}

impl UpdateBody {
    fn into_request(self) -> ApiResult<UpdateAccount> {
        let status = self.status.map(|name| {
            parse_status(&name).ok_or_else(|| ApiError::invalid("status", "status: must be ACTIVE or SUSPENDED"))
        });
        Ok(UpdateAccount {
            full_name: self.full_name,
            status: status.transpose()?,
            max_number_of_namespaces: self.max_number_of_namespaces,
            limits: self.limits.map(|limits| limits.0),
        })
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct Accounts {
    accounts: Vec<AccountView>,
    next_page_token: Option<String>,
}

/// Create an account
#[utoipa::path(post, path = "/v1/accounts", tag = "Accounts", operation_id = "create_account",
    security(("operator" = [])),
    request_body(content = CreateBody, example = json!({"email": "jo@example.com", "full_name": "Jo Doe"})),
    responses((status = 201, description = "The account.", body = AccountView), Problems<(CommonErrors, BodyErrors, ConflictErrors)>))]
pub(super) async fn create(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Result<(StatusCode, Json<AccountView>), Problem> {
    let CreateBody { email, full_name, max_number_of_namespaces } = body;
    let request = CreateAccount { email, full_name, max_number_of_namespaces };
    let account = service.create_account(&call.caller, &call.context, request).await?;
    Ok((StatusCode::CREATED, Json(account)))
}

/// List accounts, in order of id
#[utoipa::path(get, path = "/v1/accounts", tag = "Accounts", operation_id = "list_accounts",
    security(("operator" = [])), params(PageRequest),
    responses((status = 200, description = "A page.", body = Accounts), Problems<(CommonErrors,)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(page): Query<PageRequest>,
) -> Result<Json<Accounts>, Problem> {
    let page = service.list_accounts(&call.caller, &call.context, page).await?;
    Ok(Json(Accounts { accounts: page.items, next_page_token: page.next_page_token }))
}

/// Get an account
#[utoipa::path(get, path = "/v1/accounts/{account}", tag = "Accounts", operation_id = "get_account",
    security(("operator" = [])),
    responses((status = 200, description = "The account.", body = AccountView), Problems<(CommonErrors, AccountErrors)>))]
pub(super) async fn get(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(id): PathParams<String>,
    Query(()): Query<()>,
) -> Result<Json<AccountView>, Problem> {
    Ok(Json(service.get_account(&call.caller, &call.context, &id).await?))
}

/// Update an account: absent fields keep their values
#[utoipa::path(patch, path = "/v1/accounts/{account}", tag = "Accounts", operation_id = "update_account",
    security(("operator" = [])),
    request_body(content = UpdateBody, example = json!({"full_name": "Jo Doe"})),
    responses((status = 200, description = "The account.", body = AccountView), Problems<(CommonErrors, BodyErrors, AccountErrors)>))]
pub(super) async fn update(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(id): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<UpdateBody>,
) -> Result<Json<AccountView>, Problem> {
    let request = body.into_request()?;
    Ok(Json(service.update_account(&call.caller, &call.context, &id, request).await?))
}

/// Delete an account with its namespaces, keys and locks
#[utoipa::path(delete, path = "/v1/accounts/{account}", tag = "Accounts", operation_id = "delete_account",
    security(("operator" = [])),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, AccountErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(id): PathParams<String>,
    Query(()): Query<()>,
) -> Result<StatusCode, Problem> {
    service.delete_account(&call.caller, &call.context, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
