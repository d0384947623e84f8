//! The cluster config that a node last ran with, stored beside its data: a restart with an older config file must not
//! roll it back, and a file that makes other groups of the same shards must not start them beside the old ones.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use holdfast_cluster::{ClusterConfig, ConfigError, GroupConfig};
use holdfast_mutations::{Mutation, is_enabled};
use sha2::{Digest, Sha256};

use crate::NodeError;

const FILE_NAME: &str = "cluster_config.json";
/// Begins the last line of the file, which has the SHA-256 of all before it.
const CHECKSUM_MARK: &str = "# sha256 ";

/// Returns true if the data directory has a config.
pub(crate) fn is_kept(data_dir: &Path) -> bool {
    data_dir.join(FILE_NAME).exists()
}

/// Returns the later of the given and the stored config.
///
/// # Errors
/// When the stored config can't be read, or the given one can't follow it.
pub(crate) fn load_latest(data_dir: &Path, given: ClusterConfig) -> Result<ClusterConfig, NodeError> {
    let path = data_dir.join(FILE_NAME);
    if !is_kept(data_dir) || is_enabled(Mutation::GroupsRederived) {
        return Ok(given);
    }
    let kept = read(&path)?;
    if kept.version > given.version {
        tracing::warn!(
            given = given.version,
            kept = kept.version,
            path = %path.display(),
            "given cluster config is an earlier one than the node had; keeping the later one (give it to every process)"
        );
        return Ok(kept);
    }
    if kept.groups != given.groups && kept.version == given.version {
        let lists = |config: &ClusterConfig| config.groups.iter().map(describe).collect::<Vec<_>>().join("; ");
        return Err(NodeError::OtherGroups { path, kept: lists(&kept), given: lists(&given) });
    }
    if !differ_in_addresses_only(&kept, &given) {
        kept.check_transition(&given)
            .map_err(|error| ConfigError::File { path: path.clone(), reason: Box::new(error) })?;
    }
    Ok(given)
}

fn read(path: &Path) -> Result<ClusterConfig, NodeError> {
    let unreadable = |reason| ConfigError::Unreadable { path: path.to_owned(), reason };
    let bytes = fs::read(path).map_err(unreadable)?;
    let damaged = || NodeError::ConfigDamaged { path: path.to_owned() };
    let text = String::from_utf8(bytes).map_err(|_| damaged())?;
    let (config, checksum) = text.trim_end().rsplit_once(CHECKSUM_MARK).ok_or_else(damaged)?;
    if checksum != checksum_of(config) {
        return Err(damaged());
    }
    let config = ClusterConfig::from_json(config);
    Ok(config.map_err(|error| ConfigError::File { path: path.to_owned(), reason: Box::new(error) })?)
}

fn with_checksum(config: &str) -> String {
    format!("{config}{CHECKSUM_MARK}{}\n", checksum_of(config))
}

fn checksum_of(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// Stores the config that a node starts with, unless it is the stored one. It is durable when this returns.
pub(crate) fn store_if_changed(data_dir: &Path, config: &ClusterConfig) -> Result<(), NodeError> {
    let (path, text) = (data_dir.join(FILE_NAME), with_checksum(&config.to_json()));
    if fs::read_to_string(&path).is_ok_and(|kept| kept == text) {
        return Ok(());
    }
    write(data_dir, &text).map_err(|reason| NodeError::ConfigNotStored { path, reason })
}

fn describe(group: &GroupConfig) -> String {
    let replicas: Vec<String> =
        group.replicas.iter().map(|replica| format!("{} on {}", replica.id, replica.node_id)).collect();
    format!("{} with replicas {}", group.id, replicas.join(", "))
}

/// Nodes may get other addresses while they are stopped.
fn differ_in_addresses_only(kept: &ClusterConfig, given: &ClusterConfig) -> bool {
    let ids = |config: &ClusterConfig| config.nodes.iter().map(|node| node.id.clone()).collect::<Vec<_>>();
    ids(kept) == ids(given) && ClusterConfig { nodes: given.nodes.clone(), ..kept.clone() } == *given
}

/// Stores a config. It is durable when this returns.
pub(crate) async fn store(data_dir: PathBuf, config: ClusterConfig) -> Result<(), NodeError> {
    let writing = tokio::task::spawn_blocking(move || {
        let failed = |reason: io::Error| NodeError::ConfigNotStored { path: data_dir.join(FILE_NAME), reason };
        write(&data_dir, &with_checksum(&config.to_json())).map_err(failed)
    });
    writing.await.unwrap_or_else(|error| {
        Err(NodeError::ConfigNotStored { path: PathBuf::from(FILE_NAME), reason: io::Error::other(error.to_string()) })
    })
}

fn write(data_dir: &Path, text: &str) -> io::Result<()> {
    let draft = data_dir.join("cluster_config.json.new");
    let mut file = File::create(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, data_dir.join(FILE_NAME))?;
    File::open(data_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use holdfast_cluster::Node;

    use super::*;

    fn config(version: u64) -> ClusterConfig {
        let nodes = (1..=4).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number)));
        ClusterConfig { version, ..ClusterConfig::generate(nodes.collect(), 2, 3).unwrap() }
    }

    #[tokio::test]
    async fn a_kept_config_wins_over_earlier_ones_and_only_over_these() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load_latest(dir.path(), config(1)).unwrap().version, 1);
        store(dir.path().to_owned(), config(3)).await.unwrap();
        assert_eq!(load_latest(dir.path(), config(2)).unwrap().version, 3);
        assert_eq!(load_latest(dir.path(), config(3)).unwrap().version, 3);
        assert_eq!(load_latest(dir.path(), config(4)).unwrap().version, 4);
        let mut other = config(3);
        let (id, address) = ("nd_5".to_owned(), "127.0.0.1:7100".to_owned());
        other.nodes.push(Node { id, address, gateway_address: None, zone: None });
        let refusal = load_latest(dir.path(), other).unwrap_err().to_string();
        assert!(refusal.contains("cluster_config.json") && refusal.contains("does not rise above 3"), "{refusal}");
    }

    #[test]
    fn a_changed_byte_is_refused_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        store_if_changed(dir.path(), &config(1)).unwrap();
        let path = dir.path().join(FILE_NAME);
        let sound = fs::read(&path).unwrap();
        for at in (0..sound.len() - 1).step_by(7) {
            let mut changed = sound.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            let refusal = load_latest(dir.path(), config(1)).unwrap_err().to_string();
            assert!(refusal.contains("cluster_config.json") && refusal.contains("node rebuild"), "{at}: {refusal}");
        }
    }

    #[test]
    fn a_file_that_makes_other_groups_is_refused_and_other_addresses_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        store_if_changed(dir.path(), &config(1)).unwrap();
        let mut moved = config(1);
        moved.nodes[0].address = "127.0.0.1:7500".to_owned();
        moved.nodes[1].gateway_address = Some("127.0.0.1:8080".to_owned());
        assert_eq!(load_latest(dir.path(), moved.clone()).unwrap(), moved);
        let mut sorted = config(1);
        sorted.groups[0].replicas.swap(0, 1);
        let refusal = load_latest(dir.path(), sorted).unwrap_err().to_string();
        assert!(refusal.contains("g1 with replicas 1 on nd_1") && refusal.contains("g1 with replicas 2"), "{refusal}");
    }
}
