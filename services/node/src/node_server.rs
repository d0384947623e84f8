//! The node's status, over gRPC.

use std::sync::Arc;

use holdfast_proto::internal::node_service_server::{NodeService, NodeServiceServer};
use holdfast_proto::internal::{StatusAnswer, StatusRequest};
use holdfast_replication::Credentials;
use tonic::{Request, Response, Status};

use crate::node::NodeInner;
use crate::status;

pub(crate) struct NodeServer {
    shared: Arc<NodeInner>,
}

impl NodeServer {
    pub(crate) fn new(shared: Arc<NodeInner>) -> NodeServiceServer<Self> {
        NodeServiceServer::new(Self { shared })
    }
}

#[tonic::async_trait]
impl NodeService for NodeServer {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusAnswer>, Status> {
        let token = request.metadata().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or("");
        if !self.shared.credentials.accepts(token) {
            let reason = "the call carries no service token of this cluster; do both have the same secret?";
            return Err(Status::unauthenticated(reason));
        }
        let with_digests = request.into_inner().with_digests;
        Ok(Response::new(status::collect(&self.shared, with_digests)))
    }
}
