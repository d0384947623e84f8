//! Runs the calls of a scenario, prints requests and responses, and checks the results.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_auth::{OperatorToken, Secret};
use holdfast_operator::api::{BaseUrl, CallError, Client};
use holdfast_operator::output::{self, Format};
use holdfast_operator::{AccountId, ServiceArgs};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::MAX_WAIT;
use super::events::EventReader;
use super::print::print_message;
use super::socket::Socket;

pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time to live of the actors' holds: longer than any scenario.
const TTL_MS: u64 = 60_000;
/// Wait of waiting requests: shorter than a call may take.
const WAIT_MS: u64 = 10_000;

/// A namespace, and a tenant with all permissions in it.
pub(super) struct ScenarioRunner {
    format: Format,
    url: BaseUrl,
    client: Client,
    operator: Client,
    account: AccountId,
    secret: Secret,
    namespace: String,
}

/// A waiting call, while other actors continue.
pub(super) struct PendingCall {
    call: String,
    answer: JoinHandle<Result<Value, CallError>>,
}

impl ScenarioRunner {
    /// Returns the runner for a namespace of an account, for which `secret` is a key.
    pub(super) fn new(
        service: &ServiceArgs,
        operator: &Client,
        account: AccountId,
        secret: Secret,
        namespace: String,
    ) -> Self {
        let client = operator.with_bearer(secret.clone());
        let (format, url, operator) = (service.output, service.url.clone(), operator.clone());
        Self { format, url, client, operator, account, secret, namespace }
    }

    /// Returns the name of the namespace.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the account of the namespace.
    pub(super) fn account(&self) -> AccountId {
        self.account
    }

    /// Prints the next step, and its reason.
    pub(super) fn print_step(&self, text: impl std::fmt::Display) -> Result<()> {
        match self.format {
            Format::Text => output::print(format_args!("\n# {text}")),
            Format::Json => {
                output::info(format_args!("# {text}"));
                Ok(())
            }
        }
    }

    /// Prints what the reader must not miss.
    pub(super) fn print_warning(&self, text: impl std::fmt::Display) -> Result<()> {
        match self.format {
            Format::Text => output::print(format_args!("\n!! {text}")),
            Format::Json => output::print(json!({"warning": text.to_string()})),
        }
    }

    /// Prints a message to or from the service.
    pub(super) fn print_message(&self, who: &str, what: &Value) -> Result<()> {
        print_message(self.format, who, what)
    }

    /// Prints an observed fact, or ends the scenario if it does not hold.
    pub(super) fn check(&self, holds: bool, what: impl std::fmt::Display) -> Result<()> {
        if !holds {
            bail!("not as expected: {what}");
        }
        match self.format {
            Format::Text => output::print(format_args!("   so: {what}")),
            Format::Json => output::print(json!({"seen": what.to_string()})),
        }
    }

    /// Makes a call below the namespace, like `POST locks/report/acquire`, and prints the response.
    pub(super) async fn call(&self, call: &str, body: Value) -> Result<Value> {
        self.print_message(&self.full_call(call), &body)?;
        let answer = self.send(call, &body).await.with_context(|| call.to_owned())?;
        self.print_message("  answer:", &answer)?;
        Ok(answer)
    }

    /// Makes a call that must be rejected with an error; returns the error's code.
    pub(super) async fn call_expecting_error(&self, call: &str) -> Result<String> {
        self.post_expecting_error(call, Value::Null).await
    }

    /// The same, for a call with a body.
    pub(super) async fn post_expecting_error(&self, call: &str, body: Value) -> Result<String> {
        self.print_message(&self.full_call(call), &body)?;
        match self.send(call, &body).await {
            Ok(answer) => bail!("not as expected: {call} answered {answer}"),
            Err(CallError::Problem { code, body, .. }) => {
                self.print_message("  answer:", &body)?;
                Ok(code)
            }
            Err(error) => Err(error).with_context(|| call.to_owned()),
        }
    }

    /// Acquires paths like `shop/orders`, each with its mode, all or none. `more` adds fields to the body.
    pub(super) async fn acquire(&self, who: &str, claims: &[(&str, &str)], more: Value) -> Result<Value> {
        self.call("POST lock-sets/acquire", acquire_body(who, claims, more)).await
    }

