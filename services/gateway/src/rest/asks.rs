//! `…/ask-release`: asks owners to release what they hold.

use axum::extract::State;
use holdfast_api::{AskLockAnswer, AskPoolAnswer, AskRelease, AskSemaphoreAnswer, ThingName};
use holdfast_backend::Service;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::Body;
use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{BodyErrors, CommonErrors, NamespaceErrors, PrimitiveErrors, Problems, QuotaErrors, RateErrors};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;
use super::things::thing;

/// A request to release. One with `force` needs the scope `locks:force`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AskRelease)]
pub(super) struct AskBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    reason: Option<String>,
    within_ms: Option<u64>,
    force: Option<bool>,
}

/// A request to return members. One with `force` needs the scope `locks:force`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AskPoolRelease)]
pub(super) struct AskPoolBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    member: Option<String>,
    reason: Option<String>,
    within_ms: Option<u64>,
    force: Option<bool>,
}

impl AskBody {
    fn request(self, namespace: String) -> Result<AskRelease, Problem> {
        let ThingName { namespace, name } = thing(namespace, (self.name, self.path))?;
        let (within_ms, force) = (self.within_ms, self.force.unwrap_or(false));
        Ok(AskRelease { namespace, name, member: None, reason: self.reason, within_ms, force })
    }
}

impl AskPoolBody {
    fn request(self, namespace: String) -> Result<AskRelease, Problem> {
        let Self { name, path, member, reason, within_ms, force } = self;
        let request = AskBody { name, path, reason, within_ms, force }.request(namespace)?;
        Ok(AskRelease { member, ..request })
    }
}

/// Ask the owners of a lock, and of the holds in its way, to release it; with force, end what is still held in time
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/lock-sets/ask-release", tag = "Sets", operation_id = "ask_lock",
    security(("key" = ["locks:write"])),
    request_body(content = AskBody, example = json!({"name": "invoice-42", "reason": "deploy", "within_ms": 30000})),
    responses((status = 200, description = "How many holds are asked for, and the lock as it now is.", body = AskLockAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, QuotaErrors)>))]
pub(super) async fn of_lock(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<AskBody>,
) -> Result<Json<AskLockAnswer>, Problem> {
    Ok(Json(service.ask_lock(&call.caller, &call.context, body.request(namespace)?).await?))
}

/// Ask the holders of a semaphore to release permits; with force, end what is still held in time
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/semaphores/ask-release", tag = "Semaphores", operation_id = "ask_semaphore",
    security(("key" = ["locks:write"])),
    request_body(content = AskBody, example = json!({"name": "downloads", "within_ms": 30000})),
    responses((status = 200, description = "How many holds are asked for, and the semaphore as it now is.", body = AskSemaphoreAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors, QuotaErrors)>))]
pub(super) async fn of_semaphore(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<AskBody>,
) -> Result<Json<AskSemaphoreAnswer>, Problem> {
    Ok(Json(service.ask_semaphore(&call.caller, &call.context, body.request(namespace)?).await?))
}

/// Ask the holders of a pool, or that of a member, to return members; with force, end what is still held in time
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/pools/ask-release", tag = "Pools", operation_id = "ask_pool",
    security(("key" = ["locks:write"])),
    request_body(content = AskPoolBody, example = json!({"name": "databases", "member": "db-1", "within_ms": 30000})),
    responses((status = 200, description = "How many holds are asked for, and the pool as it now is.", body = AskPoolAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors, QuotaErrors)>))]
pub(super) async fn of_pool(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<AskPoolBody>,
) -> Result<Json<AskPoolAnswer>, Problem> {
    Ok(Json(service.ask_pool(&call.caller, &call.context, body.request(namespace)?).await?))
}
