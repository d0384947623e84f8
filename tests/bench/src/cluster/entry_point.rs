//! Where clients enter the cluster.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use bytes::Bytes;
use holdfast_testkit::{Cluster, RestClient};
use serde::{Deserialize, Serialize};

use super::Tenant;

/// Every answer of a shard of locks names the gateway of the node that leads it there.
const LEADER_HEADER: &str = "holdfast-leader";

/// Where clients of this service connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EntryPoint {
    /// To a gateway in a process of its own.
    Gateway,
    /// To the node that leads the shard of their namespace: nodes serve gateways, and there are no others.
    Leader,
}

impl EntryPoint {
    /// That of a running cluster.
    pub fn of(cluster: &Cluster) -> Self {
        if cluster.gateways.is_empty() { Self::Leader } else { Self::Gateway }
    }
}

/// Returns where the clients of each of these namespaces connect, in the same order. One call for each namespace learns
/// who leads its shard now.
///
/// # Errors
/// If a leader is to be found and a call fails or its answer names none.
pub(crate) async fn entry_addresses(
    cluster: &Cluster,
    tenant: &Tenant,
    namespaces: &[String],
) -> Result<Vec<SocketAddr>> {
    if EntryPoint::of(cluster) == EntryPoint::Gateway {
        return Ok(vec![cluster.gateway_address(0); namespaces.len()]);
    }
    let api = cluster.rest_client(0, &tenant.key);
    let mut addresses = Vec::with_capacity(namespaces.len());
    for namespace in namespaces {
        addresses.push(leader_address(&api, namespace).await?);
    }
    Ok(addresses)
}

/// Asks for a lock that nobody takes.
async fn leader_address(api: &RestClient, namespace: &str) -> Result<SocketAddr> {
    let answer = api.try_send(&format!("GET /v1/namespaces/{namespace}/locks/none"), &[], Bytes::new()).await?;
    let named = answer.header(LEADER_HEADER).parse::<SocketAddr>();
    named.with_context(|| format!("{namespace}: no leader is named by the answer {} {}", answer.status, answer.text))
}