    /// The same, for an owner that waits.
    pub(super) fn acquire_waiting(&self, who: &str, claims: &[(&str, &str)]) -> Result<PendingCall> {
        let body = acquire_body(who, claims, json!({"wait_ms": WAIT_MS}));
        let pending = self.call_waiting("lock-sets/acquire", body)?;
        Ok(PendingCall { call: format!("{who} waited"), ..pending })
    }

    /// Makes a call that waits, below the namespace.
    pub(super) fn call_waiting(&self, below: &str, body: Value) -> Result<PendingCall> {
        let path = self.path(below);
        self.print_message(&format!("POST {path}"), &body)?;
        let client = self.client.clone();
        let answer = tokio::spawn(async move { client.post(&path, &body).await });
        Ok(PendingCall { call: format!("{below} waited"), answer })
    }

    /// Waits for the grant of a waiting call; returns its token.
    pub(super) async fn await_grant(&self, waiting: PendingCall) -> Result<u64> {
        let answer = self.await_answer(waiting).await?;
        self.expect_granted(&answer, "the wait is over, the lock is granted")
    }

    /// Waits for the answer of a waiting call.
    pub(super) async fn await_answer(&self, waiting: PendingCall) -> Result<Value> {
        let answer = tokio::time::timeout(MAX_WAIT, waiting.answer).await.with_context(|| waiting.call.clone())?;
        let answer = answer.with_context(|| waiting.call.clone())?.with_context(|| waiting.call.clone())?;
        self.print_message(&format!("  answer ({}):", waiting.call), &answer)?;
        Ok(answer)
    }

    /// Releases an owner's holds on these paths.
    pub(super) async fn release(&self, who: &str, paths: &[&str]) -> Result<()> {
        let resources: Vec<Value> = paths.iter().map(|path| json!({"path": segments(path)})).collect();
        let answer = self.call("POST lock-sets/release", json!({"process_id": who, "resources": resources})).await?;
        self.check(answer["released"] == true, format_args!("{who} has released it"))
    }

    /// Checks that a response is a grant; returns its token.
    pub(super) fn expect_granted(&self, answer: &Value, why: &str) -> Result<u64> {
        let token = answer["fencing_token"].as_u64().filter(|_| answer["success"] == true);
        let Some(token) = token else { bail!("not as expected ({why}): {answer}") };
        self.check(true, format_args!("granted with fencing token {token}: {why}"))?;
        Ok(token)
    }

    /// Checks that a response is a refusal for this reason.
    pub(super) fn expect_refused(&self, answer: &Value, code: &str, why: &str) -> Result<()> {
        let reason = answer["reason"]["code"].as_str().unwrap_or("no reason");
        self.check(answer["success"] == false && reason == code, format_args!("refused with {reason}: {why}"))
    }

    /// Waits until `count` requests wait for a path.
    pub(super) async fn wait_for_waiters(&self, path: &str, count: u64) -> Result<()> {
        self.wait_for_waiting("POST lock-sets/get", "lock", path, count).await
    }

    /// Waits until `count` requests wait for permits of a semaphore.
    pub(super) async fn wait_for_permit_waiters(&self, path: &str, count: u64) -> Result<()> {
        self.wait_for_waiting("POST semaphores/get", "semaphore", path, count).await
    }

    /// Waits until `count` requests wait for members of a pool.
    pub(super) async fn wait_for_member_waiters(&self, path: &str, count: u64) -> Result<()> {
        self.wait_for_waiting("POST pools/get", "pool", path, count).await
    }

    /// Waits until `count` have arrived at a barrier.
    pub(super) async fn wait_for_arrivals(&self, path: &str, count: u64) -> Result<()> {
        let arrived = |answer: &Value| answer["barrier"]["arrived"].as_u64();
        self.wait_for_count("POST barriers/get", &json!({"path": segments(path)}), arrived, count).await?;
        self.check(true, format_args!("{count} wait(s) for {path} now"))
    }

    /// Waits until `count` await conditions of locks.
    pub(super) async fn wait_for_awaiting(&self, count: u64) -> Result<()> {
        let awaiting = |answer: &Value| {
            let conditions = answer["conditions"].as_array()?.iter();
            Some(conditions.filter_map(|condition| condition["awaiting"].as_u64()).sum())
        };
        self.wait_for_count("GET conditions", &Value::Null, awaiting, count).await?;
        self.check(true, format_args!("{count} await(s) a signal now"))
    }

