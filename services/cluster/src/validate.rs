//! Rejects unusable configs, with the location of the first problem.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::{Application, ApplicationConfig, ClusterConfig, ConfigError, MAX_GROUPS, Node, Replica, Shard};

/// Longest id of a node, a group or a shard, in bytes.
pub const MAX_ID_BYTES: usize = 64;
/// The greatest replica id and version: both are exact as JSON numbers everywhere.
pub const MAX_REPLICA_ID: u64 = (1 << 53) - 1;
/// Maximum shards of one application.
pub const MAX_SHARDS_PER_APPLICATION: usize = 4_096;

/// Each replica id with its first location.
pub(crate) type ReplicaIds = BTreeMap<u64, String>;

/// The replicas of a group, or those of a shard of a seed.
pub(crate) struct ReplicaList<'a> {
    /// The location of the group or shard.
    pub(crate) place: &'a str,
    /// "group" or "shard".
    pub(crate) owner: &'a str,
    pub(crate) replicas: &'a [Replica],
}

impl ClusterConfig {
    /// Checks that every key of every application has exactly one shard, every shard a known group, and every group its
    /// replicas on different known nodes, as many as the applications that it serves ask for. Also checks that no id
    /// repeats, and that addresses are dialable.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for the first problem, with its location and the remedy.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_header(self)?;
        let mut ids = ReplicaIds::default();
        check_groups(self, &mut ids)?;
        // The applications that each group serves.
        let mut served: BTreeSet<(usize, Application)> = BTreeSet::new();
        let groups: BTreeMap<&str, usize> =
            self.groups.iter().enumerate().map(|(index, group)| (group.id.as_str(), index)).collect();
        check_shards(self, |place, application, shard| {
            let Some(index) = groups.get(shard.group.as_str()) else {
                let problem = format!("there is no group {:?}", shard.group);
                let remedy = "name one of groups, or add it there";
                return Err(ConfigError::invalid(format!("{place}.group"), problem, remedy));
            };
            served.insert((*index, application.name));
            Ok(())
        })?;
        for (index, name) in served {
            let Some(application) = self.application(name) else { continue };
            let count = self.groups[index].replicas.len();
            check_replica_count(&format!("groups[{index}]"), count, application, &format!(" for {name}"))?;
        }
        check_next_replica_id(self.next_replica_id, &ids)
    }
}

/// Checks all but groups, shards and replicas.
pub(crate) fn check_header(config: &ClusterConfig) -> Result<(), ConfigError> {
    if config.version == 0 || config.version > MAX_REPLICA_ID {
        return Err(ConfigError::invalid(
            "version",
            format!("is {}", config.version),
            "start at 1 and raise it with each change",
        ));
    }
    if config.rules == Some(0) {
        return Err(ConfigError::invalid("rules", "is 0", "the first rules are 1; leave it out to change nothing"));
    }
    check_nodes(&config.nodes)?;
    check_applications(&config.applications)
}

/// Checks the ids and the bounds of all shards. Calls `check` with the location of each, in the order of
/// [`ClusterConfig::shards`].
pub(crate) fn check_shards<'a>(
    config: &'a ClusterConfig,
    mut check: impl FnMut(&str, &'a ApplicationConfig, &'a Shard) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    let mut ids = BTreeMap::new();
    for (index, application) in config.applications.iter().enumerate() {
        let place = format!("applications[{index}]");
        check_size_at(&place, &config.nodes, application.shards.len(), application.replication_factor)?;
        for (index, shard) in application.shards.iter().enumerate() {
            let place = format!("{place}.shards[{index}]");
            check_unique_id(&format!("{place}.id"), &shard.id, &mut ids)?;
            check(&place, application, shard)?;
        }
        check_ranges(&place, &application.shards)?;
    }
    Ok(())
}

fn check_groups(config: &ClusterConfig, ids: &mut ReplicaIds) -> Result<(), ConfigError> {
    if config.groups.len() > MAX_GROUPS {
        let problem = format!("there are {}", config.groups.len());
        return Err(ConfigError::invalid("groups", problem, format!("use at most {MAX_GROUPS}")));
    }
    let mut seen = BTreeMap::new();
    for (index, group) in config.groups.iter().enumerate() {
        let place = format!("groups[{index}]");
        check_unique_id(&format!("{place}.id"), &group.id, &mut seen)?;
        if group.replicas.is_empty() {
            let remedy = "give the group a replica on at least one node";
            return Err(ConfigError::invalid(format!("{place}.replicas"), "the list is empty", remedy));
        }
        check_replicas(&ReplicaList { place: &place, owner: "group", replicas: &group.replicas }, config, ids)?;
    }
    Ok(())
}

fn check_unique_id<'a>(place: &str, id: &'a str, seen: &mut BTreeMap<&'a str, String>) -> Result<(), ConfigError> {
    check_id(place, id)?;
    match seen.insert(id, place.to_owned()) {
        Some(first) => Err(duplicate_error(place, &format!("{id:?}"), &first)),
        None => Ok(()),
    }
}

