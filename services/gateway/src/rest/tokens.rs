//! `/v1/tokens` and `/.well-known/jwks.json`: tokens, and the public keys that verify them.

use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use holdfast_api::{CreateToken, CreatedToken};
use holdfast_backend::Service;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::Body;
use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{BaseErrors, BodyErrors, CommonErrors, Problems, RateErrors};
use super::problem::Problem;
use super::query::Query;

/// Clients may cache the public keys for this long: the next key is among them long before it is used.
const JWKS_CACHE_DIRECTIVE: &str = "public, max-age=300";

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateToken)]
pub(super) struct CreateBody {
    /// Those of the key when absent, and never more than those.
    scopes: Option<Vec<String>>,
    /// Those of the key when absent, and never more than those.
    namespaces: Option<Vec<String>>,
    /// A second to an hour; 15 minutes when absent.
    #[schema(minimum = 1_000, maximum = 3_600_000)]
    ttl_ms: Option<u64>,
}

/// Create a token for the calling API key
///
/// It has the same or fewer permissions than the key, and is sent in its place.
#[utoipa::path(post, path = "/v1/tokens", tag = "Tokens", operation_id = "create_token",
    security(("key" = [])),
    request_body(content = CreateBody, example = json!({"scopes": ["locks:read"], "ttl_ms": 60_000})),
    responses((status = 200, description = "The token.", body = CreatedToken), Problems<(CommonErrors, BodyErrors, RateErrors)>))]
pub(super) async fn create(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(()): Query<()>,
    Body(body): Body<CreateBody>,
) -> Result<Json<CreatedToken>, Problem> {
    let CreateBody { scopes, namespaces, ttl_ms } = body;
    Ok(Json(service.create_token(&call.caller, &call.context, CreateToken { scopes, namespaces, ttl_ms })?))
}

/// The public keys
///
/// A JSON Web Key Set (RFC 7517) that verifies tokens and signed grants. The keys rotate automatically; a new key
/// appears here as long before its first use as an old one stays after its last.
#[utoipa::path(get, path = "/.well-known/jwks.json", tag = "Description", operation_id = "public_keys", security(()),
    responses((status = 200, description = "The previous, the present and the next key.", body = serde_json::Value),
        Problems<(BaseErrors, RateErrors)>))]
pub(super) async fn public_keys(
    State(service): State<Service>,
    Query(()): Query<()>,
) -> Result<impl IntoResponse, Problem> {
    Ok(([(CACHE_CONTROL, JWKS_CACHE_DIRECTIVE)], Json(service.public_keys()?)))
}
