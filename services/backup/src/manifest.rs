//! The manifest of a backup.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The written format; other formats are rejected.
pub const FORMAT: u64 = 1;

pub(crate) const MANIFEST_FILE: &str = "manifest.json";

/// The contents of a backup, and its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u64,
    /// Unique for each backup.
    pub id: String,
    /// Start time, in RFC 3339.
    pub made_at: String,
    /// The cluster's public name.
    pub cluster_id: String,
    /// The version of the cluster config at that time.
    pub config_version: u64,
    /// Every shard once.
    pub shards: Vec<ShardFile>,
}

/// The state of one shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardFile {
    /// The shard's id.
    pub shard: String,
    /// The name of its file.
    pub file: String,
    /// The length of the file, in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, in hex.
    pub sha256: String,
    /// The term of the last entry that the state contains.
    pub term: u64,
    /// The index of that entry.
    pub index: u64,
    /// The rules of the shard's next entry; 1 in backups from before other rules existed.
    #[serde(default = "first_rules", skip_serializing_if = "are_first")]
    pub rules: u16,
    /// The first key that the shard owns.
    pub lower_bound: u32,
    /// The last key that the shard owns.
    pub upper_bound: u32,
}

fn first_rules() -> u16 {
    1
}

/// The first rules are omitted, as in backups from before other rules existed: the manifest's checksum covers its text.
fn are_first(rules: &u16) -> bool {
    *rules == first_rules()
}

/// The manifest as written, with the checksum of its own text.
#[derive(Serialize, Deserialize)]
pub(crate) struct ChecksummedManifest {
    pub(crate) manifest: Manifest,
    pub(crate) sha256: String,
}

/// The part that is decoded from a manifest of any format.
#[derive(Deserialize)]
pub(crate) struct FormatProbe {
    pub(crate) manifest: ManifestFormat,
}

#[derive(Deserialize)]
pub(crate) struct ManifestFormat {
    pub(crate) format: u64,
}

impl Manifest {
    /// Returns the SHA-256 of the manifest without white space.
    pub(crate) fn checksum(&self) -> String {
        // Strings, integers and lists always have a JSON form.
        let text = serde_json::to_vec(self).expect("a manifest has no value that JSON cannot express");
        hex::encode(Sha256::digest(text))
    }
}
