//! REST over HTTP/1.1, on one kept-alive connection.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use super::{AcquireKind, LockName, Mode, PERMIT_REQUEST_ID, TTL_MS, WAIT_MS};

/// What is read of an acquire's answer: what a caller needs.
#[derive(Deserialize)]
struct AcquireResponse {
    success: bool,
    fencing_token: Option<u64>,
}

#[derive(Deserialize)]
struct ReleaseResponse {
    released: bool,
}

#[derive(Deserialize)]
struct GetResponse {
    lock: State,
}

#[derive(Deserialize)]
struct State {
    state: String,
}

/// A client of the REST door.
pub struct RestClient {
    gateway: SocketAddr,
    host: String,
    authorization: String,
    owner: String,
    /// Made again after an error.
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl RestClient {
    /// Connects.
    pub(crate) async fn connect(gateway: SocketAddr, key: &str, owner: String) -> Result<Self> {
        let connection = Some(connect(gateway).await?);
        Ok(Self { gateway, host: gateway.to_string(), authorization: format!("Bearer {key}"), owner, connection })
    }

    pub(crate) async fn acquire(&mut self, lock: &LockName, mode: Mode, asks: AcquireKind) -> Result<Option<u64>> {
        let mode = if mode == Mode::Read { "READ" } else { "WRITE" };
        let owner = &self.owner;
        let more = match asks {
            AcquireKind::Try => String::new(),
            AcquireKind::Wait => format!(",\"wait_ms\":{WAIT_MS}"),
            AcquireKind::Extend(token) => format!(",\"fencing_token\":{token}"),
        };
        let what = match lock.name() {
            Some(name) if lock.is_permit => {
                format!("\"name\":\"{name}\",\"request_id\":\"{PERMIT_REQUEST_ID}\",\"permits\":1")
            }
            Some(_) => format!("\"mode\":\"{mode}\""),
            None => format!("\"resources\":[{{\"path\":{:?},\"mode\":\"{mode}\"}}]", lock.path),
        };
        let body = format!("{{\"process_id\":\"{owner}\",{what},\"ttl_ms\":{TTL_MS}{more}}}");
        let answer: AcquireResponse = self.send(Method::POST, path(lock, "acquire"), body).await?;
        if !answer.success {
            return Ok(None);
        }
        answer.fencing_token.context("a grant has a token").map(Some)
    }

    pub(crate) async fn release(&mut self, lock: &LockName, token: u64) -> Result<bool> {
        let what = match lock.name() {
            Some(name) if lock.is_permit => format!("\"name\":\"{name}\",\"fencing_token\":{token}"),
            Some(_) => format!("\"fencing_token\":{token}"),
            None => format!("\"resources\":[{{\"path\":{:?}}}]", lock.path),
        };
        let body = format!("{{\"process_id\":\"{}\",{what}}}", self.owner);
        let answer: ReleaseResponse = self.send(Method::POST, path(lock, "release"), body).await?;
        Ok(answer.released)
    }

    pub(crate) async fn get(&mut self, lock: &LockName) -> Result<bool> {
        let answer: GetResponse = self.send(Method::GET, path(lock, ""), String::new()).await?;
        Ok(answer.lock.state != "UNLOCKED")
    }

    async fn send<T: for<'a> Deserialize<'a>>(&mut self, method: Method, path: String, body: String) -> Result<T> {
        let mut connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => connection,
            _ => connect(self.gateway).await?,
        };
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.host);
        request = request.header(header::AUTHORIZATION, &self.authorization);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        connection.ready().await?;
        let answer = connection.send_request(request.body(Full::new(Bytes::from(body)))?).await?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await?.to_bytes();
        // Only a connection whose answer was read to its end can be used again.
        self.connection = Some(connection);
        if !status.is_success() {
            bail!("status {}: {}", status.as_u16(), String::from_utf8_lossy(&bytes));
        }
        Ok(serde_json::from_slice(&bytes)?)
    }
}

/// Where a call on a lock goes: to the lock when it has a name, to the sets when it is in a tree. One on a permit goes to
/// all semaphores.
fn path(lock: &LockName, verb: &str) -> String {
    let LockName { namespace, .. } = lock;
    if lock.is_permit {
        return format!("/v1/namespaces/{namespace}/semaphores/{verb}");
    }
    match (lock.name(), verb) {
        (Some(name), "") => format!("/v1/namespaces/{namespace}/locks/{name}"),
        (Some(name), verb) => format!("/v1/namespaces/{namespace}/locks/{name}/{verb}"),
        (None, verb) => format!("/v1/namespaces/{namespace}/lock-sets/{verb}"),
    }
}

async fn connect(gateway: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(gateway).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Ends when the sender is dropped; an error reaches the client that waits for an answer.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}
