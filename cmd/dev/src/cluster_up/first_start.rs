//! The first start of a new cluster, over its REST API.

use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_auth::{OperatorToken, Secret};
use holdfast_bootstrap::{
    BootstrapError, DEMO_EMAIL, DEMO_KEY_DESCRIPTION, DEMO_NAME, DEMO_NAMESPACE, FirstStart, IDEMPOTENCY_KEY, Secrets,
};
use holdfast_operator::api::{BaseUrl, CallError, Client, text_field};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::log::Log;

/// How long the first calls may fail because shards are still electing leaders.
const FIRST_START_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The service at an address.
struct RestApi<'a>(&'a BaseUrl);

impl FirstStart for RestApi<'_> {
    async fn create_demo(&self, operator: &OperatorToken) -> Result<String, BootstrapError> {
        let client = Client::new(self.0.clone(), operator.reveal().clone()).map_err(unexpected)?;
        let account = json!({"email": DEMO_EMAIL, "full_name": DEMO_NAME});
        let account = create(&client, "POST /v1/accounts", "/v1/accounts", &account).await?;
        let path = format!("/v1/accounts/{}", text_field(&account, "id").map_err(unexpected)?);
        let limits = json!({"limits": {"max_requests_per_second": 0}});
        client.patch(&path, &limits).await.map_err(of_call("PATCH /v1/accounts/{id}"))?;
        let (call, path) = ("POST /v1/accounts/{id}/api-keys", format!("{path}/api-keys"));
        let key = create(&client, call, &path, &json!({"description": DEMO_KEY_DESCRIPTION})).await?;
        let key = text_field(&key, "api_key").map_err(unexpected)?;
        let tenant = client.with_bearer(Secret::new(key));
        create(&tenant, "POST /v1/namespaces", "/v1/namespaces", &json!({"name": DEMO_NAMESPACE})).await?;
        Ok(key.to_owned())
    }
}

async fn create(client: &Client, call: &'static str, path: &str, body: &Value) -> Result<Value, BootstrapError> {
    client.create_once(path, IDEMPOTENCY_KEY, body).await.map_err(of_call(call))
}

fn of_call(call: &'static str) -> impl Fn(CallError) -> BootstrapError {
    move |error| match error {
        CallError::Problem { code, detail, .. } => BootstrapError::Rejected { call, code, detail },
        CallError::Unreachable { reason, .. } => BootstrapError::Unreachable(reason.to_string()),
        error => BootstrapError::Unexpected(error.to_string()),
    }
}

fn unexpected(error: anyhow::Error) -> BootstrapError {
    BootstrapError::Unexpected(format!("{error:#}"))
}

/// Creates the demo account if it does not exist yet. A gateway is ready when it reaches the accounts shard; the shards
/// of namespaces and locks may take slightly longer.
pub(super) async fn first_start(secrets: &Secrets, url: &str, log: &Log) -> Result<String> {
    let base = url.parse().context("the address of the gateway")?;
    let deadline = Instant::now() + FIRST_START_TIMEOUT;
    loop {
        match secrets.first_start(&RestApi(&base), url).await {
            Ok(welcome) => return Ok(welcome),
            Err(error) if is_transient(&error) && Instant::now() < deadline => {
                log.write_line(format!("not yet: {error}")).await;
                sleep(RETRY_DELAY).await;
            }
            Err(error) => return Err(error).context("the first start is not complete; start again to continue it"),
        }
    }
}

fn is_transient(error: &BootstrapError) -> bool {
    match error {
        BootstrapError::Rejected { code, .. } => ["UNAVAILABLE", "DEADLINE_EXCEEDED"].contains(&code.as_str()),
        BootstrapError::Unreachable(_) => true,
        _ => false,
    }
}
