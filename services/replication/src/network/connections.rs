//! Which connection of a peer node is its latest.

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

    /// A peer that was checked has connected. Ends its earlier connection; the token ends this one.
    pub(crate) fn register(&self, node: &str) -> CancellationToken {
        let token = self.closing.child_token();
        if let Some(earlier) = self.latest.lock().insert(node.to_owned(), token.clone()) {
            earlier.cancel();
        }
        token
    }
}
