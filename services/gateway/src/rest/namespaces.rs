//! `/v1/namespaces`.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{ApiError, ApiResult, CreateNamespace, DurabilityName, NamespaceView, PageRequest};
use holdfast_backend::Service;
use holdfast_types::Durability;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::Body;
use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{
    AccountErrors, BodyErrors, CommonErrors, ConflictErrors, NamespaceErrors, Problems, QuotaErrors, RateErrors,
};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::{FromQuery, Parameters, Query};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateNamespace)]
pub(super) struct CreateBody {
    name: String,
    description: Option<String>,
    /// FULL when absent. It never changes.
    #[schema(value_type = Option<DurabilityName>)]
    durability: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateNamespace)]
pub(super) struct UpdateBody {
    description: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Namespaces {
    namespaces: Vec<NamespaceView>,
    next_page_token: Option<String>,
}

/// The incarnation to delete; absent for the current one.
#[derive(Debug)]
pub(super) struct DeleteQuery {
    id: Option<String>,
}

impl FromQuery for DeleteQuery {
    fn from_query(parameters: &mut Parameters) -> ApiResult<Self> {
        Ok(Self { id: parameters.one("id")? })
    }
}

/// Create a namespace
#[utoipa::path(post, path = "/v1/namespaces", tag = "Namespaces", operation_id = "create_namespace",
    security(("key" = ["namespaces:admin"])),
    request_body(content = CreateBody, example = json!({"name": "orders"})),
    responses((status = 201, description = "The namespace.", body = NamespaceView), Problems<(CommonErrors, BodyErrors, RateErrors, AccountErrors, ConflictErrors, QuotaErrors)>))]
pub(super) async fn create(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Result<(StatusCode, Json<NamespaceView>), Problem> {
    let durability = durability(body.durability.as_deref())?;
    let request = CreateNamespace { name: body.name, description: body.description, durability };
    let namespace = service.create_namespace(&call.caller, &call.context, request).await?;
    Ok((StatusCode::CREATED, Json(namespace)))
}

fn durability(name: Option<&str>) -> ApiResult<Durability> {
    let Some(name) = name else { return Ok(Durability::Full) };
    let unknown = || ApiError::invalid("durability", "durability: must be FULL or SESSION");
    Durability::from_name(name).ok_or_else(unknown)
}

/// List namespaces, in order of name
#[utoipa::path(get, path = "/v1/namespaces", tag = "Namespaces", operation_id = "list_namespaces",
    security(("key" = ["locks:read"]), ("key" = ["namespaces:admin"])), params(PageRequest),
    responses((status = 200, description = "A page.", body = Namespaces), Problems<(CommonErrors, RateErrors, AccountErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(page): Query<PageRequest>,
) -> Result<Json<Namespaces>, Problem> {
    let page = service.list_namespaces(&call.caller, &call.context, page).await?;
    Ok(Json(Namespaces { namespaces: page.items, next_page_token: page.next_page_token }))
}

/// Get a namespace
#[utoipa::path(get, path = "/v1/namespaces/{namespace}", tag = "Namespaces", operation_id = "get_namespace",
    security(("key" = ["locks:read"]), ("key" = ["namespaces:admin"])),
    responses((status = 200, description = "The namespace.", body = NamespaceView), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn get(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(name): PathParams<String>,
    Query(()): Query<()>,
) -> Result<Json<NamespaceView>, Problem> {
    Ok(Json(service.get_namespace(&call.caller, &call.context, &name).await?))
}

/// Change the description of a namespace
#[utoipa::path(patch, path = "/v1/namespaces/{namespace}", tag = "Namespaces", operation_id = "update_namespace",
    security(("key" = ["namespaces:admin"])),
    request_body(content = UpdateBody, example = json!({"description": "locks of the order system"})),
    responses((status = 200, description = "The namespace.", body = NamespaceView), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, QuotaErrors)>))]
pub(super) async fn update(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(name): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<UpdateBody>,
) -> Result<Json<NamespaceView>, Problem> {
    Ok(Json(service.update_namespace(&call.caller, &call.context, &name, body.description).await?))
}

/// Delete a namespace and end everything in it
#[utoipa::path(delete, path = "/v1/namespaces/{namespace}", tag = "Namespaces", operation_id = "delete_namespace",
    security(("key" = ["namespaces:admin"])), params(("id" = Option<String>, Query, description = "Only this incarnation.")),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(name): PathParams<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, Problem> {
    service.delete_namespace(&call.caller, &call.context, &name, query.id.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}
