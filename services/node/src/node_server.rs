//! The node's status, over gRPC.

use std::sync::Arc;

use holdfast_proto::internal::node_service_server::{NodeService, NodeServiceServer};
use holdfast_proto::internal::{StatusAnswer, StatusRequest};
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
        self.shared.authorize(&request)?;
        let with_digests = request.into_inner().with_digests;
        Ok(Response::new(status::collect(&self.shared, with_digests)))
    }
}
