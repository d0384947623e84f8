//! A running service with a tenant for each test.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_api_tests::{Standalone, scratch};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

static SERVER: OnceLock<Standalone> = OnceLock::new();
static NEXT_TENANT: AtomicU32 = AtomicU32::new(0);

/// The service of all tests of a process.
pub(crate) fn server() -> &'static Standalone {
    SERVER.get_or_init(|| Standalone::start(&scratch(), &[]))
}

/// The token of its operator.
pub fn operator_token() -> String {
    server().secret("operator.token")
}

/// A caller of the API beside the browser.
#[derive(Clone, Debug)]
pub struct Tenant {
    client: Client,
    /// The account.
    pub account: String,
    /// A key that may do everything in it.
    pub key: String,
}

/// A new account with a namespace `demo`.
pub async fn create_tenant() -> Tenant {
    let client = Client::new();
    let operator = Tenant { client: client.clone(), account: String::new(), key: operator_token() };
    let number = NEXT_TENANT.fetch_add(1, Ordering::Relaxed);
    let email = format!("tenant-{number}@example.com");
    let account = operator.post("/accounts", json!({"email": email, "full_name": "A tenant"})).await;
    let account = text(&account["id"]);
    let key = operator.post(&format!("/accounts/{account}/api-keys"), json!({})).await;
    let tenant = Tenant { client, account, key: text(&key["api_key"]) };
    tenant.post("/namespaces", json!({"name": "demo"})).await;
    tenant
}

/// The text in a value.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

impl Tenant {
    /// The same with another key.
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// Makes a call below `/v1` and returns what it answers.
    ///
    /// # Panics
    /// When the answer is an error.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let address = format!("http://{}/v1{path}", server().address());
        let mut request = self.client.request(method, address).bearer_auth(&self.key);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap_or_else(|error| panic!("{path}: {error}"));
        let (status, said) = (answer.status(), answer.text().await.unwrap_or_default());
        assert!(status.is_success(), "{path}: {status} {said}");
        serde_json::from_str(&said).unwrap_or(Value::Null)
    }

    /// Posts a body.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Gets something.
    pub async fn get(&self, path: &str) -> Value {
        self.call(Method::GET, path, None).await
    }

    /// Acquires claims in `demo` for five minutes; has to be granted.
    pub async fn acquire(&self, owner: &str, resources: Value) -> Value {
        let body = json!({"process_id": owner, "ttl_ms": 300_000, "resources": resources});
        let answer = self.post("/namespaces/demo/lock-sets/acquire", body).await;
        assert_eq!(answer["success"], true, "{answer}");
        answer
    }

    /// Lets go of everything that an owner has in `demo`.
    pub async fn release(&self, owner: &str) {
        self.post("/namespaces/demo/lock-sets/release", json!({"process_id": owner, "all": true})).await;
    }

    /// Begins to wait for claims in `demo`, and returns once the request stands in the queue. Whoever takes what comes
    /// back hears of the grant.
    pub async fn enqueue(&self, owner: &str, resources: Value) -> JoinHandle<Value> {
        let before = self.waiting_count().await;
        let (tenant, owner) = (self.clone(), owner.to_owned());
        let body = json!({"process_id": owner, "ttl_ms": 300_000, "wait_ms": 300_000, "resources": resources});
        let call = tokio::spawn(async move { tenant.post("/namespaces/demo/lock-sets/acquire", body).await });
        while self.waiting_count().await == before {
            assert!(!call.is_finished(), "it should wait");
        }
        call
    }

    async fn waiting_count(&self) -> usize {
        self.get("/namespaces/demo/waits").await["waits"].as_array().map_or(0, Vec::len)
    }

    /// A key with these scopes: its id and the key.
    pub async fn create_key(&self, body: Value) -> (String, String) {
        let made = self.post("/api-keys", body).await;
        (text(&made["key_id"]), text(&made["api_key"]))
    }

    /// Revokes a key.
    pub async fn revoke_key(&self, key_id: &str) {
        self.call(Method::DELETE, &format!("/api-keys/{key_id}"), None).await;
    }
}
