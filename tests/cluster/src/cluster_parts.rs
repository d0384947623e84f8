//! Parts of a running cluster that only these tests need.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_routing::{Router, RoutingOptions, TcpDialer};
use holdfast_testkit::{Cluster, Tenant};

use crate::history::LockId;

/// Starts a router to the shards, as a gateway has one, for loads that are to be measured without a gateway.
pub fn start_router(cluster: &Cluster, caller: &str) -> Router {
    let (signer, options) = (cluster.secrets.signer(), RoutingOptions::default());
    Router::start(cluster.map.clone(), signer, caller.to_owned(), Arc::new(TcpDialer), options, None)
}

/// Returns so many locks in each of these namespaces.
pub fn lock_ids(cluster: &Cluster, tenant: &Tenant, namespaces: &[&str], in_each: usize) -> Vec<LockId> {
    let in_one = |namespace: &&str| -> Vec<LockId> {
        (1..=in_each).map(|lock| lock_id(cluster, tenant, namespace, &format!("lock-{lock}"))).collect()
    };
    namespaces.iter().flat_map(in_one).collect()
}

/// Returns a lock of a tenant, for the history.
pub fn lock_id(cluster: &Cluster, tenant: &Tenant, namespace: &str, name: &str) -> LockId {
    let shard = cluster.locks_shard(tenant, namespace);
    LockId { shard: shard.into(), namespace: namespace.into(), name: name.into() }
}

/// Returns the shards that these locks are in.
pub fn shards_of(locks: &[LockId]) -> Vec<String> {
    let shards: BTreeSet<String> = locks.iter().map(|lock| lock.shard.to_string()).collect();
    shards.into_iter().collect()
}
