//! `/v1/namespaces/{namespace}/waits`.

use axum::extract::State;
use holdfast_api::{ApiResult, ListWaits, PageRequest, WaitInfo};
use holdfast_backend::Service;
use serde::Serialize;
use utoipa::ToSchema;

use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{CommonErrors, NamespaceErrors, Problems, RateErrors};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::{FromQuery, Parameters, Query};

#[derive(Serialize, ToSchema)]
pub(super) struct Waits {
    waits: Vec<WaitInfo>,
    next_page_token: Option<String>,
}

#[derive(Debug)]
pub(super) struct WaitsQuery {
    kinds: Vec<String>,
    page: PageRequest,
}

impl FromQuery for WaitsQuery {
    fn from_query(parameters: &mut Parameters) -> ApiResult<Self> {
        Ok(Self { kinds: parameters.list("kinds")?, page: PageRequest::from_query(parameters)? })
    }
}

/// List waiting requests and their blockers, in the order in which they began to wait; at most 100 in a page
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/waits", tag = "Locks", operation_id = "list_waits",
    security(("key" = ["locks:read"])), params(
        ("kinds" = Option<String>, Query, description = "What they wait for, separated by commas: `locks`, `semaphores`, `pools`, `conditions`. Locks when absent."),
        PageRequest),
    responses((status = 200, description = "A page.", body = Waits), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(WaitsQuery { kinds, page }): Query<WaitsQuery>,
) -> Result<Json<Waits>, Problem> {
    let request = ListWaits { namespace, kinds, page };
    let page = service.list_waits(&call.caller, &call.context, request).await?;
    Ok(Json(Waits { waits: page.items, next_page_token: page.next_page_token }))
}