fn check_unique_address<'a>(
    place: &str,
    address: &'a str,
    seen: &mut BTreeMap<&'a str, String>,
) -> Result<(), ConfigError> {
    check_address(place, address)?;
    match seen.insert(address, place.to_owned()) {
        Some(first) => Err(duplicate_error(place, &format!("{address:?}"), &first)),
        None => Ok(()),
    }
}

/// Checks the number of replicas of a shard or group. `of` says whose factor it is, where the place does not.
pub(crate) fn check_replica_count(
    place: &str,
    count: usize,
    application: &ApplicationConfig,
    of: &str,
) -> Result<(), ConfigError> {
    let wanted = application.replication_factor as usize;
    if count == wanted || count == wanted + 1 {
        return Ok(());
    }
    Err(ConfigError::invalid(
        format!("{place}.replicas"),
        format!("there are {count}, but replication_factor is {wanted}{of}"),
        "make them equal, or keep one more while a replica moves",
    ))
}

/// Checks that the replicas are on different known nodes, and that their ids are new.
pub(crate) fn check_replicas(
    list: &ReplicaList<'_>,
    config: &ClusterConfig,
    ids: &mut ReplicaIds,
) -> Result<(), ConfigError> {
    let ReplicaList { place, owner, replicas } = list;
    for (index, replica) in replicas.iter().enumerate() {
        let id_place = format!("{place}.replicas[{index}].id");
        if replica.id == 0 || replica.id > MAX_REPLICA_ID {
            let problem = format!("is {}", replica.id);
            return Err(ConfigError::invalid(id_place, problem, "use a number from 1 to below 2^53"));
        }
        if let Some(first) = ids.insert(replica.id, id_place.clone()) {
            return Err(duplicate_error(&id_place, &replica.id.to_string(), &first));
        }
        let node_place = format!("{place}.replicas[{index}].node_id");
        if config.node(&replica.node_id).is_none() {
            let problem = format!("there is no node {:?}", replica.node_id);
            return Err(ConfigError::invalid(node_place, problem, "name one of nodes, or add it there"));
        }
        if let Some(first) = replicas[..index].iter().position(|other| other.node_id == replica.node_id) {
            return Err(ConfigError::invalid(
                node_place,
                format!("{:?} already keeps {place}.replicas[{first}] of this {owner}", replica.node_id),
                format!("put each replica of a {owner} on another node"),
            ));
        }
    }
    Ok(())
}

pub(crate) fn check_next_replica_id(next: Option<u64>, ids: &ReplicaIds) -> Result<(), ConfigError> {
    let (Some(next), Some((highest, place))) = (next, ids.last_key_value()) else { return Ok(()) };
    if next > *highest && next <= MAX_REPLICA_ID {
        return Ok(());
    }
    let remedy = format!("set it to {} or more, below 2^53", highest + 1);
    Err(ConfigError::invalid("next_replica_id", format!("is {next}, and {place} is {highest}"), remedy))
}

/// Rejects sizes that `generate` does not support.
pub(crate) fn check_size(nodes: &[Node], shards: u32, replication_factor: u32) -> Result<(), ConfigError> {
    check_nodes(nodes)?;
    check_size_at("applications[1]", nodes, shards as usize, replication_factor)
}

fn check_nodes(nodes: &[Node]) -> Result<(), ConfigError> {
    if nodes.is_empty() {
        return Err(ConfigError::invalid("nodes", "the list is empty", "name at least one node"));
    }
    let mut ids = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    let mut gateway_addresses = BTreeMap::new();
    for (index, node) in nodes.iter().enumerate() {
        let place = format!("nodes[{index}]");
        check_unique_id(&format!("{place}.id"), &node.id, &mut ids)?;
        check_unique_address(&format!("{place}.address"), &node.address, &mut addresses)?;
        if let Some(gateway) = &node.gateway_address {
            check_unique_address(&format!("{place}.gateway_address"), gateway, &mut gateway_addresses)?;
        }
    }
    Ok(())
}

fn check_applications(applications: &[ApplicationConfig]) -> Result<(), ConfigError> {
    for (index, application) in applications.iter().enumerate() {
        if let Some(first) = applications[..index].iter().position(|other| other.name == application.name) {
            return Err(ConfigError::invalid(
                format!("applications[{index}].name"),
                format!("{} is already at applications[{first}]", application.name),
                "keep one of them",
            ));
        }
    }
    for wanted in Application::ALL {
        if !applications.iter().any(|application| application.name == wanted) {
            return Err(ConfigError::invalid(
                "applications",
                format!("{wanted} is missing"),
                "list each of Accounts, Namespaces and Locks once",
            ));
        }
    }
    Ok(())
}

