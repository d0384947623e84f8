//! Tracks the latest connection of each peer node, its process, and whether it is open.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The latest connection of each peer node. A newer one closes its predecessor: a peer maintains one connection, so the
/// earlier one is dead, even if TCP has not noticed yet.
pub(crate) struct InboundConnections {
    closing: CancellationToken,
    latest: Mutex<HashMap<String, Latest>>,
}

struct Latest {
    /// The process that opened it.
    run: u64,
    ended: CancellationToken,
}

impl InboundConnections {
    /// Creates the registry; all connections end with `closing`.
    pub(crate) fn new(closing: CancellationToken) -> Self {
        Self { closing, latest: Mutex::default() }
    }

    /// Registers the connection of a verified peer and closes its earlier one. The returned token closes this
    /// connection; cancel it when the connection ends by itself.
    pub(crate) fn register(&self, node: &str, run: u64) -> CancellationToken {
        let ended = self.closing.child_token();
        let latest = Latest { run, ended: ended.clone() };
        if let Some(earlier) = self.latest.lock().insert(node.to_owned(), latest) {
            earlier.ended.cancel();
        }
        ended
    }

    /// Returns true if a connection opened by this run of the peer is open, as far as is known: the run is then alive.
    pub(crate) fn is_connected(&self, node: &str, run: u64) -> bool {
        self.connected(node, run).is_some()
    }

    /// Waits until no connection of this run of the peer is open.
    pub(crate) async fn wait_disconnected(&self, node: &str, run: u64) {
        while let Some(ended) = self.connected(node, run) {
            ended.cancelled().await;
        }
    }

    fn connected(&self, node: &str, run: u64) -> Option<CancellationToken> {
        let latest = self.latest.lock();
        let latest = latest.get(node).filter(|latest| latest.run == run && !latest.ended.is_cancelled());
        latest.map(|latest| latest.ended.clone())
    }
}
