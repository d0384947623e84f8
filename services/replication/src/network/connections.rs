//! Which connection of a peer node is its latest, and whether it is there still.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The latest connection of each peer node. A newer one ends the one before it: a peer keeps one connection up, so the
/// earlier one is dead, even where TCP does not know yet.
pub(crate) struct Connections {
    closing: CancellationToken,
    latest: Mutex<HashMap<String, CancellationToken>>,
}

impl Connections {
    /// All connections end with `closing`.
    pub(crate) fn new(closing: CancellationToken) -> Self {
        Self { closing, latest: Mutex::default() }
    }

    /// A peer that was checked has connected. Ends its earlier connection; the token ends this one, and is to be cancelled
    /// when it has ended by itself.
    pub(crate) fn register(&self, node: &str) -> CancellationToken {
        let token = self.closing.child_token();
        if let Some(earlier) = self.latest.lock().insert(node.to_owned(), token.clone()) {
            earlier.cancel();
        }
        token
    }

    /// Whether a connection that the peer made is there, for all that is known: its process lives then.
    pub(crate) fn is_connected(&self, node: &str) -> bool {
        self.connected(node).is_some()
    }

    /// Until no connection is there that the peer made.
    pub(crate) async fn until_none(&self, node: &str) {
        while let Some(ended) = self.connected(node) {
            ended.cancelled().await;
        }
    }

    fn connected(&self, node: &str) -> Option<CancellationToken> {
        self.latest.lock().get(node).filter(|ended| !ended.is_cancelled()).cloned()
    }
}
