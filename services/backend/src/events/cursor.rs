//! The position of one watcher in the events of a namespace.

use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, EventPage};
use holdfast_cluster::Application;
use holdfast_types::{Account, CommandError, NamespaceRef, Query, Reply, Response, Revision};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::Selection;
use super::feed::LatestEvents;
use super::stream::PageSource;
use crate::admission::{Admission, AdmissionRequest, Priority, Share};
use crate::route_error::route_error;
use crate::service::Inner;
use crate::shard_call::AsReply;
use crate::{CallContext, Service};

/// Events in a page.
const PAGE_SIZE: u32 = 256;
/// How long the shard may fail to reply before the stream ends: longer than any failover should take.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(30);
/// Delay between two attempts while the shard is unreachable.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// How long one query may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time a watcher without events learns how far the stream has advanced.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A position in the history of a namespace that advances with each page. It reads the feed that all watchers share,
/// and behind that it queries the history.
pub(super) struct EventCursor {
    service: Service,
    share: Share,
    key: u32,
    namespace: NamespaceRef,
    selection: Selection,
    next_revision: Revision,
    start: Revision,
    /// The page of the first reply.
    first_page: Option<EventPage>,
    latest: watch::Receiver<LatestEvents>,
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
        account: &Account,
        name: &str,
        selection: Selection,
        from_revision: Option<Revision>,
        context: &CallContext,
    ) -> ApiResult<Self> {
        let (backend, share) = (&service, Share::from(account));
        let call = |key, namespace: NamespaceRef| {
            let query = events_query(&namespace, &selection, from_revision);
            async move {
                let call = backend.call_with_permit(share, Application::Locks, key, query.into(), context);
                Ok(Opened { key, namespace, reply: call.await?.reply })
            }
        };
        let Opened { key, namespace, reply } = service.with_incarnation(account, name, context.deadline, call).await?;
        let first = parse_page(&reply, name)?;
        let next_revision = first.next_revision;
        // Never above the place that the answer names: whoever resumed there would miss what comes in between.
        let start = from_revision.map_or(next_revision, |from| from.min(next_revision));
        let latest = service.inner.event_feeds.watch(&service.inner.router, key, &namespace);
        Ok(Self { service, share, key, namespace, selection, next_revision, start, first_page: Some(first), latest })
    }

    /// Returns the revision from which to continue if the reader took none of the coming events.
    pub(super) fn start(&self) -> Revision {
        self.start
    }

    /// Queries the events that the feed no longer has.
    async fn query(&self) -> ApiResult<EventPage> {
        let Inner { router, admission, .. } = &*self.service.inner;
        let request = AdmissionRequest { share: self.share, priority: Priority::Patient, bytes: 0 };
        let query = events_query(&self.namespace, &self.selection, Some(self.next_revision));
        let give_up_at = Instant::now() + MAX_WAIT;
        loop {
            let asked = async {
                // From now on: the permit may have come late.
                let deadline = Instant::now() + QUERY_TIMEOUT;
                router.query(Application::Locks, self.key, &query, deadline).await.map_err(route_error)
            };
            let answered = match admission.acquire(request, give_up_at).await {
                Ok(permit) => Admission::run(permit, false, None, asked).await,
                Err(error) => Err(error),
            };
            let error: ApiError = match answered {
                // Its leader has not begun the epoch of the lock table, or too many wait for that.
                Ok(Reply { outcome: Err(busy @ CommandError::Busy(_)), .. }) => busy.into(),
                Ok(reply) => return parse_page(&reply, &self.namespace.name),
                // Most likely another replica is about to lead; no events are lost meanwhile.
                Err(error) => error,
            };
            if Instant::now() >= give_up_at {
                return Err(error);
            }
            tracing::debug!(%error, "event query failed; retrying");
            sleep(RETRY_DELAY).await;
        }
    }
}

impl PageSource for EventCursor {
    /// Returns once there is a page with events. After a while it also returns a page without any, to report how far
    /// the stream has advanced.
    async fn next(&mut self) -> ApiResult<EventPage> {
        if let Some(first) = self.first_page.take() {
            return Ok(first);
        }
        let heartbeat_at = Instant::now() + HEARTBEAT;
        loop {
            let latest =
                self.latest.borrow_and_update().page(self.next_revision, &self.selection, PAGE_SIZE as usize)?;
            let is_behind = latest.is_none();
            let page = match latest {
                Some((events, next_revision)) => {
                    EventPage { events: events.into_iter().map(Into::into).collect(), next_revision }
                }
                None => self.query().await?,
            };
            self.next_revision = page.next_revision;
            if !page.events.is_empty() || Instant::now() >= heartbeat_at {
                return Ok(page);
            }
            if is_behind {
                // Many queries may follow; other tasks go first.
                tokio::task::yield_now().await;
                continue;
            }
            if let Ok(Err(_)) = timeout_at(heartbeat_at, self.latest.changed()).await {
                return Err(ApiError::internal("the stream ended by a fault of the service"));
            }
        }
    }
}

fn events_query(namespace: &NamespaceRef, selection: &Selection, from_revision: Option<Revision>) -> Query {
    let Selection { prefix, kinds } = selection.clone();
    let namespace = namespace.clone();
    Query::Events { namespace, from_revision, prefix, kinds, limit: PAGE_SIZE }
}

fn parse_page(reply: &Reply, name: &str) -> ApiResult<EventPage> {
    match reply.outcome.clone() {
        Ok(Response::Events { events, next_revision, .. }) => {
            Ok(EventPage { events: events.into_iter().map(Into::into).collect(), next_revision })
        }
        Err(CommandError::NamespaceNotFound) => Err(ApiError::namespace_not_found(name)),
        Err(refusal) => Err(refusal.into()),
        Ok(answer) => {
            tracing::error!(?answer, "unexpected kind of response from shard");
            Err(ApiError::internal("a shard gave an answer that this gateway does not understand"))
        }
    }
}
