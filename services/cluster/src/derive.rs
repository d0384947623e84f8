//! Derives the groups of a seed, which lists the replicas of each shard.
//!
//! Shards whose replicas are on the same nodes, with the first on the same node, form a group. Its first shard in the
//! config is its *anchor*: the ids of the anchor's replicas identify the replicas of the group. The ids of the other
//! shards' replicas are never used.

use std::collections::BTreeMap;

use crate::config::MAX_GROUPS;
use crate::validate::{self, ReplicaIds, ReplicaList};
use crate::{ClusterConfig, ConfigError, GroupConfig, MAX_REPLICA_ID, Replica};

/// Returns the valid config of a seed. `config` has no groups yet, and the replicas of each of its shards are in
/// `replicas`, in the order of [`ClusterConfig::shards`].
pub(crate) fn derive(mut config: ClusterConfig, replicas: &[Vec<Replica>]) -> Result<ClusterConfig, ConfigError> {
    let ids = check_seed(&config, replicas)?;
    let mut groups: Vec<GroupConfig> = Vec::new();
    let mut by_nodes: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    let shards = config.applications.iter_mut().flat_map(|application| &mut application.shards);
    for (shard, replicas) in shards.zip(replicas) {
        let index = *by_nodes.entry(nodes_of(replicas)).or_insert_with(|| {
            groups.push(GroupConfig { id: format!("g{}", groups.len() + 1), replicas: replicas.clone() });
            groups.len() - 1
        });
        shard.group.clone_from(&groups[index].id);
    }
    if groups.len() > MAX_GROUPS {
        return Err(ConfigError::invalid(
            "applications",
            format!("the replicas of its shards make {} groups", groups.len()),
            format!("give more shards the same nodes, in the same order: at most {MAX_GROUPS} groups"),
        ));
    }
    config.groups = groups;
    config.next_replica_id = Some(next_replica_id(&config, &ids)?);
    config.validate()?;
    Ok(config)
}

/// Checks all of a seed, so that errors name its places, and returns the replica ids.
fn check_seed(config: &ClusterConfig, replicas: &[Vec<Replica>]) -> Result<ReplicaIds, ConfigError> {
    validate::check_header(config)?;
    let mut ids = ReplicaIds::default();
    let mut replicas = replicas.iter();
    validate::check_shards(config, |place, application, _| {
        let replicas = replicas.next().map_or(&[][..], Vec::as_slice);
        validate::check_replica_count(place, replicas.len(), application, "")?;
        validate::check_replicas(&ReplicaList { place, owner: "shard", replicas }, config, &mut ids)
    })?;
    validate::check_next_replica_id(config.next_replica_id, &ids)?;
    Ok(ids)
}

/// Returns an id above every id of the seed, because all of them count as used.
fn next_replica_id(config: &ClusterConfig, ids: &ReplicaIds) -> Result<u64, ConfigError> {
    let Some((highest, place)) = ids.last_key_value() else { return Ok(config.next_replica_id.unwrap_or(1)) };
    if *highest >= MAX_REPLICA_ID {
        let problem = format!("is {highest}, so that no id is left for further replicas");
        return Err(ConfigError::invalid(place, problem, "use a lower one"));
    }
    Ok(config.next_replica_id.unwrap_or(0).max(highest + 1))
}

/// Returns the node of the first replica, then those of the others in order of id.
fn nodes_of(replicas: &[Replica]) -> Vec<&str> {
    let mut nodes: Vec<&str> = replicas.iter().map(|replica| replica.node_id.as_str()).collect();
    if let Some((_, others)) = nodes.split_first_mut() {
        others.sort_unstable();
    }
    nodes
}

#[cfg(test)]
#[path = "derive_tests.rs"]
mod tests;
