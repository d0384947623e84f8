//! `/v1/namespaces`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::Problem;
use super::body::Body;
use super::call::Call;
use super::names::Names;
use super::query::{FromQuery, Parameters, Query};
use crate::error::ApiResult;
use crate::service::{CreateNamespace, NamespaceView, PageRequest, Service};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateBody {
    name: String,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateBody {
    description: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Namespaces {
    namespaces: Vec<NamespaceView>,
    next_page_token: Option<String>,
}

/// Which incarnation to delete; absent for whichever is there.
#[derive(Debug)]
pub(super) struct DeleteQuery {
    id: Option<String>,
}

impl FromQuery for DeleteQuery {
    fn from_query(parameters: &mut Parameters) -> ApiResult<Self> {
        Ok(Self { id: parameters.one("id")? })
    }
}

pub(super) async fn create(
    State(service): State<Service>,
    call: Call,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Result<(StatusCode, Json<NamespaceView>), Problem> {
    let request = CreateNamespace { name: body.name, description: body.description };
    let namespace = service.create_namespace(&call.caller, &call.context, request).await?;
    Ok((StatusCode::CREATED, Json(namespace)))
}

pub(super) async fn list(
    State(service): State<Service>,
    call: Call,
    Query(page): Query<PageRequest>,
) -> Result<Json<Namespaces>, Problem> {
    let page = service.list_namespaces(&call.caller, &call.context, page).await?;
    Ok(Json(Namespaces { namespaces: page.items, next_page_token: page.next_page_token }))
}

pub(super) async fn get(
    State(service): State<Service>,
    call: Call,
    Names(name): Names<String>,
    Query(()): Query<()>,
) -> Result<Json<NamespaceView>, Problem> {
    Ok(Json(service.get_namespace(&call.caller, &call.context, &name).await?))
}

pub(super) async fn update(
    State(service): State<Service>,
    call: Call,
    Names(name): Names<String>,
    Query(()): Query<()>,
    Body(body): Body<UpdateBody>,
) -> Result<Json<NamespaceView>, Problem> {
    Ok(Json(service.update_namespace(&call.caller, &call.context, &name, body.description).await?))
}

pub(super) async fn delete(
    State(service): State<Service>,
    call: Call,
    Names(name): Names<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, Problem> {
    service.delete_namespace(&call.caller, &call.context, &name, query.id.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}
