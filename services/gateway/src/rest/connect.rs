//! `/v1/namespaces/{namespace}/connect`: the connection of a session over WebSocket, one JSON message a frame.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, State};
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use axum::http::request::Parts;
use axum::response::Response;
use futures::stream::{SplitSink, SplitStream};
use futures::{FutureExt, SinkExt, StreamExt};
use holdfast_api::session_message::{ClientMessage, ServerMessage};
use holdfast_api::validate::{MAX_BODY_BYTES, MAX_LOCK_INFO_BYTES, message_size};
use holdfast_api::{ApiError, ApiResult, Code};
use holdfast_backend::session::{
    CloseReason, ConnectionOptions, Outbound, SEND_TIMEOUT, SessionReceiver, SessionSender, slow_client_error,
};
use holdfast_backend::{AuthContext, CallContext, Service};
use holdfast_supervise::SharedGroup;
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::call::context;
use super::openapi::{CommonErrors, NamespaceErrors, Problems, RateErrors};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;
use super::session_messages::{decode, encode};
use crate::connection_limiter::ActivityGuard;
use crate::head::bearer;

/// The subprotocol of clients that cannot set headers: the next one that they list is the credential.
const BEARER_PROTOCOL: &str = "bearer";
/// How often the gateway pings a client, and how long the client may send nothing.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// How long a client may take to close its side.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Frames larger than a message may be are read up to this size, so that an error message can reject them; larger ones
/// break the connection.
const MAX_FRAME_BYTES: usize = 2 * MAX_LOCK_INFO_BYTES;

/// Bytes after which a write takes in no further messages, so that its time limit stays fair to slow clients.
const FULL_WRITE_BYTES: usize = 4 * 1024;

/// A normal close.
const NORMAL: u16 = 1_000;
/// The process stops or needs the connection, or the client was too slow: it may reconnect.
const GOING_AWAY: u16 = 1_001;
/// The credential is no longer valid, or no session was opened.
const POLICY_VIOLATION: u16 = 1_008;
/// A fault of the service.
const INTERNAL_ERROR: u16 = 1_011;
/// The client broke the protocol.
const MALFORMED: u16 = 3_000;

/// A caller whose credential was checked, from a header or a subprotocol.
pub(super) struct UpgradeRequest {
    caller: ApiResult<AuthContext>,
    context: CallContext,
    /// Whether it is a browser's, which does not show a program the response to a failed upgrade.
    is_browser: bool,
}

impl UpgradeRequest {
    /// Returns the caller if it may connect sessions of the namespace.
    async fn admit(&self, service: &Service, namespace: &str) -> ApiResult<AuthContext> {
        let caller = self.caller.as_ref().map_err(Clone::clone)?;
        service.check_may_connect(caller, &self.context, namespace).await?;
        Ok(caller.clone())
    }
}

impl FromRequestParts<Service> for UpgradeRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        let context = context(parts)?;
        let in_header = bearer(&parts.headers)?.map(str::to_owned);
        let in_protocol = bearer_protocol(&parts.headers);
        let is_browser = in_protocol.is_some();
        let mut caller = service.authenticate(in_header.or(in_protocol).as_deref(), &context).await;
        let activity = parts.extensions.get::<ActivityGuard>();
        match (&caller, activity) {
            (Ok(known), Some(activity)) => {
                if let Err(error) = activity.set_owner(service, known) {
                    caller = Err(error);
                }
            }
            (Err(error), _) => ActivityGuard::refuse_unchecked(activity, error),
            (Ok(_), None) => {}
        }
        Ok(Self { caller, context, is_browser })
    }
}

/// Returns the subprotocol after `bearer`. Ignored if there is an `Authorization` header.
fn bearer_protocol(headers: &HeaderMap) -> Option<String> {
    if headers.contains_key(AUTHORIZATION) {
        return None;
    }
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut protocols = values.flat_map(|value| value.split(',')).map(str::trim);
    protocols.find(|protocol| *protocol == BEARER_PROTOCOL)?;
    protocols.next().map(str::to_owned)
}

