//! The live events of a namespace.
//!
//! One subscription per namespace receives the latest events, and all its watchers read them, each from its own position.
//! A watcher that is behind them queries the history, page after page. Nothing is buffered for a slow reader: it gets the
//! next page once it has taken the last one.

mod cursor;
mod feed;
mod feed_memory;
mod stream;
mod watcher_limiter;

use holdfast_api::{ApiResult, WatchEvents, validate};
use holdfast_types::{Event, Kinds, Path, Scopes, limit};

use crate::access_watch::AccessWatch;
use crate::admission::Share;
use crate::{AuthContext, CallContext, Service};
use cursor::EventCursor;

pub(crate) use feed::EventFeeds;
pub use stream::EventStream;
pub(crate) use watcher_limiter::WatcherLimiter;

/// Maximum watchers of one account at one gateway.
pub const MAX_WATCHERS: usize = limit::MAX_WATCHERS as usize;

/// Which events a watcher gets.
#[derive(Clone, Debug)]
struct Selection {
    /// Only of this path, or of one above or below; the empty path matches all.
    prefix: Path,
    /// Only about these kinds of things.
    kinds: Kinds,
}

impl Selection {
    fn matches(&self, event: &Event) -> bool {
        event.concerns(&self.prefix, self.kinds)
    }
}

impl Service {
    /// Watches a namespace. The stream ends when the caller loses access.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, `REVISION_COMPACTED` when the start is too old, `RATE_LIMITED` when the account has too
    /// many watchers here, besides those of every call.
    pub async fn watch_events(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: WatchEvents,
    ) -> ApiResult<EventStream> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        tenant.check_namespace("namespace", &request.namespace)?;
        let selection =
            Selection { prefix: validate::prefix(&request.prefix, tenant.limits())?, kinds: request.kinds()? };
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let permit = self.inner.watchers.acquire(tenant.account.id)?;
        let held = self.inner.deferred_calls.acquire(Share::from(tenant.account), 0)?;
        let standing = AccessWatch::new(self.clone(), caller.clone());
        let from = request.from_revision;
        let pages =
            EventCursor::open(self.clone(), tenant.account, &request.namespace, selection, from, context).await?;
        Ok(EventStream::start(pages.start(), pages, standing.wait_revoked(), (permit, held), self.stopping()))
    }
}
