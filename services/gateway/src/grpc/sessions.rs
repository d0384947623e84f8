//! `SessionsService`.

use std::pin::Pin;

use futures::{Stream, stream};
use holdfast_proto::v1;
use holdfast_supervise::brief;
use prost::Message;
use tonic::{Code as Grpc, Request, Response, Status, Streaming};

use super::session_messages::{read, write};
use super::{Call, GrpcDoor, show, status};
use crate::error::{ApiError, ApiResult, Code};
use crate::service::{CreateSession, SessionInfo};
use crate::session::{ClientMessage, Ending, FromSession, Rules, ToSession, Told, check_size};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::sessions_service_server::SessionsService for GrpcDoor {
    async fn create_session(&self, request: Request<v1::CreateSessionRequest>) -> Answer<v1::Session> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let v1::CreateSessionRequest { namespace, process_id, ttl_ms, metadata } = message;
        let request = CreateSession { namespace, process_id, ttl_ms, metadata: metadata.into_iter().collect() };
        let session = self.service.create_session(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(session_message(session)))
    }

    async fn keep_alive(&self, request: Request<v1::KeepAliveRequest>) -> Answer<v1::KeepAliveResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let kept = self.service.keep_session_alive(&caller, &context, &message.namespace, &message.session_id).await;
        Ok(Response::new(v1::KeepAliveResponse { remaining_ms: kept.map_err(status)? }))
    }

    async fn get_session(&self, request: Request<v1::GetSessionRequest>) -> Answer<v1::Session> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let session = self.service.get_session(&caller, &context, &message.namespace, &message.session_id).await;
        Ok(Response::new(session_message(session.map_err(status)?)))
    }

    async fn delete_session(&self, request: Request<v1::DeleteSessionRequest>) -> Answer<v1::DeleteSessionResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let ended = self.service.delete_session(&caller, &context, &message.namespace, &message.session_id).await;
        ended.map_err(status)?;
        Ok(Response::new(v1::DeleteSessionResponse {}))
    }

    async fn list_sessions(&self, request: Request<v1::ListSessionsRequest>) -> Answer<v1::ListSessionsResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let page = show::page(message.page_size, message.page_token);
        let page = self.service.list_sessions(&caller, &context, &message.namespace, page).await.map_err(status)?;
        Ok(Response::new(v1::ListSessionsResponse {
            sessions: page.items.into_iter().map(session_message).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    type ConnectStream = Pin<Box<dyn Stream<Item = Result<v1::ServerMessage, Status>> + Send>>;

    async fn connect(&self, request: Request<Streaming<v1::ClientMessage>>) -> Answer<Self::ConnectStream> {
        let Call { caller, message: messages, .. } = Call::check(&self.service, request).await?;
        let (to, from) = self.service.connect(caller, Rules::default());
        brief("session reader", read_all(messages, to));
        Ok(Response::new(Box::pin(stream::unfold(Some(from), step))))
    }
}

fn session_message(session: SessionInfo) -> v1::Session {
    v1::Session {
        session_id: session.session_id,
        process_id: session.process_id,
        ttl_ms: session.ttl_ms,
        remaining_ms: session.remaining_ms,
        metadata: session.metadata.into_iter().collect(),
        opened_at: Some(show::instant(session.opened_at)),
        holds: session.holds,
        waiting: session.waiting,
    }
}

/// Reads until the client goes away or the session's side ends.
async fn read_all(mut messages: Streaming<v1::ClientMessage>, to: ToSession) {
    loop {
        let message = tokio::select! {
            () = to.over() => return,
            message = messages.message() => message,
        };
        let read = match message {
            Ok(Some(message)) => read_one(message),
            Ok(None) => return,
            Err(error) if is_the_clients_fault(&error) => {
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
                // Nothing after it counts; that the session's side ends is not missed either way.
                let _ = to.malformed(error).await;
                to.over().await;
                return;
            }
        }
    }
}

fn read_one(message: v1::ClientMessage) -> ApiResult<ClientMessage> {
    let bytes = message.encoded_len();
    let message = read(message)?;
    check_size(bytes, &message.said)?;
    Ok(message)
}

/// What the gRPC library says of messages that are too large or not well-formed; everything else is a broken stream.
fn is_the_clients_fault(error: &Status) -> bool {
    matches!(error.code(), Grpc::OutOfRange) || error.message().contains("failed to decode Protobuf message")
}

async fn step(from: Option<FromSession>) -> Option<(Result<v1::ServerMessage, Status>, Option<FromSession>)> {
    let mut from = from?;
    match from.next().await {
        Told::Message(message) => Some((Ok(write(message)), Some(from))),
        Told::End(Ending::Done) => None,
        Told::End(Ending::Malformed(error) | Ending::Failed(error)) => Some((Err(status(error)), None)),
    }
}
