//! Test peers: nodes that speak the internal protocol over real sockets and do what the test tells them.
#![allow(missing_docs, clippy::disallowed_methods, reason = "a test peer")]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::channel::mpsc;
use futures::{Stream, StreamExt};
use holdfast_auth::{ClusterSecret, ServiceVerifier};
use holdfast_cluster::ClusterConfig;
use holdfast_core::{Reply, Response as CoreAnswer, codec};
use holdfast_proto::internal::node_service_server::{NodeService, NodeServiceServer};
use holdfast_proto::internal::{
    Answer, AnswerFrame, Call, CallFrame, Held, NotLeader, StatusAnswer, StatusRequest, answer, call,
};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// What a node does with a call.
pub enum Action {
    Answer(answer::Outcome),
    /// Takes the call and says nothing.
    Silent,
    /// Takes the call and ends the connection.
    HangUp,
    /// Says these things one after the other, with that number of the attempt.
    Sequence(Vec<answer::Outcome>, u64),
    /// Says that it holds the answer back, and ends the connection.
    DeferAndHangUp,
}

type Script = Arc<dyn Fn(&Call) -> Action + Send + Sync>;
type OnCancelled = Arc<dyn Fn(u64) -> Option<Answer> + Send + Sync>;

/// A call as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedCall {
    pub replica: u64,
    pub term: u64,
    pub is_command: bool,
}

#[derive(Clone)]
pub struct FakeNode {
    pub address: String,
    script: Arc<Mutex<Script>>,
    on_cancelled: Arc<Mutex<OnCancelled>>,
    received: Arc<Mutex<Vec<ReceivedCall>>>,
    /// How many calls came in each frame.
    pub frames: Arc<Mutex<Vec<usize>>>,
    /// Caller and number of each connection.
    pub connections: Arc<Mutex<Vec<(String, u64)>>>,
    /// The rules by which it says that its replicas go.
    pub rules: Arc<AtomicU32>,
    verifier: Arc<ServiceVerifier>,
}

impl FakeNode {
    pub async fn start(secret: &ClusterSecret) -> Self {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.expect("a test peer on loopback with a config of its own making");
        let node = Self {
            address: listener
                .local_addr()
                .expect("a test peer on loopback with a config of its own making")
                .to_string(),
            script: Arc::new(Mutex::new(Arc::new(|_: &Call| Action::Silent))),
            on_cancelled: Arc::new(Mutex::new(Arc::new(|_| None))),
            received: Arc::default(),
            frames: Arc::default(),
            connections: Arc::default(),
            rules: Arc::new(AtomicU32::new(1)),
            verifier: Arc::new(ServiceVerifier::new(secret)),
        };
        let server = tonic::transport::Server::builder()
            .add_service(NodeServiceServer::new(node.clone()))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
        tokio::spawn(server);
        node
    }

    pub fn on_call(&self, script: impl Fn(&Call) -> Action + Send + Sync + 'static) {
        *self.script.lock() = Arc::new(script);
    }

    /// What it answers when a caller gives a call up.
    pub fn on_cancelled(&self, script: impl Fn(u64) -> Option<Answer> + Send + Sync + 'static) {
        *self.on_cancelled.lock() = Arc::new(script);
    }

    /// Calls that were addressed to a term, without the questions who leads.
    pub fn addressed(&self) -> Vec<ReceivedCall> {
        self.received.lock().iter().filter(|seen| seen.term > 0 || !seen.is_command).cloned().collect()
    }

    pub fn probe_count(&self) -> usize {
        self.received.lock().iter().filter(|seen| seen.term == 0).count()
    }
}

#[tonic::async_trait]
impl NodeService for FakeNode {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<AnswerFrame, Status>> + Send>>;

    async fn connect(&self, request: Request<Streaming<CallFrame>>) -> Result<Response<Self::ConnectStream>, Status> {
        let text = |key: &str| request.metadata().get(key).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let token = text("authorization").strip_prefix("Bearer ").unwrap_or_default();
        self.verifier.verify(token).map_err(|error| Status::unauthenticated(error.to_string()))?;
        let number = text("holdfast-connection").parse().map_err(|_| Status::invalid_argument("no connection"))?;
        self.connections.lock().push((text("holdfast-caller").to_owned(), number));
        let (answers, answered) = mpsc::unbounded();
        let node = self.clone();
        tokio::spawn(async move {
            let mut frames = request.into_inner();
            while let Some(Ok(frame)) = frames.next().await {
                node.frames.lock().push(frame.calls.len());
                for call in frame.calls {
                    let is_command = matches!(call.body, Some(call::Body::Command(_)));
                    let seen = ReceivedCall { replica: call.replica, term: call.term, is_command };
                    node.received.lock().push(seen);
                    let script = node.script.lock().clone();
                    // The gateway may be gone.
                    let say = |outcome, attempt| {
                        let answer = Answer {
                            id: call.id,
                            outcome: Some(outcome),
                            attempt,
                            rules: node.rules.load(Ordering::Relaxed),
                        };
                        let _ = answers.unbounded_send(Ok(AnswerFrame { answers: vec![answer] }));
                    };
                    match script(&call) {
                        Action::Silent => {}
                        Action::HangUp => return,
                        Action::Answer(outcome) => say(outcome, 0),
                        Action::Sequence(outcomes, attempt) => {
                            outcomes.into_iter().for_each(|outcome| say(outcome, attempt))
                        }
                        Action::DeferAndHangUp => {
                            say(deferred(), 0);
                            return;
                        }
                    }
                }
                let on_given_up = node.on_cancelled.lock().clone();
                for answer in frame.given_up.into_iter().filter_map(|id| on_given_up(id)) {
                    let _ = answers.unbounded_send(Ok(AnswerFrame { answers: vec![answer] }));
                }
            }
        });
        Ok(Response::new(Box::pin(answered)))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusAnswer>, Status> {
        Err(Status::unimplemented("not asked by gateways"))
    }
}

pub fn not_leader(leader: u64, term: u64) -> Action {
    Action::Answer(answer::Outcome::NotLeader(NotLeader { leader, term }))
}

pub fn not_proposed() -> Action {
    Action::Answer(answer::Outcome::NotProposed("the queue is full".to_owned()))
}

pub fn deferred() -> answer::Outcome {
    answer::Outcome::Held(Held {})
}

pub fn unknown() -> Action {
    Action::Answer(answer::Outcome::Unknown("leadership was lost".to_owned()))
}

pub fn done_reply() -> Reply {
    Reply { outcome: Ok(CoreAnswer::Done), clock_ms: 7, awaits: None }
}

pub fn done() -> Action {
    Action::Answer(answer::Outcome::Reply(codec::encode(&done_reply()).into()))
}

/// What a replica does that leads in `term`: commands of that term and queries are done, else it names itself.
pub fn leads(call: &Call, replica: u64, term: u64) -> Action {
    let is_query = matches!(call.body, Some(call::Body::Query(_)));
    if is_query || call.term == term { done() } else { not_leader(replica, term) }
}

/// A config of these nodes with one locks shard.
pub fn config_of(nodes: &[FakeNode]) -> ClusterConfig {
    let named = nodes.iter().enumerate().map(|(index, node)| (format!("nd_{}", index + 1), node.address.clone()));
    ClusterConfig::generate(
        named.collect(),
        1,
        u32::try_from(nodes.len()).expect("a test peer on loopback with a config of its own making"),
    )
    .expect("a test peer on loopback with a config of its own making")
}
