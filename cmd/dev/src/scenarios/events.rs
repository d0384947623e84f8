//! Reads server-sent events.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use futures::stream::BoxStream;
use holdfast_auth::Secret;
use holdfast_operator::output::Format;
use serde_json::Value;

use super::MAX_WAIT;
use super::print::print_message;

/// Maximum time for which a stream is open: longer than any scenario.
const STREAM_TIMEOUT: Duration = Duration::from_secs(120);

/// One event.
pub(super) struct Event {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) data: Value,
}

/// An open stream.
pub(super) struct EventReader {
    format: Format,
    bytes: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    partial: Vec<u8>,
    lines: VecDeque<String>,
}

impl EventReader {
    pub(super) async fn open(format: Format, url: &str, secret: &Secret, last_event_id: Option<&str>) -> Result<Self> {
        let client = reqwest::Client::builder().no_proxy().build().context("no HTTP client can be made")?;
        let mut request = client.get(url).bearer_auth(secret.expose()).timeout(STREAM_TIMEOUT);
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        let response = request.send().await.context("opening the stream of events")?;
        let status = response.status();
        if !status.is_success() {
            bail!("the stream of events was refused: {}", response.text().await.unwrap_or_default());
        }
        let bytes = response.bytes_stream().map(|chunk| chunk.map(|bytes| bytes.to_vec())).boxed();
        Ok(Self { format, bytes, partial: Vec::new(), lines: VecDeque::new() })
    }

    /// Reads and prints the next event.
    pub(super) async fn next(&mut self) -> Result<Event> {
        let event = tokio::time::timeout(MAX_WAIT, self.read()).await.context("no event came in time")??;
        print_message(self.format, &format!("  event {} {}:", event.id, event.kind), &event.data)?;
        if event.kind == "error" {
            bail!("the stream of events ended: {}", event.data);
        }
        Ok(event)
    }

    /// Reads an event: a few lines `name: value`, up to an empty one. Lines that start with a colon are comments.
    async fn read(&mut self) -> Result<Event> {
        let mut event = Event { id: String::new(), kind: String::new(), data: Value::Null };
        loop {
            let line = self.line().await?;
            match line.split_once(':').map(|(name, value)| (name, value.strip_prefix(' ').unwrap_or(value))) {
                Some(("id", value)) => value.clone_into(&mut event.id),
                Some(("event", value)) => value.clone_into(&mut event.kind),
                Some(("data", value)) => event.data = serde_json::from_str(value).context("an event's data is JSON")?,
                // A message without data is no event: it only reports the progress of the stream.
                None if line.is_empty() && !event.data.is_null() => return Ok(event),
                _ => {}
            }
        }
    }

    async fn line(&mut self) -> Result<String> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(line);
            }
            let chunk = self.bytes.next().await.context("the stream of events ended")?;
            self.partial.extend(chunk.context("the stream of events broke off")?);
            while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                self.lines.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
        }
    }
}
