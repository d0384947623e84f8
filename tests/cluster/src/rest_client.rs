//! A caller of the public API over REST.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Mode;
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::history::{Answer, Call, Hold, View};

/// Beyond every deadline of the service itself, so that a call that hangs is seen as one.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// What is known of a call that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Nothing was done.
    NotDone,
    /// It may have been done, or may still be.
    Unknown,
}

/// A call was not answered as it should be.
#[derive(Clone, Debug)]
pub struct CallError {
    /// Whether it may have been done.
    pub outcome: CallOutcome,
    /// The HTTP status; 0 without an answer.
    pub status: u16,
    /// The public code; empty without an answer.
    pub code: String,
    /// For people.
    pub detail: String,
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.status, self.code, self.detail)
    }
}

/// Calls one gateway with one key. A cheap clone.
#[derive(Clone)]
pub struct RestClient {
    http: reqwest::Client,
    base: String,
    key: String,
    timeout: Option<Duration>,
}

impl RestClient {
    pub(crate) fn new(http: reqwest::Client, base: String, key: String) -> Self {
        Self { http, base, key, timeout: None }
    }

    /// The same with a deadline for each call, which the gateway is told.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self.clone() }
    }

    /// Makes a call of the lock API.
    ///
    /// # Errors
    /// When it is not answered.
    pub async fn call(&self, namespace: &str, name: &str, owner: &str, call: Call) -> Result<Answer, CallError> {
        let path = format!("/v1/namespaces/{namespace}/locks/{name}");
        match call {
            Call::Acquire { mode, ttl_ms, token } => {
                let mode = if mode == Mode::Write { "WRITE" } else { "READ" };
                let mut body = json!({"process_id": owner, "mode": mode, "ttl_ms": ttl_ms});
                if let Some(token) = token {
                    body["fencing_token"] = json!(token);
                }
                let answer: AcquireResponse = self.json(Method::POST, &format!("{path}/acquire"), Some(body)).await?;
                Ok(Answer {
                    success: answer.success,
                    token: answer.fencing_token,
                    reason: answer.reason.map(|reason| reason.code),
                    lock: answer.lock.into(),
                })
            }
            Call::Release { token } => {
                let mut body = json!({"process_id": owner});
                if let Some(token) = token {
                    body["fencing_token"] = json!(token);
                }
                let answer: ReleaseResponse = self.json(Method::POST, &format!("{path}/release"), Some(body)).await?;
                Ok(Answer { success: answer.released, token: None, reason: None, lock: answer.lock.into() })
            }
            Call::Delete => {
                self.send(Method::DELETE, &path, None).await?;
                // The answer shows nothing, which is a view of nothing rather than of a free lock.
                let lock = View { revision: 0, holds: Vec::new(), is_whole: false };
                Ok(Answer { success: true, token: None, reason: None, lock })
            }
            Call::Get => {
                let answer: GetLockResponse = self.json(Method::GET, &path, None).await?;
                Ok(Answer { success: true, token: None, reason: None, lock: answer.lock.into() })
            }
        }
    }

    /// Takes a lock for writing for an hour; the token.
    ///
    /// # Errors
    /// When it is not answered. Panics when it is refused.
    pub async fn acquire(&self, namespace: &str, name: &str, owner: &str) -> Result<u64, CallError> {
        let call = Call::Acquire { mode: Mode::Write, ttl_ms: 3_600_000, token: None };
        let answer = self.call(namespace, name, owner, call).await?;
        Ok(answer.token.unwrap_or_else(|| panic!("{owner} did not get {namespace}/{name}: {answer:?}")))
    }

    /// Looks at a lock.
    ///
    /// # Errors
    /// When it is not answered.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<View, CallError> {
        Ok(self.call(namespace, name, "", Call::Get).await?.lock)
    }

    /// Makes a namespace; its id. A creation is repeated under `idempotency_key` without making another.
    ///
    /// # Errors
    /// When it is not answered.
    pub async fn create_namespace(&self, name: &str, idempotency_key: &str) -> Result<String, CallError> {
        let request = self.request(Method::POST, "/v1/namespaces").header("Idempotency-Key", idempotency_key);
        let created: CreateNamespaceResponse = decode(self.execute(request.json(&json!({"name": name}))).await?)?;
        Ok(created.id)
    }

    /// Deletes a namespace.
    ///
    /// # Errors
    /// When it is not answered.
    pub async fn delete_namespace(&self, name: &str) -> Result<(), CallError> {
        self.send(Method::DELETE, &format!("/v1/namespaces/{name}"), None).await.map(|_| ())
    }

    /// A call with a JSON answer.
    ///
    /// # Errors
    /// When it is not answered.
    pub async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<T, CallError> {
        decode(self.send(method, path, body).await?)
    }

    /// Deletes what is at a path.
    ///
    /// # Errors
    /// When it is not answered.
    pub async fn delete(&self, path: &str) -> Result<(), CallError> {
        self.send(Method::DELETE, path, None).await.map(drop)
    }

    /// An answer that goes on, like a stream of events.
    ///
    /// # Errors
    /// When it does not begin.
    pub async fn stream(&self, path: &str) -> Result<reqwest::Response, CallError> {
        let answer = self.request(Method::GET, path).send().await.map_err(|error| transport_error(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let text = answer.text().await.map_err(|error| transport_error(&error))?;
        Err(error_response(status.as_u16(), &text))
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<String, CallError> {
        let request = self.request(method, path);
        self.execute(if let Some(body) = body { request.json(&body) } else { request }).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.key);
        let request = request.timeout(CALL_TIMEOUT);
        match self.timeout {
            Some(timeout) => request.header("Holdfast-Timeout-Ms", timeout.as_millis().to_string()),
            None => request,
        }
    }

    async fn execute(&self, request: RequestBuilder) -> Result<String, CallError> {
        let answer = request.send().await.map_err(|error| transport_error(&error))?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| transport_error(&error))?;
        if status.is_success() { Ok(text) } else { Err(error_response(status.as_u16(), &text)) }
    }
}

