//! The internal gRPC service, called by gateways and by nodes that deliver their outbox.

use std::sync::Arc;

use holdfast_proto::internal::node_service_server::{NodeService, NodeServiceServer};
use holdfast_proto::internal::{AnswerFrame, CallFrame, StatusAnswer, StatusRequest};
use holdfast_replication::Credentials;
use holdfast_supervise::spawn_temporary;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::node::NodeInner;
use crate::{calls, status};

/// Largest frame accepted from a gateway, in bytes.
const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;
/// Frames buffered ahead of the transport.
const MAX_BUFFERED_FRAMES: usize = 16;

pub(crate) struct NodeServer {
    shared: Arc<NodeInner>,
}

impl NodeServer {
    pub(crate) fn new(shared: Arc<NodeInner>) -> NodeServiceServer<Self> {
        NodeServiceServer::new(Self { shared })
            .max_decoding_message_size(MAX_FRAME_BYTES)
            .max_encoding_message_size(MAX_FRAME_BYTES)
    }

    fn authorize(&self, metadata: &MetadataMap) -> Result<(), Status> {
        if self.shared.credentials.accepts(text(metadata, "authorization").unwrap_or("")) {
            return Ok(());
        }
        Err(Status::unauthenticated("the call carries no service token of this cluster; do both have the same secret?"))
    }
}

fn text<'a>(metadata: &'a MetadataMap, key: &str) -> Option<&'a str> {
    metadata.get(key).and_then(|value| value.to_str().ok())
}

#[tonic::async_trait]
impl NodeService for NodeServer {
    type ConnectStream = ReceiverStream<Result<AnswerFrame, Status>>;

    async fn connect(&self, request: Request<Streaming<CallFrame>>) -> Result<Response<Self::ConnectStream>, Status> {
        self.authorize(request.metadata())?;
        let caller = text(request.metadata(), "holdfast-caller").map(str::to_owned);
        let number = text(request.metadata(), "holdfast-connection").and_then(|number| number.parse().ok());
        let (Some(caller), Some(number)) = (caller, number) else {
            return Err(Status::invalid_argument("metadata holdfast-caller and holdfast-connection are required"));
        };
        let superseded = self.shared.connections.register(&caller, number).map_err(Status::failed_precondition)?;
        let (out, stream) = mpsc::channel(MAX_BUFFERED_FRAMES);
        let shared = Arc::clone(&self.shared);
        spawn_temporary("connection", async move {
            calls::serve_connection(Arc::clone(&shared), request.into_inner(), out, superseded).await;
            shared.connections.ended(&caller, number);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusAnswer>, Status> {
        self.authorize(request.metadata())?;
        let with_digests = request.into_inner().with_digests;
        Ok(Response::new(status::collect(&self.shared, with_digests)))
    }
}
