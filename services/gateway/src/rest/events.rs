//! `/v1/namespaces/{namespace}/events`: events of a namespace, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;
use std::vec::IntoIter;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures::stream;
use holdfast_api::{ApiError, ApiResult, EventInfo, WatchEvents};
use holdfast_backend::{EventStream, Service, count_refusal};
use holdfast_types::Revision;
use tokio::time::{Instant, timeout_at};

use super::call::AuthenticatedCall;
use super::openapi::{CommonErrors, HistoryErrors, NamespaceErrors, Problems, RateErrors};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::{FromQuery, Parameters, Query};

/// Time between comments in an idle stream, so that no proxy closes it.
const COMMENT_INTERVAL: Duration = Duration::from_secs(15);
/// The header of a reader that resumes: the `id` of its last event.
const LAST_EVENT_ID: &str = "last-event-id";
/// Revisions stay below this.
const REVISION_LIMIT: Revision = 1 << 53;

#[derive(Debug)]
pub(super) struct WatchQuery {
    prefix: Vec<String>,
    from_revision: Option<Revision>,
    kinds: Vec<String>,
}

impl FromQuery for WatchQuery {
    fn from_query(parameters: &mut Parameters) -> ApiResult<Self> {
        let prefix = parameters.all("prefix");
        let from_revision =
            parameters.one("from_revision")?.map(|text| revision("from_revision", &text)).transpose()?;
        Ok(Self { prefix, from_revision, kinds: parameters.list("kinds")? })
    }
}

/// Watch the events of a namespace, as server-sent events
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/events", tag = "Events", operation_id = "watch_events",
    security(("key" = ["locks:read"])), params(
        ("prefix" = Option<Vec<String>>, Query, description = "A path: its segments in order, one in each parameter."),
        ("from_revision" = Option<u64>, Query, description = "The first revision, inclusive; if absent, the stream starts now."),
        ("kinds" = Option<String>, Query, description = "What the events are about, separated by commas: `locks` (with sessions), `semaphores`, `pools`, `latches`, `barriers`. Locks when absent."),
        ("Last-Event-ID" = Option<u64>, Header, description = "Go on after this one.")),
    responses((status = 200, description = "Events without end: `id` is the revision, `event` the type, `data` an Event.",
        body = EventInfo, content_type = "text/event-stream"), Problems<(CommonErrors, RateErrors, NamespaceErrors, HistoryErrors)>))]
pub(super) async fn watch(
    State(service): State<Service>,
    call: AuthenticatedCall,
    headers: HeaderMap,
    PathParams(namespace): PathParams<String>,
    Query(query): Query<WatchQuery>,
) -> Result<impl IntoResponse, Problem> {
    // A browser that reconnects requests the same address again, with the id of its last event: that takes precedence.
    let from_revision = after_last_event(&headers)?.or(query.from_revision);
    let request = WatchEvents { namespace, prefix: query.prefix, from_revision, kinds: query.kinds };
    let events = service.watch_events(&call.caller, &call.context, request).await?;
    let stream = Sse::new(stream::unfold(EventFeed::new(events), EventFeed::step));
    Ok(([(CACHE_CONTROL, "no-store")], stream))
}

fn after_last_event(headers: &HeaderMap) -> ApiResult<Option<Revision>> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let id = revision(LAST_EVENT_ID, value.to_str().unwrap_or_default())?;
    Ok(Some(id + 1))
}

fn revision(field: &'static str, text: &str) -> ApiResult<Revision> {
    let number = text.parse().ok().filter(|number| *number < REVISION_LIMIT);
    number.ok_or_else(|| ApiError::invalid(field, format!("{field}: must be a revision, a number below 2^53")))
}

/// Converts an event stream to server-sent events.
struct EventFeed {
    events: EventStream,
    page: IntoIter<EventInfo>,
    comment_at: Instant,
    ended: bool,
}

impl EventFeed {
    /// The first comment is sent at once: it reports that the stream is open, and its start.
    fn new(events: EventStream) -> Self {
        Self { events, page: Vec::new().into_iter(), comment_at: Instant::now(), ended: false }
    }

    async fn step(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.ended {
            return None;
        }
        let shown = self.next().await;
        self.comment_at = Instant::now() + COMMENT_INTERVAL;
        Some((Ok(shown), self))
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.page.next() {
                return to_sse_event(&event);
            }
            match timeout_at(self.comment_at, self.events.next()).await {
                Err(_) => return self.comment(),
                Ok(Ok(page)) => self.page = page.events.into_iter(),
                Ok(Err(error)) => {
                    self.ended = true;
                    count_refusal(&error);
                    return Event::default().event("error").data(Problem::from(error).to_json().to_string());
                }
            }
        }
    }

    /// Returns a comment with the revision up to which the stream is complete, for a reader that resumes later.
    fn comment(&self) -> Event {
        let told = self.events.next_revision().saturating_sub(1);
        Event::default().comment("").id(told.to_string())
    }
}

fn to_sse_event(event: &EventInfo) -> Event {
    let data = serde_json::to_string(event).expect("an event has only texts and numbers, and keys that are texts");
    Event::default().id(event.revision.to_string()).event(event.kind.name()).data(data)
}

#[cfg(test)]
mod tests {
    use holdfast_api::Code;

    use super::*;

    #[test]
    fn a_reader_goes_on_after_the_last_event_that_it_has() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LAST_EVENT_ID, value.parse().unwrap());
            after_last_event(&headers)
        };
        assert_eq!(after_last_event(&HeaderMap::new()), Ok(None));
        assert_eq!(with("7"), Ok(Some(8)));
        for wrong in ["", "x", "-1", "9007199254740992", "18446744073709551615"] {
            let error = with(wrong).unwrap_err();
            assert_eq!((error.code, error.ids[0].1.as_str()), (Code::InvalidArgument, LAST_EVENT_ID), "{wrong}");
        }
    }
}
