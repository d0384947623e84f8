//! A caller of the REST door. Paths are sent as they are given: nothing is normalised on the way.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// A caller with one credential.
#[derive(Clone, Debug)]
pub(crate) struct RestClient {
    client: Client<HttpConnector, Full<Bytes>>,
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// Null when the answer has no body or one that is not JSON.
    pub(crate) body: Value,
}

impl RestClient {
    pub(crate) fn new(address: SocketAddr, key: &str) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, address, key: key.to_owned() }
    }

    /// The same with another credential.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// A call like `GET /v1/namespaces`, without a body.
    pub(crate) async fn call(&self, line: &str) -> Response {
        self.send(line, &[], Bytes::new()).await
    }

    /// The status of a call without a body; none when there is no answer.
    pub(crate) async fn try_call(&self, line: &str) -> Option<u16> {
        let (method, path) = line.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        let answer = self.client.request(request.body(Full::default()).unwrap()).await;
        answer.ok().map(|answer| answer.status().as_u16())
    }

    /// A call with a JSON body.
    pub(crate) async fn json(&self, line: &str, body: Value) -> Response {
        self.send(line, &[("content-type", "application/json")], body.to_string().into()).await
    }

    /// How the answer to a call begins: its status and, of an error, its code. What is answered well is not read, since
    /// it may have no end.
    pub(crate) async fn status_and_code(&self, line: &str, body: Option<&Value>) -> (u16, Option<String>) {
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if !self.key.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.key));
        }
        let bytes = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let response = self.client.request(request.body(Full::new(bytes)).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        if status < 400 {
            return (status, None);
        }
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        (status, body["code"].as_str().map(str::to_owned))
    }

    /// A call with these headers besides the credential, and these bytes.
    pub(crate) async fn send(&self, line: &str, headers: &[(&str, &str)], body: Bytes) -> Response {
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if !self.key.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.key));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Full::new(body)).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        // A stream of events has no end; whoever wants to read it takes another way.
        let is_endless = parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let bytes = if is_endless { Bytes::new() } else { body.collect().await.unwrap().to_bytes() };
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Response { status: parts.status.as_u16(), headers: parts.headers, text, body }
    }
}

impl Response {
    /// The body of an answer that is no error.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text);
        self.body
    }

    /// An error of this code, with everything that an error has. Returns its body.
    #[track_caller]
    pub(crate) fn expect_error(self, code: &str) -> Value {
        assert_eq!(self.body["code"], code, "{} {}", self.status, self.text);
        assert_eq!(u64::from(self.status), self.body["status"].as_u64().unwrap());
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert!(!self.header("holdfast-request-id").is_empty());
        for member in ["type", "title", "detail"] {
            assert!(self.body[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {}", self.text);
        }
        self.body
    }

    /// An error about one field, which the detail begins with.
    #[track_caller]
    pub(crate) fn expect_field_error(self, field: &str) -> String {
        let body = self.expect_error("INVALID_ARGUMENT");
        let detail = body["detail"].as_str().unwrap();
        assert_eq!(body["field"], field, "{body}");
        assert!(detail.starts_with(&format!("{field}: ")), "{detail}");
        detail.to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// One segment of a path.
pub(crate) fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}
