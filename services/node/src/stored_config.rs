//! The last cluster config received by a running node, stored beside its data: a restart with an older config file must
//! not roll it back.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use holdfast_cluster::{ClusterConfig, ConfigError};

use crate::NodeError;

const FILE_NAME: &str = "cluster_config.json";

/// Returns the later of the given and the stored config.
///
/// # Errors
/// When the stored config can't be read, or the given one can't follow it.
pub(crate) fn load_latest(data_dir: &Path, given: ClusterConfig) -> Result<ClusterConfig, NodeError> {
    let path = data_dir.join(FILE_NAME);
    if !path.exists() {
        return Ok(given);
    }
    let kept = ClusterConfig::load(&path)?;
    if kept.version > given.version {
        tracing::warn!(
            given = given.version,
            kept = kept.version,
            path = %path.display(),
            "the cluster config given is an earlier one than the node had; it goes on with the later one. Give every \
             process the later one"
        );
        return Ok(kept);
    }
    if kept != given {
        kept.check_transition(&given)
            .map_err(|error| ConfigError::File { path: path.clone(), reason: Box::new(error) })?;
    }
    Ok(given)
}

/// Stores a config. It is durable when this returns.
pub(crate) async fn store(data_dir: PathBuf, config: ClusterConfig) -> Result<(), NodeError> {
    let writing = tokio::task::spawn_blocking(move || {
        let failed = |reason: io::Error| NodeError::ConfigNotStored { path: data_dir.join(FILE_NAME), reason };
        write(&data_dir, &config.to_json()).map_err(failed)
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
        let other = ClusterConfig { version: 3, ..config(3).add_node("nd_5", "127.0.0.1:7100").unwrap() };
        let refusal = load_latest(dir.path(), other).unwrap_err().to_string();
        assert!(refusal.contains("cluster_config.json") && refusal.contains("does not rise above 3"), "{refusal}");
    }
}
