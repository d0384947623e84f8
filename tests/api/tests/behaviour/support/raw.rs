//! Bytes over a connection, for what no well-behaved client would send.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// What came back: the status, and the body when it is JSON.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    pub(crate) text: String,
    pub(crate) body: Value,
}

/// Sends these bytes and reads until the service closes the connection.
pub(crate) async fn send(address: SocketAddr, request: &[u8]) -> RawResponse {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The service may have answered and closed before it has read everything.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    let answer = tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await.expect("an answer in good time");
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
    let body = text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
    RawResponse { status, body: body.unwrap_or(Value::Null), text }
}

/// A request without a body, whose path is sent as it is.
pub(crate) fn request(method: &str, path: &[u8], key: &str) -> Vec<u8> {
    let mut request = format!("{method} ").into_bytes();
    request.extend_from_slice(path);
    let head = format!(" HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\r\n");
    request.extend_from_slice(head.as_bytes());
    request
}
