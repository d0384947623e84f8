//! The task that observes the owner.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use holdfast_client::{Error, Result};
use tokio::time::sleep;

use crate::contend::{backoff, next_backoff};
use crate::contender::MutexRetriever;
use crate::lifecycle::TaskContext;
use crate::options::{ContendOptions, Pacing};
use crate::owner::MutexOwner;
use crate::owner_view::owner_from_holding;
use crate::store::MutexStore;
use crate::timestamp::Timestamp;

/// An owner's metadata may change without a notification, and an end may be missed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two polls that only the clock triggers.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct Retrieval {
    pub(crate) context: TaskContext,
    pub(crate) retriever: Arc<dyn MutexRetriever>,
    pub(crate) store: Arc<dyn MutexStore>,
    pub(crate) options: ContendOptions,
}

impl Retrieval {
    /// Observes until it is asked to stop.
    pub(crate) async fn run(self) -> Result<()> {
        let stop = self.context.stop.clone();
        stop.run_until_cancelled(self.poll_forever()).await;
        self.context.end().await;
        Ok(())
    }

    async fn poll_forever(&self) {
        let mut pauses = backoff();
        sleep(self.options.initial_delay).await;
        loop {
            let error = self.poll_until_error().await;
            self.context.record_result(Some(&error));
            tracing::warn!(mutex = self.retriever.mutex(), %error, "the owner is not known for certain");
            sleep(next_backoff(&mut pauses)).await;
        }
    }

    /// Polls whenever something changed or may have changed, until a call fails.
    async fn poll_until_error(&self) -> Error {
        let mut changes = match self.options.pacing {
            Pacing::Push => self.store.changes(self.retriever.mutex()),
            Pacing::Poll => futures::stream::pending().boxed(),
        };
        loop {
            match self.store.holding(self.retriever.mutex()).await {
                Ok(holding) => {
                    let owner = owner_from_holding(holding, self.options.transition, Timestamp::now());
                    self.publish_if_changed(owner);
                    self.context.record_result(None);
                }
                Err(error) => return error,
            }
            let look_again = self.next_poll_delay();
            tokio::select! {
                change = changes.next() => match change {
                    Some(Ok(())) => drain_ready(&mut changes),
                    Some(Err(error)) => return error,
                    // The stream ended without an error: subscribe again.
                    None => changes = self.store.changes(self.retriever.mutex()),
                },
                () = sleep(look_again) => {}
            }
        }
    }

    /// Publishes an owner unless it is unchanged, so that subscribers to states only see changes.
    fn publish_if_changed(&self, owner: MutexOwner) {
        let known = self.context.owner();
        let is_same = owner.is_none() && known.is_none()
            || known.fencing_token() == owner.fencing_token()
                && known.metadata() == owner.metadata()
                && owner.ttl_at().since(known.ttl_at()) < MIN_POLL_INTERVAL;
        if !is_same {
            self.context.publish(owner, None);
        }
    }

    fn next_poll_delay(&self) -> Duration {
        let owner = self.context.owner();
        let now = Timestamp::now();
        let ends_at = if owner.is_in_ttl_at(now) { owner.ttl_at() } else { owner.transition_at() };
        if owner.is_none() { POLL_INTERVAL } else { ends_at.since(now).clamp(MIN_POLL_INTERVAL, POLL_INTERVAL) }
    }
}

/// One poll serves all changes that are already queued.
fn drain_ready(changes: &mut BoxStream<'static, Result<()>>) {
    while let Some(Some(Ok(()))) = futures::FutureExt::now_or_never(changes.next()) {}
}
