//! Proposes the cancels of requests whose callers left, many in one command.

use bytes::Bytes;
use holdfast_core::codec;
use tokio::time::{Duration, Instant};

use super::LeaderContext;

/// Timeout of the entry with the cancels.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs for one leadership. While a command is in flight, further cancels gather for the next one.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref shard, leads, .. } = leading;
    loop {
        let mut batch = shard.machine.cancels().next_batch(leads.term).await;
        let bytes = Bytes::from(codec::encode(&batch.take_command()));
        let proposed = shard.propose_own(leads.term, bytes, Instant::now() + ENTRY_TIMEOUT).await;
        if let Err(error) = &proposed {
            tracing::debug!(shard = shard.id, %error, "cancel of attempts failed");
        }
        batch.finish(proposed.is_ok());
    }
}
