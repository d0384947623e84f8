//! `SessionsService`.

use std::pin::Pin;

use futures::{Stream, stream};
use holdfast_api::session_message::ClientMessage;
use holdfast_api::v1::convert;
use holdfast_api::v1::session_messages::{decode, encode};
use holdfast_api::validate::{MAX_BODY_BYTES, message_size};
use holdfast_api::{ApiError, ApiResult, Code, CreateSession};
use holdfast_backend::session::{CloseReason, ConnectionOptions, Outbound, SessionReceiver, SessionSender};
use holdfast_proto::v1;
use holdfast_supervise::spawn_alongside;
use prost::Message;
use tokio::task::yield_now;
use tonic::{Code as Grpc, Request, Response, Status, Streaming};

use super::{AuthenticatedCall, GrpcServices, status};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::sessions_service_server::SessionsService for GrpcServices {
    async fn create_session(&self, request: Request<v1::CreateSessionRequest>) -> RpcResult<v1::Session> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let v1::CreateSessionRequest { namespace, process_id, ttl_ms, metadata } = message;
        let request = CreateSession { namespace, process_id, ttl_ms, metadata: metadata.into_iter().collect() };
        let session = self.service.create_session(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(convert::session(session)))
    }

    async fn keep_alive(&self, request: Request<v1::KeepAliveRequest>) -> RpcResult<v1::KeepAliveResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let kept = self.service.keep_session_alive(&caller, &context, &message.namespace, &message.session_id).await;
        Ok(Response::new(v1::KeepAliveResponse { remaining_ms: kept.map_err(status)? }))
    }

    async fn get_session(&self, request: Request<v1::GetSessionRequest>) -> RpcResult<v1::Session> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let session = self.service.get_session(&caller, &context, &message.namespace, &message.session_id).await;
        Ok(Response::new(convert::session(session.map_err(status)?)))
    }

    async fn delete_session(&self, request: Request<v1::DeleteSessionRequest>) -> RpcResult<v1::DeleteSessionResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let ended = self.service.delete_session(&caller, &context, &message.namespace, &message.session_id).await;
        ended.map_err(status)?;
        Ok(Response::new(v1::DeleteSessionResponse {}))
    }

    async fn list_sessions(&self, request: Request<v1::ListSessionsRequest>) -> RpcResult<v1::ListSessionsResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let page = convert::page_request(message.page_size, message.page_token);
        let page = self.service.list_sessions(&caller, &context, &message.namespace, page).await.map_err(status)?;
        Ok(Response::new(v1::ListSessionsResponse {
            sessions: page.items.into_iter().map(convert::session).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    type ConnectStream = Pin<Box<dyn Stream<Item = Result<v1::ServerMessage, Status>> + Send>>;

    async fn connect(&self, request: Request<Streaming<v1::ClientMessage>>) -> RpcResult<Self::ConnectStream> {
        let AuthenticatedCall { caller, message: messages, .. } =
            AuthenticatedCall::check(&self.service, request).await?;
        let (to, from) = self.service.connect(caller, ConnectionOptions::default());
        spawn_alongside("session_reader", read_loop(messages, to));
        Ok(Response::new(Box::pin(stream::unfold(Some(from), next_message))))
    }
}

/// Reads until the client disconnects or the session's side ends.
async fn read_loop(mut messages: Streaming<v1::ClientMessage>, to: SessionSender) {
    loop {
        let message = tokio::select! {
            biased;
            message = messages.message() => message,
            () = to.closed() => return,
        };
        let read = match message {
            Ok(Some(message)) => match message.encoded_len() {
                bytes if bytes > MAX_BODY_BYTES => Box::pin(decode_large(message, bytes)).await,
                bytes => decode_one(message, bytes),
            },
            Ok(None) => return,
            Err(error) if is_client_error(&error) => {
                Err(ApiError::new(Code::InvalidArgument, format!("the message cannot be read: {}", error.message())))
            }
            Err(_) => return,
        };
        match read {
            Ok(message) => {
                if to.send(message).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                // Later messages do not count; either way the end of the session's side is noticed.
                let _ = to.send_malformed(error).await;
                to.closed().await;
                return;
            }
        }
    }
}

/// Decodes a list of thousands of holds. It has just been read, and converting it takes as long: others are served in
/// between.
async fn decode_large(message: v1::ClientMessage, bytes: usize) -> ApiResult<ClientMessage> {
    yield_now().await;
    decode_one(message, bytes)
}

fn decode_one(message: v1::ClientMessage, bytes: usize) -> ApiResult<ClientMessage> {
    let message = decode(message)?;
    message_size(bytes, &message.payload)?;
    Ok(message)
}

/// Returns whether the gRPC library rejects a message as too large or malformed; every other error is a broken stream.
fn is_client_error(error: &Status) -> bool {
    matches!(error.code(), Grpc::OutOfRange) || error.message().contains("failed to decode Protobuf message")
}

async fn next_message(
    from: Option<SessionReceiver>,
) -> Option<(Result<v1::ServerMessage, Status>, Option<SessionReceiver>)> {
    let mut from = from?;
    match from.next().await {
        Outbound::Message(message) => Some((Ok(encode(message)), Some(from))),
        Outbound::End(CloseReason::Done) => None,
        Outbound::End(CloseReason::Malformed(error) | CloseReason::Failed(error)) => {
            Some((Err(status::uncounted(error)), None))
        }
    }
}
