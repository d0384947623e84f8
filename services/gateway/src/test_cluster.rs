//! Test peers: the real service against one node that answers over a real socket from the real state machines. Only
//! consensus and storage are missing.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use futures::channel::mpsc;
use futures::{Stream, StreamExt};
use holdfast_auth::{ClusterSecret, OperatorToken, ServiceVerifier};
use holdfast_cluster::{ClusterConfig, ShardMap};
use holdfast_core::shard::{Application, ShardCore};
use holdfast_core::{Command, Context, Query, Reply, codec};
use holdfast_proto::internal::node_service_server::{NodeService, NodeServiceServer};
use holdfast_proto::internal::{
    Answer, AnswerFrame, Call, CallFrame, NotLeader, StatusAnswer, StatusRequest, answer::Outcome, call::Body,
};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use crate::{CallContext, Caller, Gateway, GatewayOptions, Service};

/// The only term: nobody else ever leads.
const TERM: u64 = 1;

pub(crate) struct TestCluster {
    pub(crate) service: Service,
    /// What follows `Bearer ` of the operator.
    pub(crate) operator: String,
}

/// An account of the test cluster.
pub(crate) struct Tenant {
    pub(crate) account_id: String,
    /// What follows `Bearer ` of a key with every scope.
    pub(crate) api_key: String,
}

impl TestCluster {
    pub(crate) async fn start() -> Self {
        let secret = ClusterSecret::generate().unwrap();
        let operator = OperatorToken::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let config = ClusterConfig::generate(vec![("nd_1".to_owned(), address)], 1, 1).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(NodeServiceServer::new(TestNode::new(&config, &secret)))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
        tokio::spawn(server);
        let service = Gateway::start(GatewayOptions::new(config, secret, &operator, "gateway test")).unwrap();
        Self { service, operator: operator.reveal().expose().to_owned() }
    }

    pub(crate) async fn operator_caller(&self) -> Caller {
        self.service.authenticate(Some(&self.operator), &CallContext::new("test")).await.unwrap()
    }

    /// A new account with a key that may do everything.
    pub(crate) async fn tenant(&self, email: &str) -> Tenant {
        let (caller, context) = (self.operator_caller().await, CallContext::new("test"));
        let request = crate::service::CreateAccount {
            email: email.to_owned(),
            full_name: "Test".to_owned(),
            max_number_of_namespaces: Some(2),
        };
        let account = self.service.create_account(&caller, &context, request).await.unwrap();
        let key = self.service.create_api_key(&caller, &context, Some(&account.id), Default::default()).await.unwrap();
        Tenant { account_id: account.id, api_key: key.api_key }
    }
}

/// One node that leads every shard.
#[derive(Clone)]
struct TestNode {
    shards: Arc<Mutex<BTreeMap<Application, ShardCore>>>,
    map: Arc<ShardMap>,
    verifier: Arc<ServiceVerifier>,
    started: Instant,
}

impl TestNode {
    fn new(config: &ClusterConfig, secret: &ClusterSecret) -> Self {
        let map = ShardMap::new(config.clone()).unwrap();
        let shards = holdfast_cluster::Application::ALL.map(|application| {
            let shard = map.shards(application).next().unwrap();
            let application = Application::from_name(application.name()).unwrap();
            (application, ShardCore::new(application, &shard.id))
        });
        Self {
            shards: Arc::new(Mutex::new(shards.into())),
            map: Arc::new(map),
            verifier: Arc::new(ServiceVerifier::new(secret)),
            started: Instant::now(),
        }
    }

    fn context(&self) -> Context {
        let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Context { now_ms, wall_ms: u64::try_from(wall.as_millis()).unwrap() }
    }

    fn outcome(&self, call: &Call) -> Outcome {
        let place = self.map.replica(call.replica).unwrap();
        let application = Application::from_name(place.application.name()).unwrap();
        let reply = match call.body.as_ref().unwrap() {
            Body::Query(bytes) => {
                let query: Query = codec::decode(bytes).unwrap();
                self.shards.lock()[&application].query(self.context().now_ms, &query)
            }
            Body::Command(_) if call.term != TERM => {
                return Outcome::NotLeader(NotLeader { leader: call.replica, term: TERM });
            }
            Body::Command(bytes) => self.run(application, &codec::decode(bytes).unwrap()),
        };
        Outcome::Reply(codec::encode(&reply).into())
    }

    /// Runs a command, and what it makes the shard tell to others, before it answers.
    fn run(&self, application: Application, command: &Command) -> Reply {
        let context = self.context();
        let mut shards = self.shards.lock();
        let mut apply = |application: Application, command: &Command| {
            let shard = shards.get_mut(&application).unwrap();
            shard.advance(&context);
            let reply = shard.apply(&context, command);
            (reply, shard.outbox().messages().clone())
        };
        let (reply, mut messages) = apply(application, command);
        let mut told = vec![application];
        while let Some(source) = told.pop() {
            for (number, message) in std::mem::take(&mut messages) {
                let (delivered, _) = apply(message.application, &message.command);
                delivered.outcome.unwrap();
                apply(source, &Command::OutboxConfirm { numbers: vec![number] });
                told.push(message.application);
            }
            if let Some(next) = told.last() {
                messages = apply(*next, &Command::OutboxConfirm { numbers: Vec::new() }).1;
            }
        }
        reply
    }
}

#[tonic::async_trait]
impl NodeService for TestNode {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<AnswerFrame, Status>> + Send>>;

    async fn connect(&self, request: Request<Streaming<CallFrame>>) -> Result<Response<Self::ConnectStream>, Status> {
        let token = request.metadata().get("authorization").unwrap().to_str().unwrap();
        self.verifier.verify(token.strip_prefix("Bearer ").unwrap()).unwrap();
        let (answers, answered) = mpsc::unbounded();
        let node = self.clone();
        tokio::spawn(async move {
            let mut frames = request.into_inner();
            while let Some(Ok(frame)) = frames.next().await {
                let outcomes = frame.calls.iter().map(|call| (call.id, node.outcome(call)));
                let answer = |(id, outcome)| Answer { id, outcome: Some(outcome) };
                // The gateway may be gone.
                let _ = answers.unbounded_send(Ok(AnswerFrame { answers: outcomes.map(answer).collect() }));
            }
        });
        Ok(Response::new(Box::pin(answered)))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusAnswer>, Status> {
        Err(Status::unimplemented("not asked by gateways"))
    }
}
