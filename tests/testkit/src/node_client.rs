//! The internal protocol of nodes, spoken as a gateway would.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use holdfast_auth::{ClusterSecret, ServiceSigner};
use holdfast_core::{Command, Query, codec};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::node_service_client::NodeServiceClient;
use holdfast_proto::internal::{Call, CallFrame, ReplicaStatus, StatusAnswer, StatusRequest, call};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Calls one node.
pub struct NodeClient {
    client: NodeServiceClient<Channel>,
    authorization: String,
    caller: String,
    connection: u64,
}

impl NodeClient {
    pub(crate) fn new(address: SocketAddr, signer: &ServiceSigner) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URL");
        let channel = endpoint.connect_timeout(TIMEOUT).connect_lazy();
        let client = NodeServiceClient::new(channel).max_decoding_message_size(16 << 20);
        let token = signer.token().expect("a token can be signed");
        let caller = format!("test-{:016x}", rand::random::<u64>());
        Self { client, authorization: format!("Bearer {}", token.expose()), caller, connection: 1 }
    }

    /// Calls a node as a process with that secret would.
    pub fn of_cluster(address: SocketAddr, secret: &ClusterSecret) -> Self {
        Self::new(address, &ServiceSigner::new(secret, "cluster test"))
    }

    /// The same as a caller of that name, on its connection of that number.
    #[must_use]
    pub fn as_caller(self, name: &str, connection: u64) -> Self {
        Self { caller: name.to_owned(), connection, ..self }
    }

    /// Every replica of the node.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn status(&mut self, with_digests: bool) -> Result<StatusAnswer, Status> {
        let request = self.signed(StatusRequest { with_digests });
        Ok(self.client.status(request).await?.into_inner())
    }

    /// Sends one command to a replica, addressed to it as the leader of a term, on a connection of its own.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn command(&mut self, replica: u64, term: u64, command: &Command) -> Result<Outcome, Status> {
        self.encoded_command(replica, term, codec::encode(command).into()).await
    }

    /// The same with a command that is encoded already, whether or not it can be read.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn encoded_command(&mut self, replica: u64, term: u64, command: Bytes) -> Result<Outcome, Status> {
        self.call(replica, term, call::Body::Command(command)).await
    }

    /// Asks a replica, on a connection of its own.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn query(&mut self, replica: u64, query: &Query) -> Result<Outcome, Status> {
        self.call(replica, 0, call::Body::Query(codec::encode(query).into())).await
    }

    async fn call(&mut self, replica: u64, term: u64, body: call::Body) -> Result<Outcome, Status> {
        let deadline_ms = u32::try_from(TIMEOUT.as_millis()).expect("it is short");
        let call = Call { id: 1, replica, term, deadline_ms, body: Some(body), ..Call::default() };
        // The stream stays open behind the frame: a node need not answer a caller that has gone.
        let (frames, waiting) = futures::channel::mpsc::unbounded();
        frames.unbounded_send(CallFrame { calls: vec![call], given_up: vec![] }).expect("the other end is here");
        let mut request = self.signed(waiting);
        request.metadata_mut().insert("holdfast-caller", self.caller.parse().expect("it is ASCII"));
        request.metadata_mut().insert("holdfast-connection", self.connection.into());
        let mut answers = self.client.connect(request).await?.into_inner();
        let answer = answers.message().await?.and_then(|frame| frame.answers.into_iter().next());
        drop(frames);
        answer.and_then(|answer| answer.outcome).ok_or_else(|| Status::internal("the node's answer is empty"))
    }

    fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(TIMEOUT * 2);
        let authorization = self.authorization.parse().expect("a token is ASCII");
        request.metadata_mut().insert("authorization", authorization);
        request
    }
}

/// The replica of a shard in an answer. Panics when it is not there.
pub fn replica_of<'a>(status: &'a StatusAnswer, shard: &str) -> &'a ReplicaStatus {
    let found = status.replicas.iter().find(|replica| replica.shard == shard);
    found.unwrap_or_else(|| panic!("{} has no replica of {shard}", status.node_id))
}