    async fn wait_for_waiting(&self, call: &str, shown: &str, path: &str, count: u64) -> Result<()> {
        let waiting = |answer: &Value| answer[shown]["waiting"].as_u64();
        self.wait_for_count(call, &json!({"path": segments(path)}), waiting, count).await?;
        self.check(true, format_args!("{count} wait(s) for {path} now"))
    }

    async fn wait_for_count(
        &self,
        call: &str,
        body: &Value,
        shown: impl Fn(&Value) -> Option<u64>,
        count: u64,
    ) -> Result<()> {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let waiting = shown(&self.send(call, body).await?);
            if waiting == Some(count) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("not as expected: {waiting:?} wait, not {count}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the namespace as the service shows it, without a word about it.
    pub(super) async fn namespace_view(&self) -> Result<Value, CallError> {
        self.client.get(&format!("/v1/namespaces/{}", self.namespace)).await
    }

    /// Returns the cluster as the operator sees it.
    pub(super) async fn cluster_view(&self) -> Result<Value, CallError> {
        self.operator.get("/v1/cluster").await
    }

    /// Returns whether this is the operator token with which the service is called.
    pub(super) fn has_operator_token(&self, token: &OperatorToken) -> bool {
        self.operator.has_operator_token(token)
    }

    /// Returns the port of the service.
    pub(super) fn port(&self) -> Option<u16> {
        reqwest::Url::parse(&self.url.to_string()).ok()?.port_or_known_default()
    }

    /// Ends a session, which may have ended already.
    pub(super) async fn end_session(&self, session_id: &str) -> Result<()> {
        let call = format!("DELETE sessions/{session_id}");
        self.print_message(&self.full_call(&call), &Value::Null)?;
        match self.send(&call, &Value::Null).await {
            Err(error) if !error.has_code("SESSION_NOT_FOUND") => Err(error).context(call),
            _ => self.check(true, "that session is over"),
        }
    }

    /// Opens a stream of events, after the event with this id if one is given.
    pub(super) async fn events(&self, query: &str, last_event_id: Option<&str>) -> Result<EventReader> {
        let path = self.path(&format!("events{query}"));
        let header = last_event_id.map(|id| json!({"Last-Event-ID": id})).unwrap_or(Value::Null);
        self.print_message(&format!("GET {path}"), &header)?;
        EventReader::open(self.format, &format!("{}{path}", self.url), &self.secret, last_event_id).await
    }

    /// Opens a WebSocket to the session protocol.
    pub(super) async fn socket(&self) -> Result<Socket> {
        let path = self.path("connect");
        self.print_message(&format!("WebSocket {path}"), &Value::Null)?;
        Socket::open(self.format, &format!("{}{path}", self.url), &self.secret).await
    }

    async fn send(&self, call: &str, body: &Value) -> Result<Value, CallError> {
        match call.split_once(' ') {
            Some(("GET", path)) => self.client.get(&self.path(path)).await,
            Some(("DELETE", path)) => self.client.delete(&self.path(path)).await.map(|()| Value::Null),
            Some((_, path)) => self.client.post(&self.path(path), body).await,
            None => self.client.get(&self.path(call)).await,
        }
    }

    fn path(&self, below: &str) -> String {
        format!("/v1/namespaces/{}/{below}", self.namespace)
    }

    fn full_call(&self, call: &str) -> String {
        let (method, path) = call.split_once(' ').unwrap_or(("GET", call));
        format!("{method} {}", self.path(path))
    }
}

/// Returns the segments of a path like `shop/orders`. The empty text has none, and means the whole namespace.
pub(super) fn segments(path: &str) -> Vec<&str> {
    path.split('/').filter(|segment| !segment.is_empty()).collect()
}

fn acquire_body(who: &str, claims: &[(&str, &str)], more: Value) -> Value {
    let resources: Vec<Value> =
        claims.iter().map(|(path, mode)| json!({"path": segments(path), "mode": mode})).collect();
    let mut body = json!({"process_id": who, "ttl_ms": TTL_MS, "resources": resources});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_with_slashes_and_sent_as_segments() {
        assert_eq!(segments("shop/orders/42"), ["shop", "orders", "42"]);
        assert!(segments("").is_empty());
    }
}
