//! A reader of server-sent events.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use crate::rest_client::RestClient;

/// Far longer than a stream with something to report is silent.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The id, which is a revision of the namespace; 0 if it has none.
    pub id: u64,
    /// The kind.
    pub kind: String,
    /// The data.
    pub data: Value,
}

/// An open stream of events. Its functions panic if the connection fails, or if nothing arrives within 30 s.
pub struct EventStream {
    body: Incoming,
    buffer: String,
}

impl EventStream {
    /// Opens the stream of a namespace with a query such as `?prefix=a`; if `last` is given, after that event.
    ///
    /// # Errors
    /// If the answer is an error: its body.
    pub async fn open(
        rest: &RestClient,
        namespace: &str,
        query: &str,
        last: Option<u64>,
    ) -> Result<EventStream, Value> {
        let line = format!("GET /v1/namespaces/{namespace}/events{query}");
        let last = last.map(|id| id.to_string());
        let headers: Vec<_> = last.iter().map(|id| ("last-event-id", id.as_str())).collect();
        let response = rest.open(&line, &headers, Bytes::new()).await.expect("an answer");
        let (parts, body) = response.into_parts();
        if parts.status != 200 {
            let bytes = body.collect().await.expect("the answer is complete").to_bytes();
            return Err(serde_json::from_slice(&bytes).expect("an error is JSON"));
        }
        assert_eq!(parts.headers["content-type"], "text/event-stream");
        assert_eq!(parts.headers["cache-control"], "no-store");
        Ok(Self { body, buffer: String::new() })
    }

    /// Returns the next event.
    pub async fn next(&mut self) -> Event {
        self.try_next().await.expect("the stream goes on")
    }

    /// Returns the next events.
    pub async fn next_n(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.next().await);
        }
        events
    }

    /// Returns the next event; none if the stream has ended.
    pub async fn try_next(&mut self) -> Option<Event> {
        loop {
            while let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let event = parse(block);
                self.buffer = rest.to_owned();
                if event.is_some() {
                    return event;
                }
            }
            let frame = timeout(RECEIVE_TIMEOUT, self.body.frame()).await.expect("an event or the end in good time")?;
            let bytes = frame.expect("the stream does not break off").into_data().unwrap_or_default();
            self.buffer.push_str(std::str::from_utf8(&bytes).expect("frames end between characters"));
        }
    }
}

/// A block without data is no event.
fn parse(block: &str) -> Option<Event> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let data = serde_json::from_str(field("data")?).expect("the data of an event is JSON");
    let id = field("id").map_or(0, |id| id.parse().expect("an id is a number"));
    let kind = field("event").expect("an event has a kind").to_owned();
    Some(Event { id, kind, data })
}
