//! Fetches the events of a namespace from its shard, page after page.

use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, EventPage};
use holdfast_cluster::Application;
use holdfast_types::{AccountId, CommandError, NamespaceRef, Path, Query, Reply, Response, Revision};
use tokio::time::{Instant, sleep};

use super::stream::PageSource;
use crate::route_error::route_error;
use crate::service::Inner;
use crate::shard_call::AsReply;
use crate::{CallContext, Service};

/// Events in a page.
const PAGE_SIZE: u32 = 256;
/// How long the shard may fail to reply before the stream ends: longer than any failover should take.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Delay between two attempts while the shard is unreachable.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// A position in the history of a namespace that advances with each page.
pub(super) struct EventCursor {
    service: Service,
    key: u32,
    namespace: NamespaceRef,
    prefix: Path,
    next_revision: Revision,
    start: Revision,
    /// The page of the first reply.
    first_page: Option<EventPage>,
}

/// The first reply of a locks shard, and the shard that sent it.
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
    /// Finds the start, so that a start that is too old is rejected before the stream begins.
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

    /// Returns the revision from which to continue if the reader took none of the coming events.
    pub(super) fn start(&self) -> Revision {
        self.start
    }
}

impl PageSource for EventCursor {
    /// Returns once there is a page with events. After a while it also returns a page without any, to report how far
    /// the stream has advanced.
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
                // Most likely another replica is about to lead; no events are lost meanwhile.
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
