//! A running service with a tenant for each test.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_testkit::{RestClient, Standalone, scratch};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

static SERVER: OnceLock<Standalone> = OnceLock::new();
const LOCKS_PATH: &str = "/namespaces/demo/lock-sets/acquire";
const PERMITS_PATH: &str = "/namespaces/demo/semaphores/acquire";
const MEMBERS_PATH: &str = "/namespaces/demo/pools/take";
const AWAIT_PATH: &str = "/namespaces/demo/conditions/await";
static NEXT_TENANT: AtomicU32 = AtomicU32::new(0);

/// The service of all tests of a process.
pub(crate) fn server() -> &'static Standalone {
    SERVER.get_or_init(|| Standalone::start(&scratch(), &[]))
}

/// The token of its operator.
pub fn operator_token() -> String {
    server().secret("operator.token")
}

/// A client of the API beside the browser. Its functions panic if the answer is an error.
#[derive(Clone, Debug)]
pub struct Tenant {
    client: RestClient,
    /// The account.
    pub account: String,
    /// A key with all scopes.
    pub key: String,
}

/// Creates an account with a namespace `demo`.
pub async fn create_tenant() -> Tenant {
    let operator = RestClient::new(server().address(), &operator_token());
    let number = NEXT_TENANT.fetch_add(1, Ordering::Relaxed);
    let email = format!("tenant-{number}@example.com");
    let body = json!({"email": email, "full_name": "A tenant"});
    let account = text(&operator.json("POST /v1/accounts", body).await.ok()["id"]);
    let key = operator.json(&format!("POST /v1/accounts/{account}/api-keys"), json!({})).await.ok();
    let key = text(&key["api_key"]);
    let tenant = Tenant { client: operator.with_key(&key), account, key };
    tenant.post("/namespaces", json!({"name": "demo"})).await;
    tenant
}

fn permits_body(owner: &str, semaphore: &str, weight: u32, wait_ms: u32) -> Value {
    json!({"name": semaphore, "process_id": owner, "request_id": "1", "weight": weight, "ttl_ms": 300_000,
        "wait_ms": wait_ms})
}

fn members_body(owner: &str, pool: &str, wanted: &Value, wait_ms: u32) -> Value {
    let mut body = json!({"name": pool, "process_id": owner, "request_id": "1", "ttl_ms": 300_000, "wait_ms": wait_ms});
    let key = if wanted.is_string() { "member" } else { "count" };
    body[key] = wanted.clone();
    body
}

/// The text in a value.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

impl Tenant {
    /// The same with another key.
    pub fn with_key(&self, key: &str) -> Self {
        Self { client: self.client.with_key(key), key: key.to_owned(), account: self.account.clone() }
    }

    /// Posts a body to a path below `/v1`.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        self.client.json(&format!("POST /v1{path}"), body).await.ok()
    }

    /// Gets the object at a path below `/v1`.
    pub async fn get(&self, path: &str) -> Value {
        self.client.call(&format!("GET /v1{path}")).await.ok()
    }

    /// Acquires claims in `demo` for five minutes; they have to be granted.
    pub async fn acquire(&self, owner: &str, resources: Value) -> Value {
        let body = json!({"process_id": owner, "ttl_ms": 300_000, "resources": resources});
        self.post_granted(LOCKS_PATH, body).await
    }

    /// Releases everything that an owner holds in `demo`.
    pub async fn release(&self, owner: &str) {
        self.post("/namespaces/demo/lock-sets/release", json!({"process_id": owner, "all": true})).await;
    }

    /// Requests claims in `demo`, and returns once the request is in the queue. The task returns the grant.
    pub async fn enqueue(&self, owner: &str, resources: Value) -> JoinHandle<Value> {
        let body = json!({"process_id": owner, "ttl_ms": 300_000, "wait_ms": 300_000, "resources": resources});
        self.post_waiting("locks", LOCKS_PATH, body).await
    }

    /// Acquires permits in `demo` for five minutes; they have to be granted.
    pub async fn acquire_permits(&self, owner: &str, semaphore: &str, weight: u32) {
        self.post_granted(PERMITS_PATH, permits_body(owner, semaphore, weight, 0)).await;
    }

    /// Requests permits in `demo`, and returns once the request is in the queue. The task returns the grant.
    pub async fn enqueue_permits(&self, owner: &str, semaphore: &str, weight: u32) -> JoinHandle<Value> {
        self.post_waiting("semaphores", PERMITS_PATH, permits_body(owner, semaphore, weight, 300_000)).await
    }

    /// Takes a number of members of a pool in `demo`, or the member with a name, for five minutes; they have to be
    /// granted.
    pub async fn take_members(&self, owner: &str, pool: &str, wanted: Value) {
        self.post_granted(MEMBERS_PATH, members_body(owner, pool, &wanted, 0)).await;
    }

    /// Requests members as [`Self::take_members`], and returns once the request is in the queue. The task returns the
    /// grant.
    pub async fn enqueue_members(&self, owner: &str, pool: &str, wanted: Value) -> JoinHandle<Value> {
        self.post_waiting("pools", MEMBERS_PATH, members_body(owner, pool, &wanted, 300_000)).await
    }

    /// Takes the flat lock of this name in `demo`, and gives it up to await a condition of it. Returns once it awaits
    /// that. The task returns the grant.
    pub async fn await_condition(&self, owner: &str, lock: &str, condition: &str) -> JoinHandle<Value> {
        let held = self.acquire(owner, json!([{"path": [lock]}])).await;
        let body = json!({
            "name": lock, "process_id": owner, "fencing_token": held["fencing_token"], "condition": condition,
            "ttl_ms": 300_000, "wait_ms": 300_000,
        });
        self.post_waiting("conditions", AWAIT_PATH, body).await
    }

    async fn post_granted(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer["success"], true, "{answer}");
        answer
    }

    /// Posts a request in a task, and returns once it is in a queue of things of these kinds.
    async fn post_waiting(&self, kinds: &str, path: &'static str, body: Value) -> JoinHandle<Value> {
        let (before, tenant) = (self.waiting_count(kinds).await, self.clone());
        let call = tokio::spawn(async move { tenant.post(path, body).await });
        while self.waiting_count(kinds).await == before {
            assert!(!call.is_finished(), "it should wait");
        }
        call
    }

    async fn waiting_count(&self, kinds: &str) -> usize {
        self.get(&format!("/namespaces/demo/waits?kinds={kinds}")).await["waits"].as_array().map_or(0, Vec::len)
    }

    /// A key with these scopes: its id and the key.
    pub async fn create_key(&self, body: Value) -> (String, String) {
        let made = self.post("/api-keys", body).await;
        (text(&made["key_id"]), text(&made["api_key"]))
    }

    /// Revokes a key.
    pub async fn revoke_key(&self, key_id: &str) {
        self.client.call(&format!("DELETE /v1/api-keys/{key_id}")).await.ok();
    }
}
