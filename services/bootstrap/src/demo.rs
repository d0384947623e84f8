//! The demo account, made through the public API.

use std::time::Duration;

use holdfast_auth::OperatorToken;
use reqwest::Client;
use serde_json::{Value, json};

use crate::error::BootstrapError;

/// Repeats of the creations answer as the first did.
const IDEMPOTENCY_KEY: &str = "first-start";
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes account, key and namespace. Returns the key.
pub(crate) async fn create(url: &str, operator: &OperatorToken) -> Result<String, BootstrapError> {
    let client = Client::builder().no_proxy().timeout(CALL_TIMEOUT).build()?;
    let operator = operator.reveal().expose();
    let account = json!({"email": "demo@example.com", "full_name": "Demo"});
    let account = post(&client, "POST /v1/accounts", format!("{url}/v1/accounts"), operator, &account).await?;
    let id = account["id"].as_str().unwrap_or_default();
    // The account that people try the service with has no limit of rate.
    let limits = json!({"limits": {"max_requests_per_second": 0}});
    let request = client.patch(format!("{url}/v1/accounts/{id}")).json(&limits);
    send("PATCH /v1/accounts", request, operator).await?;
    let key = json!({"description": "made at the first start"});
    let url_keys = format!("{url}/v1/accounts/{id}/api-keys");
    let key = post(&client, "POST /v1/accounts/{id}/api-keys", url_keys, operator, &key).await?;
    let key = key["api_key"].as_str().unwrap_or_default().to_owned();
    let namespace = json!({"name": "demo"});
    post(&client, "POST /v1/namespaces", format!("{url}/v1/namespaces"), &key, &namespace).await?;
    Ok(key)
}

async fn post(
    client: &Client,
    call: &'static str,
    url: String,
    bearer: &str,
    body: &Value,
) -> Result<Value, BootstrapError> {
    send(call, client.post(url).header("Idempotency-Key", IDEMPOTENCY_KEY).json(body), bearer).await
}

async fn send(call: &'static str, request: reqwest::RequestBuilder, bearer: &str) -> Result<Value, BootstrapError> {
    let response = request.bearer_auth(bearer).send().await?;
    let status = response.status();
    let body: Value = response.json().await?;
    if status.is_success() {
        return Ok(body);
    }
    let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    Err(BootstrapError::Rejected { call, code: text("code"), detail: text("detail") })
}
