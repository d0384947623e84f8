//! Asking a shard for one page of events after another.

use std::time::Duration;

use holdfast_cluster::Application;
use holdfast_core::{AccountId, Answer, NamespaceRef, Path, Query, Refusal, Reply, Revision};
use tokio::time::{Instant, sleep};

use super::EventPage;
use super::stream::Source;
use crate::error::{ApiError, ApiResult};
use crate::service::ask::HasReply;
use crate::service::{CallContext, Inner, Service};

/// Events of one page.
const PAGE: u32 = 256;
/// How long the shard may be silent before the stream ends: longer than any failover should take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts to reach a shard that cannot be reached.
const PAUSE: Duration = Duration::from_millis(200);

/// A place in the history of a namespace, which moves on.
pub(super) struct Pages {
    service: Service,
    key: u32,
    namespace: NamespaceRef,
    prefix: Path,
    next_revision: Revision,
    start: Revision,
    /// What the opening brought.
    first: Option<EventPage>,
}

/// What a locks shard answered first, and where it was asked.
struct Opening {
    key: u32,
    namespace: NamespaceRef,
    reply: Reply,
}

impl HasReply for Opening {
    fn reply(&self) -> &Reply {
        &self.reply
    }
}

impl Pages {
    /// Finds the start, so that one that is too old is refused before the stream begins.
    pub(super) async fn open(
        service: Service,
        account: AccountId,
        name: &str,
        prefix: Path,
        from_revision: Option<Revision>,
        context: &CallContext,
    ) -> ApiResult<Self> {
        let router = &service.inner.router;
        let call = |key, namespace: NamespaceRef| {
            let query = question(&namespace, &prefix, from_revision);
            async move {
                let reply = router.query(Application::Locks, key, &query, context.deadline).await?;
                Ok(Opening { key, namespace, reply })
            }
        };
        let Opening { key, namespace, reply } = service.in_namespace(account, name, context.deadline, call).await?;
        let first = read(&reply, name)?;
        let next_revision = first.next_revision;
        let start = from_revision.unwrap_or(next_revision);
        Ok(Self { service, key, namespace, prefix, next_revision, start, first: Some(first) })
    }

    /// From where to go on when nothing of what is still to come was taken.
    pub(super) fn start(&self) -> Revision {
        self.start
    }
}

impl Source for Pages {
    /// As soon as there is a page with events; after a while also one without any, to say how far the stream has come.
    async fn next(&mut self) -> ApiResult<EventPage> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let give_up_at = Instant::now() + PATIENCE;
        loop {
            let query = question(&self.namespace, &self.prefix, Some(self.next_revision));
            let Inner { router, questions, .. } = &*self.service.inner;
            match questions.ask(router, self.key, query).await {
                Ok(reply) => {
                    let page = read(&reply, &self.namespace.name)?;
                    self.next_revision = page.next_revision;
                    return Ok(page);
                }
                // Most likely another replica is about to lead; nothing is lost meanwhile.
                Err(error) if Instant::now() < give_up_at => {
                    tracing::debug!(%error, "a watcher asks again");
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn question(namespace: &NamespaceRef, prefix: &Path, from_revision: Option<Revision>) -> Query {
    Query::Events { namespace: namespace.clone(), from_revision, prefix: prefix.clone(), limit: PAGE }
}

fn read(reply: &Reply, name: &str) -> ApiResult<EventPage> {
    match reply.outcome.clone() {
        Ok(Answer::Events { events, next_revision, .. }) => {
            Ok(EventPage { events: events.into_iter().map(Into::into).collect(), next_revision })
        }
        Err(Refusal::NamespaceNotFound) => Err(ApiError::namespace_not_found(name)),
        Err(refusal) => Err(refusal.into()),
        Ok(answer) => {
            tracing::error!(?answer, "a shard gave an answer of another kind than was asked for");
            Err(ApiError::internal("a shard gave an answer that this gateway does not understand"))
        }
    }
}
