//! Sessions over gRPC.

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{self as client, Message as Said};
use holdfast_proto::v1::server_message::{self as server, Message as Says};
use holdfast_proto::v1::sessions_service_client::SessionsServiceClient;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_types::StatusExt;

use crate::support::{CONDITION_TIMEOUT, RestClient, create_tenant, server as process};

async fn client(rest: &RestClient) -> SessionsServiceClient<Channel> {
    let channel = Endpoint::from_shared(format!("http://{}", rest.address)).unwrap().connect().await.unwrap();
    SessionsServiceClient::new(channel)
}

fn with_credential<T>(rest: &RestClient, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {}", rest.key).parse().unwrap());
    request
}

/// A connection.
struct SessionStream {
    outbound: mpsc::Sender<v1::ClientMessage>,
    inbound: Streaming<v1::ServerMessage>,
    seq: u64,
}

impl SessionStream {
    async fn connect(rest: &RestClient) -> Self {
        let (outbound, messages) = mpsc::channel(16);
        let inbound = client(rest)
            .await
            .connect(with_credential(rest, ReceiverStream::new(messages)))
            .await
            .unwrap()
            .into_inner();
        Self { outbound, inbound, seq: 0 }
    }

    async fn send(&mut self, message: Said) {
        self.seq += 1;
        self.outbound.send(v1::ClientMessage { seq: self.seq, message: Some(message) }).await.unwrap();
    }

    async fn next(&mut self) -> Result<Option<Says>, Status> {
        let next = timeout(CONDITION_TIMEOUT, self.inbound.message()).await.expect("a message in good time");
        next.map(|message| message.map(|message| message.message.unwrap()))
    }

    async fn receive(&mut self) -> Says {
        self.next().await.unwrap().expect("the stream goes on")
    }

    async fn open_session(&mut self) -> server::Opened {
        let (namespace, process_id) = ("ns".to_owned(), "p".to_owned());
        self.send(Said::Open(client::Open { namespace, process_id, ttl_ms: 30_000, ..Default::default() })).await;
        match self.receive().await {
            Says::Opened(opened) => opened,
            other => panic!("{other:?}"),
        }
    }

    async fn expect_state(&mut self) -> server::State {
        match self.receive().await {
            Says::State(state) => state,
            other => panic!("{other:?}"),
        }
    }
}

fn lock_message(request_id: &str, path: &str) -> Said {
    let resources = vec![v1::Resource { path: vec![path.to_owned()], ..Default::default() }];
    Said::Lock(client::Lock { request_id: request_id.to_owned(), resources, ..Default::default() })
}

fn release_message(request_id: &str) -> Said {
    Said::Release(client::Release { request_id: request_id.to_owned(), unheard: false })
}

async fn tenant_with_namespace() -> RestClient {
    let tenant = create_tenant(process()).await;
    tenant.create_namespace("ns").await;
    tenant.rest
}

#[tokio::test]
async fn single_calls_make_keep_show_list_and_end_a_session() {
    let rest = tenant_with_namespace().await;
    let mut sessions = client(&rest).await;
    let namespace = || "ns".to_owned();
    let create = v1::CreateSessionRequest {
        namespace: namespace(),
        process_id: "p".into(),
        ttl_ms: 30_000,
        metadata: [("host".to_owned(), "a".to_owned())].into(),
    };
    let made = sessions.create_session(with_credential(&rest, create)).await.unwrap().into_inner();
    let session_id = || made.session_id.clone();
    assert_eq!((made.process_id.as_str(), made.ttl_ms, made.metadata["host"].as_str()), ("p", 30_000, "a"));
    let keep = v1::KeepAliveRequest { namespace: namespace(), session_id: session_id() };
    let kept = sessions.keep_alive(with_credential(&rest, keep.clone())).await.unwrap().into_inner();
    assert!((1..=30_000).contains(&kept.remaining_ms));
    let get = v1::GetSessionRequest { namespace: namespace(), session_id: session_id() };
    assert_eq!(sessions.get_session(with_credential(&rest, get)).await.unwrap().into_inner().session_id, session_id());
    let list = v1::ListSessionsRequest { namespace: namespace(), ..Default::default() };
    assert_eq!(sessions.list_sessions(with_credential(&rest, list)).await.unwrap().into_inner().sessions.len(), 1);
    let delete = v1::DeleteSessionRequest { namespace: namespace(), session_id: session_id() };
    sessions.delete_session(with_credential(&rest, delete)).await.unwrap();
    let gone = sessions.keep_alive(with_credential(&rest, keep)).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(gone.get_details_error_info().unwrap().reason, "SESSION_NOT_FOUND");
}

#[tokio::test]
async fn a_stream_carries_the_session_protocol() {
    let rest = tenant_with_namespace().await;
    let (mut first, mut second) = (SessionStream::connect(&rest).await, SessionStream::connect(&rest).await);
    let opened = first.open_session().await;
    assert!(opened.session_id.starts_with("se_") && opened.epoch > 0 && !opened.resumed);
    second.open_session().await;
    first.send(lock_message("a", "x")).await;
    let acquired = first.expect_state().await;
    assert_eq!((acquired.state(), acquired.request_id.as_deref()), (server::state::Value::Acquired, Some("a")));
    second.send(lock_message("b", "x")).await;
    let enqueued = second.expect_state().await;
    assert_eq!((enqueued.state(), enqueued.queue_position), (server::state::Value::Enqueued, Some(0)));
    let holder = enqueued.blockers[0].holder.as_ref().unwrap();
    assert_eq!(holder.session_id.as_deref(), Some(opened.session_id.as_str()));
    first.send(release_message("a")).await;
    assert_eq!(first.expect_state().await.state(), server::state::Value::Ready);
    assert_eq!(second.expect_state().await.state(), server::state::Value::Acquired);
    second.send(Said::Keepalive(client::KeepAlive {})).await;
    assert!(matches!(second.receive().await, Says::KeptAlive(kept) if kept.remaining_ms > 0));
    second.send(Said::Close(client::Close {})).await;
    match second.receive().await {
        Says::SessionEnded(ended) => assert_eq!(ended.reason(), server::session_ended::Reason::Closed),
        other => panic!("{other:?}"),
    }
    assert_eq!(second.next().await.unwrap(), None, "the stream ends well");
}

#[tokio::test]
async fn a_message_without_content_ends_the_stream_with_invalid_argument() {
    let rest = tenant_with_namespace().await;
    let mut stream = SessionStream::connect(&rest).await;
    stream.open_session().await;
    stream.outbound.send(v1::ClientMessage { seq: 2, message: None }).await.unwrap();
    assert!(matches!(stream.receive().await, Says::Error(error) if error.code == "INVALID_ARGUMENT"));
    let status = stream.next().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.get_details_error_info().unwrap().reason, "INVALID_ARGUMENT");
}

#[tokio::test]
async fn an_unknown_namespace_and_a_missing_credential_are_refused() {
    let rest = tenant_with_namespace().await;
    let mut stream = SessionStream::connect(&rest).await;
    let (namespace, process_id) = ("unknown".to_owned(), "p".to_owned());
    stream.send(Said::Open(client::Open { namespace, process_id, ttl_ms: 30_000, ..Default::default() })).await;
    assert!(matches!(stream.receive().await, Says::Error(error) if error.code == "NAMESPACE_NOT_FOUND"));
    stream.open_session().await;
    let (_to, messages) = mpsc::channel(1);
    let status = client(&rest).await.connect(ReceiverStream::new(messages)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
}