/// Connect a session over WebSocket
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/connect", tag = "Sessions", operation_id = "connect",
    security(("key" = ["locks:write"])),
    responses((status = 101, description = "The connection continues with the session protocol: one JSON message in each frame."), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn connect(
    State(service): State<Service>,
    connecting: UpgradeRequest,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    stay: Option<Extension<ActivityGuard>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let admitted = connecting.admit(&service, &namespace).await;
    if let (Err(error), false) = (&admitted, connecting.is_browser) {
        return Err(error.clone().into());
    }
    let upgrade = upgrade.map_err(|rejection| upgrade_error(&rejection))?;
    let upgrade =
        upgrade.protocols([BEARER_PROTOCOL]).max_message_size(MAX_FRAME_BYTES).max_frame_size(MAX_FRAME_BYTES);
    let group = SharedGroup::current().unwrap_or_default();
    Ok(upgrade.on_upgrade(move |socket| {
        group.run(async move {
            let caller = match admitted {
                Ok(caller) => caller,
                Err(error) => return refuse(socket, error).await,
            };
            let (to, from) = service.connect(caller, ConnectionOptions::default());
            let evicted = evicted(stay.as_ref().map(|Extension(stay)| stay));
            relay(socket, to, from, &namespace, evicted).await;
            // Until here, the process counts the connection and waits for it when it stops.
            drop(stay);
        })
    }))
}

/// Says why a browser may not connect, and closes.
async fn refuse(mut socket: WebSocket, error: ApiError) {
    let close = Message::Close(Some(close_frame(&CloseReason::Failed(error.clone()))));
    let said = Message::Text(encode(ServerMessage::Error { request_id: None, error }).into());
    let send = async {
        socket.send(said).await?;
        socket.send(close).await?;
        // The client closes its side; what it sends until then is discarded.
        while let Some(Ok(_)) = socket.recv().await {}
        Ok::<(), axum::Error>(())
    };
    // A client that is gone needs no reason.
    let _ = timeout(CLOSE_TIMEOUT, send).await;
}

fn upgrade_error(rejection: &WebSocketUpgradeRejection) -> ApiError {
    ApiError::new(Code::InvalidArgument, format!("the call is no WebSocket handshake: {}", rejection.body_text()))
}

/// Returns when the connection must close; never without a limit of connections.
async fn evicted(stay: Option<&ActivityGuard>) {
    match stay {
        Some(stay) => stay.evicted().await,
        None => pending().await,
    }
}

/// Relays messages in both directions until the session's side ends or the connection is evicted.
async fn relay(
    socket: WebSocket,
    to: SessionSender,
    from: SessionReceiver,
    namespace: &str,
    evicted: impl Future<Output = ()>,
) {
    let (sink, stream) = socket.split();
    let mut reading = pin!(read_loop(stream, to, namespace));
    let mut writing = pin!(write_loop(sink, from, evicted));
    tokio::select! {
        () = &mut writing => {}
        () = async { reading.as_mut().await; pending::<()>().await } => {}
    }
}

/// Reads until the client disconnects.
async fn read_loop(mut stream: SplitStream<WebSocket>, to: SessionSender, namespace: &str) {
    let mut is_over = false;
    while let Ok(Some(frame)) = timeout(IDLE_TIMEOUT, stream.next()).await {
        let message = match frame {
            Ok(Message::Text(text)) => {
                if text.len() > MAX_BODY_BYTES {
                    // A list of thousands of holds, which took long to come together: others are served in between.
                    yield_now().await;
                }
                decode_text(text.as_str(), namespace)
            }
            Ok(Message::Binary(_)) => Err(ApiError::new(Code::InvalidArgument, "messages are text frames")),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_)) => continue,
            Err(error) => Err(ApiError::new(Code::InvalidArgument, format!("the frame cannot be read: {error}"))),
        };
        if is_over {
            // Keeps reading, so that the client receives the reason.
            continue;
        }
        is_over = match message {
            Ok(message) => to.send(message).await.is_err(),
            Err(error) => {
                // Later messages do not count.
                let _ = to.send_malformed(error).await;
                true
            }
        };
    }
}

fn decode_text(text: &str, namespace: &str) -> ApiResult<ClientMessage> {
    if text.len() > MAX_LOCK_INFO_BYTES {
        let detail = format!("the message has {} bytes, of at most {MAX_LOCK_INFO_BYTES}", text.len());
        return Err(ApiError::new(Code::PayloadTooLarge, detail));
    }
    let message = decode(text, namespace)?;
    message_size(text.len(), &message.payload)?;
    Ok(message)
}

