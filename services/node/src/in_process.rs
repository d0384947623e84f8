//! A node and its gateway in one process: connections through memory instead of sockets.

use futures::future::BoxFuture;
use futures::stream;
use holdfast_rpc::{ByteStream, ConnectError, Dialer, Incoming};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use crate::node::Node;
use crate::serve::serve_connections;

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
    connections: mpsc::Receiver<DuplexStream>,
}

/// Creates a connected dialer and listener.
pub fn in_process() -> (InProcessDialer, InProcessListener) {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    (InProcessDialer { connections: sender }, InProcessListener { connections: receiver })
}

impl Dialer for InProcessDialer {
    fn connect(&self, _address: &str) -> BoxFuture<'static, Result<ByteStream, ConnectError>> {
        let connections = self.connections.clone();
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
            let sent = connections.send(theirs).await;
            sent.map_err(|_| ConnectError::refused("the node has stopped"))?;
            Ok(Box::new(ours) as ByteStream)
        })
    }
}

impl InProcessListener {
    /// Serves the node to the dialer's connections while the future is polled.
    pub async fn serve(self, node: &Node) {
        let accepting = stream::unfold(self.connections, |mut connections| async {
            let stream = connections.recv().await?;
            Some((Incoming { stream: Box::new(stream), peer: (), has_cert: true }, connections))
        });
        serve_connections(node, accepting).await;
    }
}
