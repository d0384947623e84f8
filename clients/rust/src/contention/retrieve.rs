//! The task that looks who the owner is.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::sleep;

use super::contend::{next_pause, pauses};
use super::contender::MutexRetriever;
use super::life::Present;
use super::moment::Moment;
use super::options::{ContendOptions, Pacing};
use super::owner::MutexOwner;
use super::seen::owner_seen;
use super::store::MutexStore;
use crate::error::{Error, Result};

/// What an owner says of itself may change without anybody being told, and an end may be missed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two looks that nothing but the clock asks for.
const SHORTEST_LOOK: Duration = Duration::from_millis(20);

pub(super) struct Retrieval {
    pub(super) present: Present,
    pub(super) retriever: Arc<dyn MutexRetriever>,
    pub(super) store: Arc<dyn MutexStore>,
    pub(super) options: ContendOptions,
}

impl Retrieval {
    /// Looks until it is told to stop.
    pub(super) async fn run(self) -> Result<()> {
        let stop = self.present.stop.clone();
        stop.run_until_cancelled(self.look_for_ever()).await;
        self.present.end().await;
        Ok(())
    }

    async fn look_for_ever(&self) {
        let mut pauses = pauses();
        sleep(self.options.initial_delay).await;
        loop {
            let error = self.look_while_told().await;
            self.present.called(Some(&error));
            tracing::warn!(mutex = self.retriever.mutex(), %error, "the owner is not known for certain");
            sleep(next_pause(&mut pauses)).await;
        }
    }

    /// Looks whenever something changed or may have changed, until a call fails.
    async fn look_while_told(&self) -> Error {
        let mut changes = match self.options.pacing {
            Pacing::Push => self.store.changes(self.retriever.mutex()),
            Pacing::Poll => futures::stream::pending().boxed(),
        };
        loop {
            match self.store.holding(self.retriever.mutex()).await {
                Ok(holding) => {
                    let owner = owner_seen(holding, self.options.transition, Moment::now());
                    self.show(owner);
                    self.present.called(None);
                }
                Err(error) => return error,
            }
            let look_again = self.next_look();
            tokio::select! {
                change = changes.next() => match change {
                    Some(Ok(())) => skip_known(&mut changes),
                    Some(Err(error)) => return error,
                    // Ended without a word: watched again at the next turn.
                    None => changes = self.store.changes(self.retriever.mutex()),
                },
                () = sleep(look_again) => {}
            }
        }
    }

    /// Owners that are what they were are not published again, for listeners to states see only what is new.
    fn show(&self, owner: MutexOwner) {
        let known = self.present.owner();
        let is_same = owner.is_none() && known.is_none()
            || known.fencing_token() == owner.fencing_token()
                && known.metadata() == owner.metadata()
                && owner.ttl_at().since(known.ttl_at()) < SHORTEST_LOOK;
        if !is_same {
            self.present.publish(owner, None);
        }
    }

    fn next_look(&self) -> Duration {
        let owner = self.present.owner();
        let now = Moment::now();
        let ends_at = if owner.is_in_ttl_at(now) { owner.ttl_at() } else { owner.transition_at() };
        if owner.is_none() { LOOK_EVERY } else { ends_at.since(now).clamp(SHORTEST_LOOK, LOOK_EVERY) }
    }
}

/// One look serves for all changes that are there already.
fn skip_known(changes: &mut BoxStream<'static, Result<()>>) {
    while let Some(Some(Ok(()))) = futures::FutureExt::now_or_never(changes.next()) {}
}
