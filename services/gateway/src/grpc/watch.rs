//! `LocksService.Watch`: the events of a namespace, as a stream of messages.

use std::pin::Pin;
use std::vec::IntoIter;

use futures::{Stream, stream};
use holdfast_api::v1::events;
use holdfast_api::{EventInfo, WatchEvents};
use holdfast_backend::{EventStream, Service};
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{AuthenticatedCall, status};

/// The response stream of a watch.
pub(super) type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::Event, Status>> + Send>>;

pub(super) async fn watch(
    service: &Service,
    request: Request<v1::WatchRequest>,
) -> Result<Response<WatchStream>, Status> {
    let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(service, request).await?;
    let v1::WatchRequest { namespace, prefix, from_revision, kinds } = message;
    let request = WatchEvents { namespace, prefix, from_revision, kinds };
    let stream = service.watch_events(&caller, &context, request).await.map_err(status)?;
    Ok(Response::new(Box::pin(stream::unfold(Some(EventFeed::new(stream)), next_event))))
}

/// Converts an event stream to messages.
struct EventFeed {
    events: EventStream,
    page: IntoIter<EventInfo>,
}

impl EventFeed {
    fn new(events: EventStream) -> Self {
        Self { events, page: Vec::new().into_iter() }
    }

    async fn next(&mut self) -> Result<v1::Event, Status> {
        loop {
            if let Some(event) = self.page.next() {
                return Ok(events::event(event));
            }
            self.page = self.events.next().await.map_err(status)?.events.into_iter();
        }
    }
}

async fn next_event(feed: Option<EventFeed>) -> Option<(Result<v1::Event, Status>, Option<EventFeed>)> {
    let mut feed = feed?;
    match feed.next().await {
        Ok(event) => Some((Ok(event), Some(feed))),
        Err(status) => Some((Err(status), None)),
    }
}
