//! Inputs that are kept: one a line, as text or in hex.

use std::path::{Path, PathBuf};

use holdfast_cluster::ClusterConfig;

use crate::targets::{Target, credential_samples, snapshot_sample};

/// The file of a target, from the folder of this package, where cargo runs tests.
pub fn file(target: &Target) -> PathBuf {
    let extension = if target.is_text { "txt" } else { "hex" };
    Path::new("corpus").join(format!("{}.{extension}", target.name))
}

/// Its inputs, and those that the code makes itself. Panics when the file can't be read.
pub fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let file = file(target);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut inputs: Vec<Vec<u8>> = text.lines().map(|line| decode_line(target, line)).collect();
    match target.name {
        "stored" | "raft_message" => {
            inputs.extend(holdfast_replication::testing::stored_samples().iter().map(|sample| sample.to_vec()));
        }
        "credential" => inputs.extend(credential_samples()),
        "snapshot" => inputs.push(snapshot_sample()),
        "commands" => inputs.extend(crate::commands::seed_inputs()),
        "cluster_config" => inputs.extend(cluster_configs()),
        _ => {}
    }
    inputs.push(Vec::new());
    inputs
}

/// The config that ships, in both forms.
fn cluster_configs() -> [Vec<u8>; 2] {
    let seed = include_str!("../../../cluster_config.json");
    let config = ClusterConfig::from_json(seed).expect("it is a config");
    [seed.to_owned(), config.to_json()].map(String::into_bytes)
}

/// An input as the file has it, a line.
pub fn encode_line(target: &Target, input: &[u8]) -> String {
    match std::str::from_utf8(input) {
        Ok(text) if target.is_text && !text.contains(['\n', '\r']) && !text.starts_with(HEX_PREFIX) => text.to_owned(),
        _ if target.is_text => format!("{HEX_PREFIX}{}", hex::encode(input)),
        _ => hex::encode(input),
    }
}

/// Before a line of a text target that is not text.
const HEX_PREFIX: &str = "hex:";

/// Decodes such a line. Panics if it is not hexadecimal.
pub fn decode_line(target: &Target, line: &str) -> Vec<u8> {
    let in_hex = if target.is_text { line.strip_prefix(HEX_PREFIX) } else { Some(line) };
    match in_hex {
        Some(text) => hex::decode(text).unwrap_or_else(|error| panic!("{}: {line}: {error}", target.name)),
        None => line.as_bytes().to_vec(),
    }
}
