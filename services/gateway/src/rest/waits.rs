//! `/v1/namespaces/{namespace}/waits`.

use axum::extract::State;
use holdfast_api::{PageRequest, WaitInfo};
use holdfast_backend::Service;
use serde::Serialize;
use utoipa::ToSchema;

use super::Problem;
use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{CommonErrors, NamespaceErrors, Problems, RateErrors};
use super::path_params::PathParams;
use super::query::Query;

#[derive(Serialize, ToSchema)]
pub(super) struct Waits {
    waits: Vec<WaitInfo>,
    next_page_token: Option<String>,
}

/// List waiting requests and their blockers, in the order in which they began to wait; at most 100 in a page
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/waits", tag = "Locks", operation_id = "list_waits",
    security(("key" = ["locks:read"])), params(PageRequest),
    responses((status = 200, description = "A page.", body = Waits), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(page): Query<PageRequest>,
) -> Result<Json<Waits>, Problem> {
    let page = service.list_waits(&call.caller, &call.context, &namespace, page).await?;
    Ok(Json(Waits { waits: page.items, next_page_token: page.next_page_token }))
}
