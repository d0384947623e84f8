//! Asking a shard for one page of events after another.

use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, EventPage};
use holdfast_cluster::Application;
use holdfast_core::{AccountId, CommandError, NamespaceRef, Path, Query, Reply, Response, Revision};
use tokio::time::{Instant, sleep};

use super::stream::PageSource;
use crate::route_error::route_error;
use crate::service::Inner;
use crate::shard_call::AsReply;
use crate::{CallContext, Service};

/// Events of one page.
const PAGE_SIZE: u32 = 256;
/// How long the shard may be silent before the stream ends: longer than any failover should take.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Between two attempts to reach a shard that cannot be reached.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// A place in the history of a namespace, which moves on.
pub(super) struct EventCursor {
    service: Service,
    key: u32,
    namespace: NamespaceRef,
    prefix: Path,
    next_revision: Revision,
    start: Revision,
    /// What the opening brought.
    first_page: Option<EventPage>,
}

/// What a locks shard answered first, and where it was asked.
struct Opened {
    key: u32,
    namespace: NamespaceRef,
    reply: Reply,
}

impl AsReply for Opened {
    fn reply(&self) -> &Reply {
        &self.reply
    }
}

impl EventCursor {
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
            let query = events_query(&namespace, &prefix, from_revision);
            async move {
                let reply =
                    router.query(Application::Locks, key, &query, context.deadline).await.map_err(route_error)?;
                Ok(Opened { key, namespace, reply })
            }
        };
        let Opened { key, namespace, reply } = service.with_incarnation(account, name, context.deadline, call).await?;
        let first = parse_page(&reply, name)?;
        let next_revision = first.next_revision;
        let start = from_revision.unwrap_or(next_revision);
        Ok(Self { service, key, namespace, prefix, next_revision, start, first_page: Some(first) })
    }

    /// From where to go on when nothing of what is still to come was taken.
    pub(super) fn start(&self) -> Revision {
        self.start
    }
}

impl PageSource for EventCursor {
    /// As soon as there is a page with events; after a while also one without any, to say how far the stream has come.
    async fn next(&mut self) -> ApiResult<EventPage> {
        if let Some(first) = self.first_page.take() {
            return Ok(first);
        }
        let give_up_at = Instant::now() + MAX_WAIT;
        loop {
            let query = events_query(&self.namespace, &self.prefix, Some(self.next_revision));
            let Inner { router, event_poller, .. } = &*self.service.inner;
            match event_poller.poll(router, self.key, query).await {
                Ok(reply) => {
                    let page = parse_page(&reply, &self.namespace.name)?;
                    self.next_revision = page.next_revision;
                    return Ok(page);
                }
                // Most likely another replica is about to lead; nothing is lost meanwhile.
                Err(error) if Instant::now() < give_up_at => {
                    tracing::debug!(%error, "a watcher asks again");
                    sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(route_error(error)),
            }
        }
    }
}

fn events_query(namespace: &NamespaceRef, prefix: &Path, from_revision: Option<Revision>) -> Query {
    Query::Events { namespace: namespace.clone(), from_revision, prefix: prefix.clone(), limit: PAGE_SIZE }
}

fn parse_page(reply: &Reply, name: &str) -> ApiResult<EventPage> {
    match reply.outcome.clone() {
        Ok(Response::Events { events, next_revision, .. }) => {
            Ok(EventPage { events: events.into_iter().map(Into::into).collect(), next_revision })
        }
        Err(CommandError::NamespaceNotFound) => Err(ApiError::namespace_not_found(name)),
        Err(refusal) => Err(refusal.into()),
        Ok(answer) => {
            tracing::error!(?answer, "a shard gave an answer of another kind than was asked for");
            Err(ApiError::internal("a shard gave an answer that this gateway does not understand"))
        }
    }
}
