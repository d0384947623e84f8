//! A client of the REST API. Paths are sent as given: nothing is normalised on the way.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::rest_error::{CallError, CallOutcome};

/// Longer than every deadline of the service itself, so that a call that hangs is seen as one.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const JSON: (&str, &str) = ("content-type", "application/json");

/// Calls one process with one credential. Clones are cheap and share connections. A call names method and path, as in
/// `GET /v1/namespaces`.
#[derive(Clone, Debug)]
pub struct RestClient {
    client: Client<HttpConnector, Full<Bytes>>,
    /// The process.
    pub address: SocketAddr,
    /// The credential; none is sent if it is empty.
    pub key: String,
    timeout: Option<Duration>,
}

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
    /// The body as JSON; null if it is none.
    pub body: Value,
}

impl RestClient {
    /// A client of a process.
    pub fn new(address: SocketAddr, key: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { client, address, key: key.to_owned(), timeout: None }
    }

    /// The same with another credential.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// The same for another process.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        Self { address, ..self.clone() }
    }

    /// The same with a deadline for each call, which is sent to the service.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self.clone() }
    }

    /// Calls without a body.
    ///
    /// # Panics
    /// Without an answer.
    pub async fn call(&self, line: &str) -> Response {
        self.send(line, &[], Bytes::new()).await
    }

    /// Calls with a JSON body.
    ///
    /// # Panics
    /// Without an answer.
    pub async fn json(&self, line: &str, body: Value) -> Response {
        self.send(line, &[JSON], body.to_string().into()).await
    }

    /// Calls with these headers beside the credential, and this body.
    ///
    /// # Panics
    /// Without an answer.
    pub async fn send(&self, line: &str, headers: &[(&str, &str)], body: Bytes) -> Response {
        self.try_send(line, headers, body).await.unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// As [`RestClient::send`]; whatever the answer is, it is one.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn try_send(&self, line: &str, headers: &[(&str, &str)], body: Bytes) -> Result<Response, CallError> {
        let (parts, body) = self.open(line, headers, body).await?.into_parts();
        let status = parts.status.as_u16();
        // A stream of events has no end; `EventStream` reads it.
        let is_endless = parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let text = if is_endless { String::new() } else { read_text(status, body).await? };
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Response { status, headers: parts.headers, text, body })
    }

    /// Returns the status of an answer and, of an error, its code. The body of a good answer is not read, since it may
    /// have no end.
    ///
    /// # Panics
    /// Without an answer.
    pub async fn status_and_code(&self, line: &str, body: Option<&Value>) -> (u16, Option<String>) {
        let headers: &[_] = if body.is_some() { &[JSON] } else { &[] };
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let response = self.open(line, headers, bytes).await.unwrap_or_else(|error| panic!("{line}: {error}"));
        let status = response.status().as_u16();
        if status < 400 {
            return (status, None);
        }
        let text = read_text(status, response.into_body()).await.unwrap_or_else(|error| panic!("{line}: {error}"));
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        (status, body["code"].as_str().map(str::to_owned))
    }

    /// Calls, with a JSON body if there is one, and decodes the JSON of a good answer.
    ///
    /// # Errors
    /// If the answer is an error, or does not come within 20 s.
    pub async fn fetch<T: DeserializeOwned>(&self, line: &str, body: Option<Value>) -> Result<T, CallError> {
        let answer = self.try_call(line, &[], body).await?;
        let text = if answer.text.is_empty() { "null" } else { &answer.text };
        serde_json::from_str(text).map_err(|error| {
            CallError::unreadable(answer.status, format!("the answer can't be read: {error}: {}", answer.text))
        })
    }

    /// Acquires a lock for writing for an hour. Returns its fencing token.
    ///
    /// # Errors
    /// If the answer is an error, or does not come.
    ///
    /// # Panics
    /// If the lock is refused.
    pub async fn acquire(&self, namespace: &str, name: &str, owner: &str) -> Result<u64, CallError> {
        let line = format!("POST /v1/namespaces/{namespace}/locks/{name}/acquire");
        let body = json!({"process_id": owner, "mode": "WRITE", "ttl_ms": 3_600_000});
        let answer: Value = self.fetch(&line, Some(body)).await?;
        let token = answer["fencing_token"].as_u64();
        Ok(token.unwrap_or_else(|| panic!("{owner} did not get {namespace}/{name}: {answer}")))
    }

    /// Creates a namespace, and returns its id. A repetition with the same `idempotency_key` creates no other.
    ///
    /// # Errors
    /// If the answer is an error, or does not come.
    ///
    /// # Panics
    /// If the answer has no id.
    pub async fn create_namespace(&self, name: &str, idempotency_key: &str) -> Result<String, CallError> {
        let headers = [("idempotency-key", idempotency_key)];
        let created = self.try_call("POST /v1/namespaces", &headers, Some(json!({"name": name}))).await?;
        Ok(created.body["id"].as_str().unwrap_or_else(|| panic!("no id: {}", created.text)).to_owned())
    }

    /// Deletes the object at a path.
    ///
    /// # Errors
    /// If the answer is an error, or does not come.
    pub async fn delete(&self, path: &str) -> Result<(), CallError> {
        self.try_call(&format!("DELETE {path}"), &[], None).await.map(drop)
    }

    async fn try_call(&self, line: &str, headers: &[(&str, &str)], body: Option<Value>) -> Result<Response, CallError> {
        let mut headers = headers.to_vec();
        headers.extend(body.is_some().then_some(JSON));
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let answer = tokio::time::timeout(CALL_TIMEOUT, self.try_send(line, &headers, bytes)).await;
        let unanswered = |_| CallError::unanswered(CallOutcome::Unknown, format!("no answer within {CALL_TIMEOUT:?}"));
        let answer = answer.map_err(unanswered)??;
        let is_error = !(200..300).contains(&answer.status);
        if is_error { Err(CallError::from_answer(answer.status, &answer.text)) } else { Ok(answer) }
    }

    /// Calls, and leaves the body of the answer to the caller.
    pub(crate) async fn open(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<http::Response<Incoming>, CallError> {
        let (method, path) = line.split_once(' ').expect("a call names method and path");
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if !self.key.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.key));
        }
        if let Some(timeout) = self.timeout {
            request = request.header("holdfast-timeout-ms", timeout.as_millis().to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).expect("the call can be written");
        self.client.request(request).await.map_err(|error| CallError::from_transport(&error))
    }
}

