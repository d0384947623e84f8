//! The routes of the frontend: `/`, `/v1` and `/stats_v1`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use holdfast_api::validate::MAX_BODY_BYTES;
use holdfast_api::{ApiError, ApiResult, Code, CreateNamespace, PageRequest};
use holdfast_backend::{AuthContext, CallContext, count_refusal, is_not_opened};
use holdfast_supervise::SharedGroup;
use holdfast_types::{Durability, MAX_PAGE_SIZE, Scopes};
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::LocktopusServer;
use super::connection::Connection;
use super::origin::AllowedOrigins;
use crate::connection_limiter::ActivityGuard;

/// How long the locks of a lost connection stay when its client sets no timeout, in milliseconds.
const DEFAULT_ABANDON_TIMEOUT_MS: u64 = 60_000;

/// Delay before the next read of a namespace that another client is creating.
const RETRY_DELAY: Duration = Duration::from_millis(20);

type Parameters = Result<Query<Vec<(String, String)>>, QueryRejection>;

pub(super) fn routes(locktopus: LocktopusServer, origins: AllowedOrigins) -> Router {
    let routes = Router::new().route("/", get(index)).route("/v1", get(connect)).route("/stats_v1", get(stats));
    routes.with_state(locktopus).layer(from_fn_with_state(Arc::new(origins), check_origin))
}

/// An error in the form of Locktopus: a status and a text.
struct ErrorResponse(ApiError);

impl From<ApiError> for ErrorResponse {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        count_refusal(&self.0);
        let status = StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, self.0.detail).into_response()
    }
}

/// Rejects requests of pages from other origins, for every route of the port.
async fn check_origin(
    State(origins): State<Arc<AllowedOrigins>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Result<Response, ErrorResponse> {
    origins.check(request.uri(), request.headers(), peer)?;
    Ok(next.run(request).await)
}

fn context() -> CallContext {
    CallContext::new(Uuid::new_v4().simple().to_string())
}

/// Lists the namespaces, for people.
async fn index(State(locktopus): State<LocktopusServer>) -> Result<String, ErrorResponse> {
    let context = context();
    let caller = locktopus.authenticate(&context).await?;
    let page = PageRequest { page_size: Some(MAX_PAGE_SIZE), page_token: None };
    let page = locktopus.service.list_namespaces(&caller, &context, page).await?;
    let mut text = format!(
        "Holdfast, for Locktopus clients\n\nConnect to  /v1?namespace=NAME[&abandon-timeout-ms=N]  (WebSocket; N is \
         {DEFAULT_ABANDON_TIMEOUT_MS} when absent)\nFigures at  /stats_v1?namespace=NAME\n\nNamespaces:\n"
    );
    for namespace in &page.items {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  {}", namespace.name);
    }
    if page.next_page_token.is_some() {
        text.push_str("  …\n");
    }
    Ok(text)
}

/// Returns the metrics of an existing namespace.
async fn stats(State(door): State<LocktopusServer>, parameters: Parameters) -> Result<Response, ErrorResponse> {
    let name = namespace(&parse_parameters(parameters)?)?;
    let context = context();
    let caller = door.authenticate(&context).await?;
    let load = door.service.namespace_load(&caller, &context, &name).await?;
    let figures = json!({"GroupsPending": load.waiting, "LocksAcquired": load.holds, "Sessions": load.sessions});
    Ok(Json(figures).into_response())
}

/// Accepts a client. Every possible rejection precedes the change of protocol.
async fn connect(
    State(door): State<LocktopusServer>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(stay): Extension<ActivityGuard>,
    parameters: Parameters,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ErrorResponse> {
    let parameters = parse_parameters(parameters)?;
    let (namespace, abandon_ms) = (namespace(&parameters)?, abandon_timeout_ms(&parameters)?);
    let context = context();
    let caller = door.authenticate(&context).await?;
    stay.set_owner(&door.service, &caller)?;
    let tenant = caller.require(Scopes::LOCKS_WRITE)?;
    let longest = tenant.limits().max_session_ttl_ms;
    if abandon_ms > longest {
        let detail = format!("URL parameter 'abandon-timeout-ms' is {abandon_ms}, and at most {longest} here");
        return Err(ApiError::invalid("abandon-timeout-ms", detail).into());
    }
    ensure_namespace(&door, &caller, &context, &namespace).await?;
    let account = door.account_id(&context).await?;
    let connection = Connection { service: door.service.clone(), account, namespace, abandon_ms, peer };
    let upgrade = upgrade.max_message_size(MAX_BODY_BYTES).max_frame_size(MAX_BODY_BYTES);
    let group = SharedGroup::current().unwrap_or_default();
    Ok(upgrade.on_upgrade(move |socket| {
        group.run(async move {
            connection.run(socket, &stay).await;
            // Until here, the process counts this connection and waits for it when it stops.
            drop(stay);
        })
    }))
}

/// Creates a namespace at its first use. Waits for one that another client is creating.
async fn ensure_namespace(
    door: &LocktopusServer,
    caller: &AuthContext,
    context: &CallContext,
    name: &str,
) -> ApiResult<()> {
    loop {
        let is_in_time = Instant::now() < context.deadline;
        match door.service.namespace_load(caller, context, name).await {
            Err(error) if error.code == Code::NamespaceNotFound && is_in_time => {
                let description = Some("made for Locktopus clients".to_owned());
                let (name, durability) = (name.to_owned(), Durability::Full);
                let request = CreateNamespace { name, description, durability };
                match door.service.create_namespace(caller, context, request).await {
                    Err(error) if error.code == Code::AlreadyExists => {}
                    made => return made.map(drop),
                }
            }
            Err(error) if is_not_opened(&error) && is_in_time => sleep(RETRY_DELAY).await,
            looked => return looked.map(drop),
        }
    }
}

fn parse_parameters(parameters: Parameters) -> ApiResult<Vec<(String, String)>> {
    let Query(parameters) = parameters.map_err(|error| ApiError::new(Code::InvalidArgument, error.body_text()))?;
    Ok(parameters)
}

/// Returns the first parameter of that name; ignores unknown ones.
fn first_value<'a>(parameters: &'a [(String, String)], name: &str) -> Option<&'a str> {
    parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn namespace(parameters: &[(String, String)]) -> ApiResult<String> {
    let name = first_value(parameters, "namespace").filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| ApiError::invalid("namespace", "URL parameter 'namespace' is needed"))
}

fn abandon_timeout_ms(parameters: &[(String, String)]) -> ApiResult<u64> {
    let Some(text) = first_value(parameters, "abandon-timeout-ms") else { return Ok(DEFAULT_ABANDON_TIMEOUT_MS) };
    text.parse().map_err(|_| {
        let detail = "URL parameter 'abandon-timeout-ms' must be a number of milliseconds, 0 or more";
        ApiError::invalid("abandon-timeout-ms", detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_parameters_of_a_connection_are_read_as_locktopus_reads_them() {
        let given = parameters(&[("namespace", "a"), ("x", "y"), ("namespace", "b"), ("abandon-timeout-ms", "0")]);
        assert_eq!((namespace(&given).unwrap().as_str(), abandon_timeout_ms(&given).unwrap()), ("a", 0));
        assert_eq!(abandon_timeout_ms(&[]), Ok(60_000));
        for wrong in ["", "-1", "x", "1.5"] {
            assert!(abandon_timeout_ms(&parameters(&[("abandon-timeout-ms", wrong)])).is_err(), "{wrong}");
        }
        assert!(namespace(&[]).is_err() && namespace(&parameters(&[("namespace", "")])).is_err());
    }
}
