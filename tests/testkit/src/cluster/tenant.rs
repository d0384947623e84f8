//! Accounts and their namespaces.

use holdfast_cluster::{Application, shard_key};
use holdfast_types::{AccountId, NamespaceRef};
use serde_json::{Value, json};

use super::Cluster;

/// An account and a key of it with all scopes.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// The account.
    pub account: AccountId,
    /// The key.
    pub key: String,
}

impl Cluster {
    /// Creates an account with a key and namespaces, and without a rate limit.
    ///
    /// # Panics
    /// If a call fails.
    pub async fn create_tenant(&self, name: &str, namespaces: &[&str]) -> Tenant {
        let tenant = self.create_tenant_with_default_limits(name).await;
        let unlimited = json!({"max_number_of_namespaces": 10_000, "limits": {"max_requests_per_second": 0}});
        self.update_account(&tenant, unlimited).await;
        let api = self.rest_client(0, &tenant.key);
        for namespace in namespaces {
            api.create_namespace(namespace, &format!("first {namespace}"))
                .await
                .unwrap_or_else(|error| panic!("{namespace}: {error}"));
        }
        tenant
    }

    /// Creates an account with a key and the default limits.
    ///
    /// # Panics
    /// If a call fails.
    pub async fn create_tenant_with_default_limits(&self, name: &str) -> Tenant {
        let operator = self.operator_client(0);
        let body = json!({"email": format!("{name}@example.com"), "full_name": name});
        let account = operator.json("POST /v1/accounts", body).await.ok();
        let id = account["id"].as_str().expect("an account has an id").to_owned();
        let key = operator.json(&format!("POST /v1/accounts/{id}/api-keys"), json!({})).await.ok();
        let key = key["api_key"].as_str().expect("a new key is shown").to_owned();
        Tenant { account: id.parse().expect("the id of an account can be parsed"), key }
    }

    /// Changes an account, as the operator.
    ///
    /// # Panics
    /// If the call fails.
    pub async fn update_account(&self, tenant: &Tenant, change: Value) {
        self.operator_client(0).json(&format!("PATCH /v1/accounts/{}", tenant.account), change).await.ok();
    }

    /// The shard of a namespace's locks.
    pub fn locks_shard(&self, tenant: &Tenant, namespace: &str) -> String {
        self.map.shard_of(Application::Locks, tenant.account.0, namespace).id.clone()
    }

    /// The key of a namespace's locks, which their shard owns.
    pub fn locks_key(&self, tenant: &Tenant, namespace: &str) -> u32 {
        shard_key(Application::Locks, tenant.account.0, namespace)
    }

    /// The group that holds the shard of a namespace's locks, in the configuration at the start.
    pub fn locks_group(&self, tenant: &Tenant, namespace: &str) -> String {
        self.map.shard_of(Application::Locks, tenant.account.0, namespace).group.clone()
    }

    /// The shard of a tenant's namespaces.
    pub fn namespaces_shard(&self, tenant: &Tenant) -> String {
        self.map.shard_of(Application::Namespaces, tenant.account.0, "").id.clone()
    }

    /// Returns a namespace as nodes know it.
    ///
    /// # Panics
    /// If there is none of that name.
    pub async fn namespace_ref(&self, tenant: &Tenant, name: &str) -> NamespaceRef {
        let shown = self.rest_client(0, &tenant.key).call(&format!("GET /v1/namespaces/{name}")).await.ok();
        let incarnation = shown["id"].as_str().and_then(|id| id.parse().ok()).expect("a namespace has an id");
        NamespaceRef { account: tenant.account, name: name.to_owned(), incarnation }
    }
}