/// Writes until the session's side ends, the client stops reading, or the connection is evicted.
async fn write_loop(
    mut sink: SplitSink<WebSocket, Message>,
    mut from: SessionReceiver,
    evicted: impl Future<Output = ()>,
) {
    let mut evicted = pin!(evicted);
    let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ending = loop {
        let message = tokio::select! {
            told = from.next() => match told {
                Outbound::Message(message) => Message::Text(encode(message).into()),
                Outbound::End(ending) => break ending,
            },
            _ = pings.tick() => Message::Ping(bytes::Bytes::new()),
            () = &mut evicted => break CloseReason::Failed(evicted_error()),
        };
        let written = tokio::select! {
            biased;
            written = timeout(SEND_TIMEOUT, write_ready(&mut sink, message, &mut from)) => written,
            () = &mut evicted => break CloseReason::Failed(evicted_error()),
        };
        match written {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(ending))) => break ending,
            Ok(Err(_)) => return discard(from).await,
            Err(_) => break CloseReason::Failed(slow_client_error()),
        }
    };
    let close = Message::Close(Some(close_frame(&ending)));
    if matches!(timeout(CLOSE_TIMEOUT, sink.send(close)).await, Ok(Ok(()))) {
        // The client closes its side; its remaining messages are discarded.
        let _ = timeout(CLOSE_TIMEOUT, sink.close()).await;
    }
}

fn evicted_error() -> ApiError {
    ApiError::new(Code::Unavailable, "the gateway needs the connection for others; connect again and resume")
}

/// Takes what nobody reads any more: what the client sent before it left is still done.
async fn discard(mut from: SessionReceiver) {
    while matches!(from.next().await, Outbound::Message(_)) {}
}

/// Writes a message together with those that are ready by then: a write costs much the same with one as with many.
/// Returns how the session's side ended, if it did.
async fn write_ready(
    sink: &mut SplitSink<WebSocket, Message>,
    first: Message,
    from: &mut SessionReceiver,
) -> Result<Option<CloseReason>, axum::Error> {
    sink.feed(first).await?;
    let (mut bytes, mut ending) = (0, None);
    while bytes < FULL_WRITE_BYTES && ending.is_none() {
        match from.next().now_or_never() {
            Some(Outbound::Message(message)) => {
                let text = encode(message);
                bytes += text.len();
                sink.feed(Message::Text(text.into())).await?;
            }
            Some(Outbound::End(reason)) => ending = Some(reason),
            None => break,
        }
    }
    sink.flush().await?;
    Ok(ending)
}

fn close_frame(ending: &CloseReason) -> CloseFrame {
    let (code, reason) = match ending {
        CloseReason::Done => (NORMAL, "DONE"),
        CloseReason::Malformed(error) => (MALFORMED, error.code.name()),
        CloseReason::Failed(error) => {
            let code = match error.code {
                Code::Unavailable => GOING_AWAY,
                Code::Internal => INTERNAL_ERROR,
                _ => POLICY_VIOLATION,
            };
            (code, error.code.name())
        }
    };
    CloseFrame { code, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_browsers_credential_is_the_subprotocol_after_bearer() {
        let of = |values: &[(&'static str, &str)]| bearer_protocol(&headers(values));
        assert_eq!(of(&[("sec-websocket-protocol", "bearer, hf_1_x")]).as_deref(), Some("hf_1_x"));
        assert_eq!(of(&[("sec-websocket-protocol", "bearer"), ("sec-websocket-protocol", "k")]).as_deref(), Some("k"));
        assert_eq!(of(&[("sec-websocket-protocol", "chat, hf_1_x")]), None);
        assert_eq!(of(&[("sec-websocket-protocol", "bearer")]), None);
        assert_eq!(of(&[("sec-websocket-protocol", "bearer, k"), ("authorization", "Bearer other")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_broken_protocol_is_closed_with_3000_and_a_stop_with_going_away() {
        let error = |code| ApiError::new(code, "why");
        assert_eq!(close_frame(&CloseReason::Done).code, 1_000);
        assert_eq!(close_frame(&CloseReason::Malformed(error(Code::PayloadTooLarge))).code, 3_000);
        let stops = close_frame(&CloseReason::Failed(error(Code::Unavailable)));
        assert_eq!((stops.code, stops.reason.as_str()), (1_001, "UNAVAILABLE"));
        assert_eq!(close_frame(&CloseReason::Failed(error(Code::Unauthenticated))).code, 1_008);
    }
}
