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

use crate::support::{Rest, SOON, server as process, tenant};

async fn client(rest: &Rest) -> SessionsServiceClient<Channel> {
    let channel = Endpoint::from_shared(format!("http://{}", rest.address)).unwrap().connect().await.unwrap();
    SessionsServiceClient::new(channel)
}

fn call<T>(rest: &Rest, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {}", rest.key).parse().unwrap());
    request
}

/// A connection.
struct Stream {
    to: mpsc::Sender<v1::ClientMessage>,
    from: Streaming<v1::ServerMessage>,
    seq: u64,
}

impl Stream {
    async fn connect(rest: &Rest) -> Self {
        let (to, messages) = mpsc::channel(16);
        let from = client(rest).await.connect(call(rest, ReceiverStream::new(messages))).await.unwrap().into_inner();
        Self { to, from, seq: 0 }
    }

    async fn say(&mut self, message: Said) {
        self.seq += 1;
        self.to.send(v1::ClientMessage { seq: self.seq, message: Some(message) }).await.unwrap();
    }

    async fn next(&mut self) -> Result<Option<Says>, Status> {
        let next = timeout(SOON, self.from.message()).await.expect("a message in good time");
        next.map(|message| message.map(|message| message.message.unwrap()))
    }

    async fn hear(&mut self) -> Says {
        self.next().await.unwrap().expect("the stream goes on")
    }

    async fn open(&mut self) -> server::Opened {
        let (namespace, process_id) = ("ns".to_owned(), "p".to_owned());
        self.say(Said::Open(client::Open { namespace, process_id, ttl_ms: 30_000, ..Default::default() })).await;
        match self.hear().await {
            Says::Opened(opened) => opened,
            other => panic!("{other:?}"),
        }
    }

    async fn state(&mut self) -> server::State {
        match self.hear().await {
            Says::State(state) => state,
            other => panic!("{other:?}"),
        }
    }
}

fn lock(request_id: &str, path: &str) -> Said {
    let resources = vec![v1::Resource { path: vec![path.to_owned()], ..Default::default() }];
    Said::Lock(client::Lock { request_id: request_id.to_owned(), resources, ..Default::default() })
}

fn release(request_id: &str) -> Said {
    Said::Release(client::Release { request_id: request_id.to_owned() })
}

async fn open() -> Rest {
    let tenant = tenant(process()).await;
    tenant.namespace("ns").await;
    tenant.rest
}

#[tokio::test]
async fn single_calls_make_keep_show_list_and_end_a_session() {
    let rest = open().await;
    let mut sessions = client(&rest).await;
    let namespace = || "ns".to_owned();
    let create = v1::CreateSessionRequest {
        namespace: namespace(),
        process_id: "p".into(),
        ttl_ms: 30_000,
        metadata: [("host".to_owned(), "a".to_owned())].into(),
    };
    let made = sessions.create_session(call(&rest, create)).await.unwrap().into_inner();
    let session_id = || made.session_id.clone();
    assert_eq!((made.process_id.as_str(), made.ttl_ms, made.metadata["host"].as_str()), ("p", 30_000, "a"));
    let keep = v1::KeepAliveRequest { namespace: namespace(), session_id: session_id() };
    let kept = sessions.keep_alive(call(&rest, keep.clone())).await.unwrap().into_inner();
    assert!((1..=30_000).contains(&kept.remaining_ms));
    let get = v1::GetSessionRequest { namespace: namespace(), session_id: session_id() };
    assert_eq!(sessions.get_session(call(&rest, get)).await.unwrap().into_inner().session_id, session_id());
    let list = v1::ListSessionsRequest { namespace: namespace(), ..Default::default() };
    assert_eq!(sessions.list_sessions(call(&rest, list)).await.unwrap().into_inner().sessions.len(), 1);
    let delete = v1::DeleteSessionRequest { namespace: namespace(), session_id: session_id() };
    sessions.delete_session(call(&rest, delete)).await.unwrap();
    let gone = sessions.keep_alive(call(&rest, keep)).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(gone.get_details_error_info().unwrap().reason, "SESSION_NOT_FOUND");
}

#[tokio::test]
async fn a_stream_carries_the_session_protocol() {
    let rest = open().await;
    let (mut first, mut second) = (Stream::connect(&rest).await, Stream::connect(&rest).await);
    let opened = first.open().await;
    assert!(opened.session_id.starts_with("se_") && opened.epoch > 0 && !opened.resumed);
    second.open().await;
    first.say(lock("a", "x")).await;
    let acquired = first.state().await;
    assert_eq!((acquired.state(), acquired.request_id.as_deref()), (server::state::Value::Acquired, Some("a")));
    second.say(lock("b", "x")).await;
    let enqueued = second.state().await;
    assert_eq!((enqueued.state(), enqueued.queue_position), (server::state::Value::Enqueued, Some(0)));
    let holder = enqueued.blockers[0].holder.as_ref().unwrap();
    assert_eq!(holder.session_id.as_deref(), Some(opened.session_id.as_str()));
    first.say(release("a")).await;
    assert_eq!(first.state().await.state(), server::state::Value::Ready);
    assert_eq!(second.state().await.state(), server::state::Value::Acquired);
    second.say(Said::Keepalive(client::KeepAlive {})).await;
    assert!(matches!(second.hear().await, Says::KeptAlive(kept) if kept.remaining_ms > 0));
    second.say(Said::Close(client::Close {})).await;
    match second.hear().await {
        Says::SessionEnded(ended) => assert_eq!(ended.reason(), server::session_ended::Reason::Closed),
        other => panic!("{other:?}"),
    }
    assert_eq!(second.next().await.unwrap(), None, "the stream ends well");
}

#[tokio::test]
async fn a_message_without_content_ends_the_stream_with_invalid_argument() {
    let rest = open().await;
    let mut stream = Stream::connect(&rest).await;
    stream.open().await;
    stream.to.send(v1::ClientMessage { seq: 2, message: None }).await.unwrap();
    assert!(matches!(stream.hear().await, Says::Error(error) if error.code == "INVALID_ARGUMENT"));
    let status = stream.next().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.get_details_error_info().unwrap().reason, "INVALID_ARGUMENT");
}

#[tokio::test]
async fn an_unknown_namespace_and_a_missing_credential_are_refused() {
    let rest = open().await;
    let mut stream = Stream::connect(&rest).await;
    let (namespace, process_id) = ("unknown".to_owned(), "p".to_owned());
    stream.say(Said::Open(client::Open { namespace, process_id, ttl_ms: 30_000, ..Default::default() })).await;
    assert!(matches!(stream.hear().await, Says::Error(error) if error.code == "NAMESPACE_NOT_FOUND"));
    stream.open().await;
    let (_to, messages) = mpsc::channel(1);
    let status = client(&rest).await.connect(ReceiverStream::new(messages)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
}
