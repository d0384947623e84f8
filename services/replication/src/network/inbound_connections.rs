//! Which connection of a peer node is its latest, of which process, and whether it is there still.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The latest connection of each peer node. A newer one ends the one before it: a peer keeps one connection up, so the
/// earlier one is dead, even where TCP does not know yet.
pub(crate) struct InboundConnections {
    closing: CancellationToken,
    latest: Mutex<HashMap<String, Latest>>,
}

struct Latest {
    /// The process that made it.
    run: u64,
    ended: CancellationToken,
}

impl InboundConnections {
    /// All connections end with `closing`.
    pub(crate) fn new(closing: CancellationToken) -> Self {
        Self { closing, latest: Mutex::default() }
    }

    /// A peer that was checked has connected. Ends its earlier connection; the token ends this one, and is to be cancelled
    /// when it has ended by itself.
    pub(crate) fn register(&self, node: &str, run: u64) -> CancellationToken {
        let ended = self.closing.child_token();
        let latest = Latest { run, ended: ended.clone() };
        if let Some(earlier) = self.latest.lock().insert(node.to_owned(), latest) {
            earlier.ended.cancel();
        }
        ended
    }

    /// Whether a connection that this run of the peer made is there, for all that is known: it lives then.
    pub(crate) fn is_connected(&self, node: &str, run: u64) -> bool {
        self.connected(node, run).is_some()
    }

    /// Until no connection is there that this run of the peer made.
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
