//! Events that are rare beside the messages and replies of a connection. Their futures are made once, and polled only
//! after they were woken: a connection handles many thousand messages for one of them.

use std::future::pending;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use holdfast_api::ApiResult;
use tokio_util::sync::CancellationToken;

use super::channel::OutboundQueue;
use super::life::SessionLife;
use crate::AuthContext;
use crate::access_watch::AccessWatch;

/// A rare event of a connection.
pub(super) enum RareEvent {
    /// The process stops.
    Stop,
    /// The client disconnected.
    ClientGone,
    /// The access of the caller was checked.
    AccessChecked(ApiResult<AuthContext>),
    /// The session may have ended.
    LifeOver,
}

/// Yields the rare events of a connection.
pub(super) struct RareEvents<'a>(FuturesUnordered<BoxFuture<'a, Fired>>);

/// An event, and after a check what makes the next one.
type Fired = (RareEvent, Option<Box<AccessWatch>>);

impl<'a> RareEvents<'a> {
    pub(super) fn new(
        stopping: CancellationToken,
        outgoing: &'a OutboundQueue,
        access_watch: AccessWatch,
        life: Option<SessionLife>,
    ) -> Self {
        let events: FuturesUnordered<BoxFuture<'a, Fired>> = FuturesUnordered::new();
        events.push(stopping.cancelled_owned().map(|()| (RareEvent::Stop, None)).boxed());
        events.push(outgoing.closed().map(|()| (RareEvent::ClientGone, None)).boxed());
        events.push(check_access(Box::new(access_watch)).boxed());
        if let Some(life) = life {
            events.push(life.over().map(|()| (RareEvent::LifeOver, None)).boxed());
        }
        Self(events)
    }

    /// Returns the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> RareEvent {
        let Some((event, access_watch)) = self.0.next().await else { return pending().await };
        if let Some(access_watch) = access_watch {
            self.0.push(check_access(access_watch).boxed());
        }
        event
    }
}

/// Checks the access of the caller when a check is due; soon again after an inconclusive check.
async fn check_access(mut access_watch: Box<AccessWatch>) -> Fired {
    access_watch.next_check().await;
    let checked = access_watch.check().await;
    if checked.is_err() {
        access_watch.retry_soon();
    }
    (RareEvent::AccessChecked(checked), Some(access_watch))
}
