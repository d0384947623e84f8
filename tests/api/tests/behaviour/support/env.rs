//! The environment of a test: the shared process, an account of its own, and a namespace `ns`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_testkit::{Standalone, scratch};
use serde_json::{Value, json};

use super::{LockClient, RestClient, wait_until};

static SERVER: OnceLock<Standalone> = OnceLock::new();
static ACCOUNT_METADATA_SERVER: OnceLock<Standalone> = OnceLock::new();
static NEXT_ACCOUNT: AtomicU32 = AtomicU32::new(0);

/// The process that most tests share.
pub(crate) fn server() -> &'static Standalone {
    SERVER.get_or_init(|| Standalone::start(&scratch(), &[]))
}

/// One that lets dlocks clients name their account.
pub(crate) fn account_metadata_server() -> &'static Standalone {
    ACCOUNT_METADATA_SERVER.get_or_init(|| Standalone::start(&scratch(), &["--dlocks-account-metadata"]))
}

/// The operator of a process.
pub(crate) fn operator_client(server: &Standalone) -> RestClient {
    RestClient::new(server.address(), &server.secret("operator.token"))
}

/// An account, and a key of it with every scope.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) account: String,
    pub(crate) email: String,
    pub(crate) rest: RestClient,
}

/// Makes an account.
pub(crate) async fn create_tenant(server: &Standalone) -> Tenant {
    let operator = operator_client(server);
    let email = format!("tenant-{}@example.com", NEXT_ACCOUNT.fetch_add(1, Ordering::Relaxed));
    let body = json!({"email": email, "full_name": "Tenant"});
    let account = operator.json("POST /v1/accounts", body).await.ok()["id"].as_str().unwrap().to_owned();
    let key = operator.call(&format!("POST /v1/accounts/{account}/api-keys")).await.ok();
    let rest = operator.with_key(key["api_key"].as_str().unwrap());
    Tenant { account, email, rest }
}

impl Tenant {
    /// Changes the account, as the operator.
    pub(crate) async fn update(&self, server: &Standalone, change: Value) {
        operator_client(server).json(&format!("PATCH /v1/accounts/{}", self.account), change).await.ok();
    }

    /// Makes a namespace.
    pub(crate) async fn create_namespace(&self, name: &str) -> Value {
        self.rest.json("POST /v1/namespaces", json!({"name": name})).await.ok()
    }
}

/// A client of a frontend, and a REST client of the same account to observe it.
pub(crate) struct TestEnv<D> {
    pub(crate) client: D,
    pub(crate) rest: RestClient,
    pub(crate) tenant: Tenant,
}

impl<D: LockClient> TestEnv<D> {
    /// In the shared process.
    pub(crate) async fn open() -> Self {
        Self::open_in(server()).await
    }

    pub(crate) async fn open_in(server: &Standalone) -> Self {
        let tenant = create_tenant(server).await;
        tenant.create_namespace("ns").await;
        let rest = tenant.rest.clone();
        Self { client: D::connect(&rest).await, rest, tenant }
    }

    /// Waits until so many requests wait for a lock.
    pub(crate) async fn wait_for_queue(&self, lock: &str, waiting: u64) {
        let line = format!("GET /v1/namespaces/ns/locks/{lock}");
        let (rest, line) = (&self.rest, &line);
        wait_until(&format!("{waiting} wait for {lock}"), || async move {
            rest.call(line).await.ok()["lock"]["waiting"] == waiting
        })
        .await;
    }

    /// A call in `ns`, which is no error.
    pub(crate) async fn post(&self, call: &str, body: Value) -> Value {
        self.rest.json(&format!("POST /v1/namespaces/ns/{call}"), body).await.ok()
    }

    /// The names of the locks that are held in `ns`.
    pub(crate) async fn held_locks(&self) -> Vec<String> {
        let page = self.rest.call("GET /v1/namespaces/ns/locks").await.ok();
        page["locks"].as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
    }
}
