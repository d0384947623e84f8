//! The account that the load belongs to.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use holdfast_cluster::Application;
use holdfast_testkit::Cluster;
use serde_json::{Value, json};

/// Namespaces for each shard of locks, so that every shard has one of them.
pub(crate) const NAMESPACES_PER_SHARD: usize = 12;

/// An account with a key and no rate limit.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its id.
    pub account: u64,
    /// Its key, with all scopes.
    pub key: String,
    /// Its namespaces.
    pub namespaces: Vec<String>,
}

/// Creates an account with so many namespaces.
///
/// # Errors
/// If a call fails.
pub async fn create_tenant(cluster: &Cluster, namespaces: usize) -> Result<Tenant> {
    create_tenant_with_email(cluster, "bench@example.com", namespaces).await
}

/// Creates an account with that email address.
///
/// # Errors
/// If a call fails.
pub async fn create_tenant_with_email(cluster: &Cluster, email: &str, namespaces: usize) -> Result<Tenant> {
    let operator = cluster.operator_client(0);
    let body = json!({
        "email": email, "full_name": "Benchmark", "max_number_of_namespaces": 2 * namespaces.max(1),
    });
    let account: Value = operator.fetch("POST /v1/accounts", Some(body)).await?;
    let id = account["id"].as_str().context("an account has an id")?.to_owned();
    let limits = json!({"limits": {
        "max_requests_per_second": 0, "max_holds_per_namespace": 10_000_000, "max_namespace_changes": 6_000,
    }});
    operator.fetch::<Value>(&format!("PATCH /v1/accounts/{id}"), Some(limits)).await?;
    let key: Value = operator.fetch(&format!("POST /v1/accounts/{id}/api-keys"), Some(json!({}))).await?;
    let key = key["api_key"].as_str().context("a new key is shown")?.to_owned();
    let client = operator.with_key(&key);
    let mut names = Vec::new();
    for number in 0..namespaces {
        let name = format!("bench-{number:04}");
        client.create_namespace(&name, &name).await?;
        names.push(name);
    }
    Ok(Tenant { account: u64::from_str_radix(&id, 16)?, key, namespaces: names })
}

/// Creates as many namespaces whose lock tables are in the memory of leaders as the account has others. Returns them.
///
/// # Errors
/// If a call fails.
pub async fn create_session_namespaces(cluster: &Cluster, tenant: &Tenant) -> Result<Vec<String>> {
    let names: Vec<String> = tenant.namespaces.iter().map(|name| format!("{name}-session")).collect();
    create_in_memory(cluster, tenant, names).await
}

/// Creates so many namespaces of one shard whose lock tables are in the memory of its leader. Returns them.
///
/// # Errors
/// If a call fails.
pub async fn create_session_namespaces_in_one_shard(
    cluster: &Cluster,
    tenant: &Tenant,
    count: usize,
) -> Result<Vec<String>> {
    let shard = |namespace: &str| cluster.map.shard_of(Application::Locks, tenant.account, namespace).id.clone();
    let candidates = (0..).map(|number| format!("memory-{number:04}"));
    let one = shard("memory-0000");
    let names: Vec<String> = candidates.filter(|name| shard(name) == one).take(count).collect();
    create_in_memory(cluster, tenant, names).await
}

/// Creates namespaces whose lock tables are in the memory of leaders. Returns them.
async fn create_in_memory(cluster: &Cluster, tenant: &Tenant, names: Vec<String>) -> Result<Vec<String>> {
    let client = cluster.rest_client(0, &tenant.key);
    for name in &names {
        let body = json!({"name": name, "durability": "SESSION"});
        client.fetch::<Value>("POST /v1/namespaces", Some(body)).await?;
    }
    Ok(names)
}

/// Returns one of the namespaces in every shard of locks that has any, by shard id.
pub fn namespace_per_shard(cluster: &Cluster, tenant: &Tenant) -> BTreeMap<String, String> {
    let shard = |namespace: &str| cluster.map.shard_of(Application::Locks, tenant.account, namespace).id.clone();
    tenant.namespaces.iter().map(|namespace| (shard(namespace), namespace.clone())).collect()
}

/// Changes limits of an account.
///
/// # Errors
/// If the call fails.
pub async fn update_limits(cluster: &Cluster, tenant: &Tenant, limits: Value) -> Result<()> {
    let line = format!("PATCH /v1/accounts/{:016x}", tenant.account);
    cluster.operator_client(0).fetch::<Value>(&line, Some(json!({"limits": limits}))).await?;
    Ok(())
}