async fn read_text(status: u16, body: Incoming) -> Result<String, CallError> {
    let bytes = body.collect().await.map_err(|error| CallError::unanswered(CallOutcome::Unknown, error.to_string()))?;
    String::from_utf8(bytes.to_bytes().to_vec()).map_err(|error| CallError::unreadable(status, error.to_string()))
}

impl Response {
    /// The body of a good answer.
    ///
    /// # Panics
    /// If the answer is an error.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text);
        self.body
    }

    /// The body of an error with that code and everything else that an error has.
    ///
    /// # Panics
    /// If the answer is not such an error.
    #[track_caller]
    pub fn expect_error(self, code: &str) -> Value {
        assert_eq!(self.body["code"], code, "{} {}", self.status, self.text);
        assert_eq!(Some(u64::from(self.status)), self.body["status"].as_u64());
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert!(!self.header("holdfast-request-id").is_empty());
        for member in ["type", "title", "detail"] {
            assert!(self.body[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {}", self.text);
        }
        self.body
    }

    /// The detail of an error about one field, with which it begins.
    ///
    /// # Panics
    /// If the answer is not such an error.
    #[track_caller]
    pub fn expect_field_error(self, field: &str) -> String {
        let body = self.expect_error("INVALID_ARGUMENT");
        let detail = body["detail"].as_str().unwrap_or_default();
        assert_eq!(body["field"], field, "{body}");
        assert!(detail.starts_with(&format!("{field}: ")), "{detail}");
        detail.to_owned()
    }

    /// A header as text; empty if there is none.
    ///
    /// # Panics
    /// If the header is not text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a header is text"))
    }
}