fn transport_error(error: &reqwest::Error) -> CallError {
    let outcome = if error.is_connect() { CallOutcome::NotDone } else { CallOutcome::Unknown };
    let mut detail = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        detail = format!("{detail}: {inner}");
        cause = inner.source();
    }
    CallError { outcome, status: 0, code: String::new(), detail }
}

fn error_response(status: u16, text: &str) -> CallError {
    let problem: Value = serde_json::from_str(text).unwrap_or_default();
    let field = |name: &str| problem[name].as_str().unwrap_or(text).to_owned();
    // 503 promises that nothing was done, 4xx refuse. Everything else promises nothing.
    let outcome =
        if status == 503 || (400..500).contains(&status) { CallOutcome::NotDone } else { CallOutcome::Unknown };
    CallError { outcome, status, code: field("code"), detail: field("detail") }
}

fn decode<T: DeserializeOwned>(text: String) -> Result<T, CallError> {
    serde_json::from_str(&text).map_err(|error| CallError {
        outcome: CallOutcome::Unknown,
        status: 200,
        code: String::new(),
        detail: format!("the answer can't be read: {error}: {text}"),
    })
}

#[derive(Deserialize)]
struct CreateNamespaceResponse {
    id: String,
}

#[derive(Deserialize)]
struct AcquireResponse {
    success: bool,
    fencing_token: Option<u64>,
    reason: Option<Reason>,
    lock: Lock,
}

#[derive(Deserialize)]
struct Reason {
    code: String,
}

#[derive(Deserialize)]
struct ReleaseResponse {
    released: bool,
    lock: Lock,
}

#[derive(Deserialize)]
struct GetLockResponse {
    lock: Lock,
}

#[derive(Deserialize)]
struct Lock {
    write_lock_holder: Option<Holder>,
    read_lock_holders: Vec<Holder>,
    holders_total: usize,
    revision: u64,
}

#[derive(Deserialize)]
struct Holder {
    process_id: String,
    mode: String,
    fencing_token: u64,
}

impl From<Lock> for View {
    fn from(lock: Lock) -> Self {
        let holders = lock.write_lock_holder.into_iter().chain(lock.read_lock_holders);
        let holds: Vec<Hold> = holders
            .map(|holder| Hold {
                token: holder.fencing_token,
                owner: Arc::from(holder.process_id),
                mode: if holder.mode == "WRITE" { Mode::Write } else { Mode::Read },
            })
            .collect();
        Self { revision: lock.revision, is_whole: holds.len() == lock.holders_total, holds }
    }
}
