//! Questions from one replica of a group to another.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::internal::Kind;
use serde::Serialize;
use tokio::time::timeout;

use crate::group::Group;
use crate::network::{PeerConnection, PeerRequest};
use crate::types::encode;

impl Group {
    /// Returns what another replica answers; `None` if it does not within this time. A release that does not know the
    /// question answers with an error.
    pub(crate) async fn query_peer(
        &self,
        other: u64,
        kind: Kind,
        question: &impl Serialize,
        within: Duration,
    ) -> Option<Bytes> {
        let connection = self.connection_to(other)?;
        let (from, body) = (self.replica(), encode(question).into());
        let answer = connection.send(PeerRequest { from, to: other, kind, stream: 0, clock_ms: 0, body });
        timeout(within, answer).await.ok()?.ok()?.ok()
    }

    /// Returns the connection to that replica's node.
    pub(crate) fn connection_to(&self, replica: u64) -> Option<Arc<PeerConnection>> {
        self.peer_connections().get(self.locations().get(&replica)?)
    }
}
