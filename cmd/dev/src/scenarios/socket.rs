//! The session protocol over a WebSocket: one JSON message per frame.

use anyhow::{Context, Result, bail};
use futures::{SinkExt, StreamExt};
use holdfast_auth::Secret;
use holdfast_operator::output::Format;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::MAX_WAIT;
use super::print::print_message;

/// A connection. Messages to the service carry ascending numbers.
pub(super) struct Socket {
    format: Format,
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    seq: u64,
}

impl Socket {
    /// Opens a connection; `url` is that of the REST call.
    pub(super) async fn open(format: Format, url: &str, secret: &Secret) -> Result<Self> {
        let mut request =
            url.replacen("http", "ws", 1).into_client_request().context("the address of the WebSocket")?;
        let bearer = format!("Bearer {}", secret.expose()).parse().context("the API key as a header")?;
        request.headers_mut().insert("authorization", bearer);
        let opened = tokio::time::timeout(MAX_WAIT, connect_async(request)).await.context("opening the WebSocket")?;
        match opened {
            Ok((stream, _)) => Ok(Self { format, stream, seq: 0 }),
            Err(Error::Http(refused)) => {
                let body = refused.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
                bail!("the WebSocket was refused with status {}: {body}", refused.status())
            }
            Err(error) => Err(error).context("opening the WebSocket"),
        }
    }

    /// Sends a message of this type.
    pub(super) async fn send(&mut self, kind: &str, mut message: Value) -> Result<()> {
        self.seq += 1;
        message["type"] = json!(kind);
        message["seq"] = json!(self.seq);
        print_message(self.format, "  says:", &message)?;
        self.stream.send(Message::text(message.to_string())).await.context("sending on the WebSocket")
    }

    /// Returns the next message, which must be of this type.
    pub(super) async fn expect_message(&mut self, kind: &str) -> Result<Value> {
        let message = self.receive().await?;
        if message["type"] != kind {
            bail!("not as expected: {message} came, and not {kind}");
        }
        Ok(message)
    }

    /// Returns the next message of one of these types, and passes over others.
    pub(super) async fn expect_any(&mut self, kinds: &[&str]) -> Result<Value> {
        loop {
            let message = self.receive().await?;
            if message["type"].as_str().is_some_and(|kind| kinds.contains(&kind)) {
                return Ok(message);
            }
        }
    }

    async fn receive(&mut self) -> Result<Value> {
        loop {
            let frame =
                tokio::time::timeout(MAX_WAIT, self.stream.next()).await.context("nothing came on the WebSocket")?;
            let frame = frame.context("the WebSocket ended")?.context("the WebSocket broke off")?;
            let Message::Text(text) = frame else { continue };
            let message: Value = serde_json::from_str(&text).context("a frame is JSON")?;
            print_message(self.format, "  hears:", &message)?;
            return Ok(message);
        }
    }
}