fn check_size_at(place: &str, nodes: &[Node], shards: usize, replication_factor: u32) -> Result<(), ConfigError> {
    let factor_place = format!("{place}.replication_factor");
    if replication_factor == 0 {
        return Err(ConfigError::invalid(factor_place, "is 0", "use 1, or 3 to survive the loss of a node"));
    }
    if replication_factor as usize > nodes.len() {
        return Err(ConfigError::invalid(
            factor_place,
            format!("is {replication_factor}, and there are only {} nodes for replicas of a shard", nodes.len()),
            "add nodes or lower it",
        ));
    }
    let shards_place = format!("{place}.shards");
    if shards == 0 {
        return Err(ConfigError::invalid(shards_place, "the list is empty", "give the application at least one shard"));
    }
    if shards > MAX_SHARDS_PER_APPLICATION {
        return Err(ConfigError::invalid(
            shards_place,
            format!("there are {shards}"),
            format!("use at most {MAX_SHARDS_PER_APPLICATION}"),
        ));
    }
    Ok(())
}

/// Checks that the ranges cover every key once. Shards may be listed in any order.
fn check_ranges(place: &str, shards: &[Shard]) -> Result<(), ConfigError> {
    let mut sorted: Vec<(usize, &Shard)> = shards.iter().enumerate().collect();
    sorted.sort_by_key(|(_, shard)| shard.lower_bound);
    // The first key that no shard so far owns, as u64 because it ends at 2^32.
    let mut expected = 0_u64;
    let mut before: Option<usize> = None;
    for &(index, shard) in &sorted {
        let lower_place = format!("{place}.shards[{index}].lower_bound");
        let lower = u64::from(shard.lower_bound);
        let neighbour = before.map_or(String::new(), |before| format!(" after {place}.shards[{before}]"));
        if shard.lower_bound > shard.upper_bound {
            return Err(ConfigError::invalid(
                lower_place,
                format!("{lower:08x} is above the upper_bound {:08x}", shard.upper_bound),
                "swap or correct the bounds",
            ));
        }
        if lower > expected {
            return Err(ConfigError::invalid(
                lower_place,
                format!(
                    "is {lower:08x}, so that no shard owns the keys {expected:08x} to {:08x}{neighbour}",
                    lower - 1
                ),
                format!("set it to {expected:08x}, or add a shard for them"),
            ));
        }
        if lower < expected {
            let end = (expected - 1).min(u64::from(shard.upper_bound));
            let remedy = if expected <= u64::from(shard.upper_bound) {
                format!("set it to {expected:08x}")
            } else {
                "remove one of the two, or correct their bounds".to_owned()
            };
            let problem =
                format!("is {lower:08x}, so that two shards own the keys {lower:08x} to {end:08x}{neighbour}");
            return Err(ConfigError::invalid(lower_place, problem, remedy));
        }
        expected = u64::from(shard.upper_bound) + 1;
        before = Some(index);
    }
    let last = before.unwrap_or_default();
    if expected <= u64::from(u32::MAX) {
        return Err(ConfigError::invalid(
            format!("{place}.shards[{last}].upper_bound"),
            format!("is {:08x}, so that no shard owns the keys {expected:08x} to ffffffff", expected - 1),
            "set it to ffffffff, or add a shard for them",
        ));
    }
    Ok(())
}

fn check_id(place: &str, id: &str) -> Result<(), ConfigError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if id.is_empty() || id.len() > MAX_ID_BYTES || !id.bytes().all(allowed) {
        return Err(ConfigError::invalid(
            place,
            format!("{id:?} is not an id"),
            format!("use 1 to {MAX_ID_BYTES} letters, digits, `_`, `-` or `.`"),
        ));
    }
    Ok(())
}

/// Checks that an address is an IP address (version 6 in brackets) or a host name, and a port.
fn check_address(place: &str, address: &str) -> Result<(), ConfigError> {
    let dialable = match address.parse::<SocketAddr>() {
        Ok(socket) => socket.port() != 0 && !socket.ip().is_unspecified(),
        Err(_) => address
            .rsplit_once(':')
            .is_some_and(|(host, port)| is_host_name(host) && port.parse::<u16>().is_ok_and(|port| port != 0)),
    };
    if dialable {
        return Ok(());
    }
    Err(ConfigError::invalid(
        place,
        format!("{address:?} is not an address that others can dial"),
        "write host:port without a scheme, like 10.0.0.7:7000, [fd00::7]:7000 or node-1.example.com:7000",
    ))
}

fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    // A host that ends in a number is a malformed IPv4 address, since it did not parse as an address.
    let ends_in_number = host.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    host.len() <= 253 && !ends_in_number && host.split('.').all(is_label)
}

fn duplicate_error(place: &str, what: &str, first: &str) -> ConfigError {
    ConfigError::invalid(place, format!("{what} is already used at {first}"), "choose another")
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
