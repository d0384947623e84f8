//! `dev shard-key`: shows the shard of an account or a namespace.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use holdfast_cluster::{Application, ClusterConfig, ShardMap, shard_key};
use holdfast_operator::AccountId;
use holdfast_operator::output::{self, Format};
use serde_json::json;

use crate::topology;

/// Used if it exists and no other config is given.
const DEFAULT_CONFIG: &str = "cluster_config.json";
const MAX_NAME_BYTES: usize = 128;

/// Flags of `dev shard-key`.
#[derive(Debug, Args)]
pub(crate) struct ShardKeyArgs {
    /// The account: 16 digits are hex, more are decimal; fewer are rejected.
    #[arg(long, env = "HOLDFAST_ACCOUNT", value_name = "ID")]
    account: AccountId,
    /// A namespace of the account, to show the shard of its locks as well.
    #[arg(long, env = "HOLDFAST_NAMESPACE", value_parser = namespace_name)]
    namespace: Option<String>,
    /// The topology [default: ./cluster_config.json if it exists, otherwise the built-in one of three nodes].
    #[arg(long, env = "HOLDFAST_CLUSTER_CONFIG", value_name = "FILE")]
    cluster_config: Option<PathBuf>,
}

/// Prints keys and shards.
pub(crate) fn run(format: Format, args: &ShardKeyArgs) -> Result<()> {
    let (config, origin) = config(args.cluster_config.as_deref())?;
    let map = ShardMap::new(config)?;
    let mut places = vec![(Application::Namespaces, "")];
    if let Some(namespace) = &args.namespace {
        places.push((Application::Locks, namespace.as_str()));
    }
    if format == Format::Text {
        output::print(format_args!("account     {} (decimal {})\nconfig      {origin}", args.account, args.account.0))?;
    }
    for (application, namespace) in places {
        let key = shard_key(application, args.account.0, namespace);
        let shard = map.shard_for(application, key);
        let name = application.name();
        match format {
            Format::Text => output::print(format_args!("{name:<12}key {key:08x}  shard {}", shard.id))?,
            Format::Json => {
                let replicas = &map.group_of(shard).replicas;
                let nodes: Vec<&str> = replicas.iter().map(|replica| replica.node_id.as_str()).collect();
                output::print(json!({
                    "application": name,
                    "account_id": args.account.to_string(),
                    "namespace": (application == Application::Locks).then_some(namespace),
                    "shard_key": format!("{key:08x}"),
                    "shard_id": shard.id,
                    "nodes": nodes,
                }))?;
            }
        }
    }
    Ok(())
}

/// Returns the config to use, and its origin.
fn config(named: Option<&Path>) -> Result<(ClusterConfig, String)> {
    let default = Path::new(DEFAULT_CONFIG);
    match named.or(default.exists().then_some(default)) {
        Some(path) => Ok((ClusterConfig::load(path)?, path.display().to_string())),
        None => {
            let config = topology::generate(3, 7_000, topology::DEFAULT_SHARDS, None)
                .context("the config that ships is not valid")?;
            Ok((config, "the one that ships".to_owned()))
        }
    }
}

fn namespace_name(text: &str) -> Result<String> {
    let is_name = (1..=MAX_NAME_BYTES).contains(&text.len());
    ensure!(is_name, "a namespace's name has 1 to {MAX_NAME_BYTES} bytes, this has {}", text.len());
    Ok(text.to_owned())
}
