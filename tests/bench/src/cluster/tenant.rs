//! The account that the load belongs to.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use holdfast_cluster::Application;
use reqwest::Method;
use serde_json::{Value, json};

use super::Cluster;

/// Namespaces for each shard of locks, so that every shard has one of them.
pub(crate) const NAMESPACES_PER_SHARD: usize = 12;
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// An account with a key and no limit of rate.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its id.
    pub account: u64,
    /// Its key, with all scopes.
    pub key: String,
    /// Its namespaces.
    pub namespaces: Vec<String>,
}

impl Cluster {
    /// Makes an account with so many namespaces.
    ///
    /// # Errors
    /// When a call is refused.
    pub async fn create_tenant(&self, namespaces: usize) -> Result<Tenant> {
        self.create_tenant_with_email("bench@example.com", namespaces).await
    }

    /// Makes an account of that address.
    ///
    /// # Errors
    /// When a call is refused.
    pub async fn create_tenant_with_email(&self, email: &str, namespaces: usize) -> Result<Tenant> {
        let operator = self.operator_token();
        let body = json!({
            "email": email, "full_name": "Benchmark", "max_number_of_namespaces": namespaces.max(1),
        });
        let account = self.call(Method::POST, "/v1/accounts", &operator, body).await?;
        let id = account["id"].as_str().context("an account has an id")?.to_owned();
        let limits = json!({"limits": {"max_requests_per_second": 0, "max_holds_per_namespace": 10_000_000}});
        self.call(Method::PATCH, &format!("/v1/accounts/{id}"), &operator, limits).await?;
        let key = self.call(Method::POST, &format!("/v1/accounts/{id}/api-keys"), &operator, json!({})).await?;
        let key = key["api_key"].as_str().context("a new key is shown")?.to_owned();
        let mut names = Vec::new();
        for number in 0..namespaces {
            let name = format!("bench-{number:04}");
            self.call(Method::POST, "/v1/namespaces", &key, json!({"name": name})).await?;
            names.push(name);
        }
        Ok(Tenant { account: u64::from_str_radix(&id, 16)?, key, namespaces: names })
    }

    /// One of the namespaces in every shard of locks that has any, by shard id.
    pub(crate) fn namespace_per_shard(&self, tenant: &Tenant) -> BTreeMap<String, String> {
        let shard = |namespace: &str| self.map.shard_of(Application::Locks, tenant.account, namespace).id.clone();
        tenant.namespaces.iter().map(|namespace| (shard(namespace), namespace.clone())).collect()
    }

    /// Changes limits of an account.
    ///
    /// # Errors
    /// When the call is refused.
    pub async fn update_limits(&self, tenant: &Tenant, limits: Value) -> Result<()> {
        let path = format!("/v1/accounts/{:016x}", tenant.account);
        self.call(Method::PATCH, &path, &self.operator_token(), json!({"limits": limits})).await.map(drop)
    }

    fn operator_token(&self) -> String {
        self.secrets.operator_token().reveal().expose().to_owned()
    }

    async fn call(&self, method: Method, path: &str, bearer: &str, body: Value) -> Result<Value> {
        let url = format!("http://{}{path}", self.gateway());
        let request = self.http.request(method, url).timeout(CALL_TIMEOUT).bearer_auth(bearer).json(&body);
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        if !status.is_success() {
            bail!("{path} answers {status}: {text}");
        }
        Ok(serde_json::from_str(&text)?)
    }
}
