//! `LocksService.Watch`: what happens in a namespace, as a stream of messages.

use std::pin::Pin;
use std::vec::IntoIter;

use futures::{Stream, stream};
use holdfast_core::{EventKind, Mode};
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{AuthenticatedCall, convert, status};
use crate::events::{EventInfo, EventStream, WatchEvents};
use crate::service::Service;

/// The answer of a watch.
pub(super) type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::Event, Status>> + Send>>;

pub(super) async fn watch(
    service: &Service,
    request: Request<v1::WatchRequest>,
) -> Result<Response<WatchStream>, Status> {
    let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(service, request).await?;
    let v1::WatchRequest { namespace, prefix, from_revision } = message;
    let request = WatchEvents { namespace, prefix, from_revision };
    let events = service.watch_events(&caller, &context, request).await.map_err(status)?;
    Ok(Response::new(Box::pin(stream::unfold(Some(EventFeed::new(events)), next_event))))
}

/// A stream on its way to the wire.
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
                return Ok(event_message(event));
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

fn event_message(event: EventInfo) -> v1::Event {
    let claims = event.claims.into_iter();
    v1::Event {
        revision: event.revision,
        r#type: kind(event.kind).into(),
        at: Some(convert::instant(event.at)),
        process_id: event.process_id,
        session_id: event.session_id,
        holder: event.holder,
        fencing_token: event.fencing_token,
        claims: claims.map(|claim| v1::event::Claim { path: claim.path, mode: mode(claim.mode).into() }).collect(),
    }
}

fn mode(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Read => v1::Mode::Read,
        Mode::Write => v1::Mode::Write,
    }
}

fn kind(kind: EventKind) -> v1::event::Type {
    match kind {
        EventKind::Acquired => v1::event::Type::Acquired,
        EventKind::Released => v1::event::Type::Released,
        EventKind::Expired => v1::event::Type::Expired,
        EventKind::Deleted => v1::event::Type::Deleted,
        EventKind::Reset => v1::event::Type::Reset,
        EventKind::SessionOpened => v1::event::Type::SessionOpened,
        EventKind::SessionEnded => v1::event::Type::SessionEnded,
    }
}
