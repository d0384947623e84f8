//! The internal protocol of nodes, spoken as a gateway would.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_auth::{ClusterSecret, ServiceSigner};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::node_service_client::NodeServiceClient;
use holdfast_proto::internal::{Application, Call, CallFrame, ReplicaStatus, StatusAnswer, StatusRequest, call};
use holdfast_rpc::{Calls, ChannelOptions, Event, Identity, TcpDialer, connect};
use holdfast_types::{Command, Query, codec};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Calls one node.
pub struct NodeClient {
    client: NodeServiceClient<Channel>,
    secret: ClusterSecret,
    frames: ChannelOptions,
}

impl NodeClient {
    /// Calls a node as a process with that secret would.
    pub fn of_cluster(address: SocketAddr, secret: &ClusterSecret) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URL");
        let channel = endpoint.connect_timeout(TIMEOUT).connect_lazy();
        let client = NodeServiceClient::new(channel).max_decoding_message_size(16 << 20);
        let frames = ChannelOptions {
            node: String::new(),
            address: address.to_string(),
            dialer: Arc::new(TcpDialer),
            identity: identity(secret, &format!("test-{:016x}", rand::random::<u64>()), 1),
            connect_timeout: TIMEOUT,
            max_backoff: TIMEOUT,
        };
        Self { client, secret: secret.clone(), frames }
    }

    /// The same as a caller of that name, on its connections from that number on.
    #[must_use]
    pub fn as_caller(mut self, name: &str, connection: u64) -> Self {
        self.frames.identity = identity(&self.secret, name, connection);
        self
    }

    /// Every shard of every group of the node.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn status(&mut self, with_digests: bool) -> Result<StatusAnswer, Status> {
        let request = self.signed(StatusRequest { with_digests });
        Ok(self.client.status(request).await?.into_inner())
    }

    /// Sends one command for the locks shard that owns a key to a replica of its group, addressed to it as the leader of
    /// a term, on a connection of its own.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn command(&mut self, replica: u64, term: u64, key: u32, command: &Command) -> Result<Outcome, Status> {
        self.encoded_command(replica, term, key, codec::encode(command).into()).await
    }

    /// The same with a command that is encoded already, whether or not it can be read.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn encoded_command(
        &mut self,
        replica: u64,
        term: u64,
        key: u32,
        command: Bytes,
    ) -> Result<Outcome, Status> {
        self.call(replica, term, key, call::Body::Command(command)).await
    }

    /// Asks a replica about the locks shard that owns a key, on a connection of its own.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn query(&mut self, replica: u64, key: u32, query: &Query) -> Result<Outcome, Status> {
        self.call(replica, 0, key, call::Body::Query(codec::encode(query).into())).await
    }

    async fn call(&mut self, replica: u64, term: u64, key: u32, body: call::Body) -> Result<Outcome, Status> {
        let deadline_ms = u32::try_from(TIMEOUT.as_millis()).expect("it is short");
        let (application, body) = (Application::Locks as i32, Some(body));
        let call = Call { id: 1, replica, term, application, key, deadline_ms, body, ..Call::default() };
        let connected = connect::<Calls>(&self.frames, &()).await;
        let (mut connection, ()) = connected.map_err(|error| Status::failed_precondition(error.to_string()))?;
        let answering = async {
            connection.send(CallFrame { calls: vec![call], ..CallFrame::default() })?;
            loop {
                if let Event::Received(frame) = connection.next(true).await? {
                    return std::io::Result::Ok(frame.answers.into_iter().next());
                }
            }
        };
        let answered = tokio::time::timeout(TIMEOUT * 2, answering).await;
        let answer = answered.map_err(|_| Status::deadline_exceeded("no answer in time"))??;
        answer.and_then(|answer| answer.outcome).ok_or_else(|| Status::internal("the node's answer is empty"))
    }

    fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(TIMEOUT * 2);
        let token = self.frames.identity.token().expect("a token can be signed");
        let authorization = format!("Bearer {}", token.expose()).parse().expect("a token is ASCII");
        request.metadata_mut().insert("authorization", authorization);
        request
    }
}

fn identity(secret: &ClusterSecret, caller: &str, connection: u64) -> Arc<Identity> {
    let identity = Identity::new(caller, 0, ServiceSigner::new(secret, "cluster test"));
    Arc::new(identity.with_next_connection(connection))
}

/// A shard in an answer, with the replica of its group. Panics when it is not there.
pub fn replica_of<'a>(status: &'a StatusAnswer, shard: &str) -> &'a ReplicaStatus {
    let found = status.replicas.iter().find(|replica| replica.shard == shard);
    found.unwrap_or_else(|| panic!("{} has no replica of {shard}", status.node_id))
}
