//! Sends outbox messages to their destination shards.

use holdfast_cluster::ShardMap;
use holdfast_core::outbox::OutboxMessage;
use holdfast_core::{Application, Response};
use holdfast_routing::{RetryPolicy, Router};
use tokio::time::{Duration, Instant};

/// Timeout of one delivery attempt.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Delivers outbox messages. Cheap to clone.
#[derive(Clone)]
pub(crate) struct OutboxSender {
    router: Router,
    map: std::sync::Arc<ShardMap>,
}

impl OutboxSender {
    pub(crate) fn new(router: Router, map: ShardMap) -> Self {
        Self { router, map: std::sync::Arc::new(map) }
    }

    /// Returns the router to the shards.
    pub(crate) fn router(&self) -> &Router {
        &self.router
    }

    /// Returns the destination shard of a message to this key.
    pub(crate) fn destination(&self, application: Application, shard_key: u32) -> &str {
        &self.map.shard_for(application, shard_key).id
    }

    /// Delivers one message. Returns true once the receiver has confirmed it together with all work that it awaits.
    pub(crate) async fn deliver(&self, message: &OutboxMessage) -> bool {
        let deadline = Instant::now() + DELIVERY_TIMEOUT;
        let sent = self
            .router
            .command(message.application, message.shard_key, &message.command, RetryPolicy::LaterTerm, deadline)
            .await;
        match sent {
            Ok(routed) => match routed.reply.outcome {
                Ok(Response::Done) => true,
                other => {
                    tracing::error!(?other, ?message, "unexpected reply to outbox message");
                    false
                }
            },
            Err(error) => {
                tracing::debug!(%error, "outbox delivery failed");
                false
            }
        }
    }

    pub(crate) async fn shutdown(&self) {
        self.router.shutdown().await;
    }
}
