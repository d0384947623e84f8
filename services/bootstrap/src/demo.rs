//! The demo account of a first start.

use std::time::Duration;

use holdfast_auth::OperatorToken;
use reqwest::Client;
use serde_json::{Value, json};

use crate::error::BootstrapError;

/// The idempotency key of all creations: a first start that is repeated gets the responses of the one before.
pub const IDEMPOTENCY_KEY: &str = "first-start";
/// The account's e-mail address.
pub const DEMO_EMAIL: &str = "demo@example.com";
/// The account's name.
pub const DEMO_NAME: &str = "Demo";
/// The account's namespace.
pub const DEMO_NAMESPACE: &str = "demo";
/// The description of the account's API key.
pub const DEMO_KEY_DESCRIPTION: &str = "made at the first start";
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The way to the service of a first start.
pub trait FirstStart {
    /// Creates the demo account without a limit of rate, an API key of it, and its namespace; returns the key. A repeat
    /// returns the same key.
    ///
    /// # Errors
    /// When the service refuses or can't be reached.
    fn create_demo(&self, operator: &OperatorToken) -> impl Future<Output = Result<String, BootstrapError>>;
}

/// The REST API at a URL.
#[derive(Clone, Copy, Debug)]
pub struct RestApi<'a>(pub &'a str);

impl FirstStart for RestApi<'_> {
    async fn create_demo(&self, operator: &OperatorToken) -> Result<String, BootstrapError> {
        let url = self.0;
        let client = Client::builder().no_proxy().timeout(CALL_TIMEOUT).build()?;
        let operator = operator.reveal().expose();
        let account = json!({"email": DEMO_EMAIL, "full_name": DEMO_NAME});
        let account = post(&client, "POST /v1/accounts", format!("{url}/v1/accounts"), operator, &account).await?;
        let id = account["id"].as_str().unwrap_or_default();
        let limits = json!({"limits": {"max_requests_per_second": 0}});
        let request = client.patch(format!("{url}/v1/accounts/{id}")).json(&limits);
        send("PATCH /v1/accounts", request, operator).await?;
        let key = json!({"description": DEMO_KEY_DESCRIPTION});
        let url_keys = format!("{url}/v1/accounts/{id}/api-keys");
        let key = post(&client, "POST /v1/accounts/{id}/api-keys", url_keys, operator, &key).await?;
        let key = key["api_key"].as_str().unwrap_or_default().to_owned();
        let namespace = json!({"name": DEMO_NAMESPACE});
        post(&client, "POST /v1/namespaces", format!("{url}/v1/namespaces"), &key, &namespace).await?;
        Ok(key)
    }
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
