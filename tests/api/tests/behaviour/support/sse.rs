//! A reader of server-sent events.

use bytes::Bytes;
use http::Request;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::timeout;

use super::{CONDITION_TIMEOUT, RestClient};

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// An open stream of events.
pub(crate) struct EventStream {
    body: BoxBody<Bytes, String>,
    buffer: String,
}

/// Opens a stream of the namespace, with a query like `?prefix=a`, and after this event when one is given.
pub(crate) async fn open(
    rest: &RestClient,
    namespace: &str,
    query: &str,
    last: Option<u64>,
) -> Result<EventStream, Value> {
    let uri = format!("http://{}/v1/namespaces/{namespace}/events{query}", rest.address);
    let mut request = Request::get(uri).header("authorization", format!("Bearer {}", rest.key));
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let response = client.request(request.body(Full::default()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    if parts.status != 200 {
        let bytes = body.collect().await.unwrap().to_bytes();
        return Err(serde_json::from_slice(&bytes).unwrap());
    }
    assert_eq!(parts.headers["content-type"], "text/event-stream");
    assert_eq!(parts.headers["cache-control"], "no-store");
    Ok(EventStream { body: body.map_err(|error| error.to_string()).boxed(), buffer: String::new() })
}

impl EventStream {
    /// The next event.
    pub(crate) async fn next(&mut self) -> Event {
        self.try_next().await.expect("the stream goes on")
    }

    /// The next events.
    pub(crate) async fn next_n(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.next().await);
        }
        events
    }

    /// The next event; none when the stream has ended.
    pub(crate) async fn try_next(&mut self) -> Option<Event> {
        loop {
            while let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let event = parse(block);
                self.buffer = rest.to_owned();
                if event.is_some() {
                    return event;
                }
            }
            let frame =
                timeout(CONDITION_TIMEOUT, self.body.frame()).await.expect("an event or the end in good time")?;
            let bytes = frame.expect("the stream does not break off").into_data().unwrap_or_default();
            self.buffer.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }
}

/// A block without data is no event.
fn parse(block: &str) -> Option<Event> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let data = serde_json::from_str(field("data")?).expect("the data of an event is JSON");
    let id = field("id").map_or(0, |id| id.parse().unwrap());
    Some(Event { id, kind: field("event").unwrap().to_owned(), data })
}
