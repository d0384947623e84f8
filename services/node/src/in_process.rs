//! A node and its gateway in one process: connections through memory instead of sockets.

use std::io;

use axum::serve::Listener;
use futures::future::BoxFuture;
use holdfast_routing::{ConnectError, Dialer};
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::sync::{Mutex, mpsc};
use tonic::transport::{Channel, Endpoint, Uri};

use crate::node::Node;

/// Bytes that one side may write before the other reads them.
const BUFFER_BYTES: usize = 256 * 1024;
/// Connections in the accept backlog.
const BACKLOG: usize = 16;

/// Connects to this process's node, regardless of the address.
pub struct InProcessDialer {
    connections: mpsc::Sender<DuplexStream>,
}

/// Accepts the dialer's connections.
pub struct InProcessListener {
    connections: Mutex<mpsc::Receiver<DuplexStream>>,
}

/// Creates a connected dialer and listener.
pub fn in_process() -> (InProcessDialer, InProcessListener) {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    (InProcessDialer { connections: sender }, InProcessListener { connections: Mutex::new(receiver) })
}

impl Dialer for InProcessDialer {
    fn connect(&self, _address: &str) -> BoxFuture<'static, Result<Channel, ConnectError>> {
        let connections = self.connections.clone();
        Box::pin(async move {
            // The name is never resolved: the connector below makes the connection.
            let endpoint = Endpoint::from_static("http://node.in-process");
            let connector = tower::service_fn(move |_: Uri| {
                let connections = connections.clone();
                async move {
                    let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
                    let sent = connections.send(theirs).await;
                    sent.map_err(|_| io::Error::new(io::ErrorKind::ConnectionRefused, "the node has stopped"))?;
                    Ok::<_, io::Error>(TokioIo::new(ours))
                }
            });
            endpoint.connect_with_connector(connector).await.map_err(|error| ConnectError::new(error.to_string()))
        })
    }
}

impl Listener for InProcessListener {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.connections.lock().await.recv().await {
            Some(connection) => (connection, ()),
            // No dialer is left, so no further connection arrives.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

impl InProcessListener {
    /// Serves the node's gRPC to the dialer's connections while the future is polled.
    ///
    /// # Errors
    /// When serving fails.
    pub async fn serve(self, node: &Node) -> io::Result<()> {
        let app = node.routes().into_axum_router();
        std::future::IntoFuture::into_future(axum::serve(self, app)).await
    }
}
