//! `holdfast-admin secrets`: creates the secrets of a new cluster.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use holdfast_auth::{ClusterSecret, OperatorToken, create_secret_file};
use holdfast_operator::output::{self, Format};
use serde_json::json;

/// Flags of `holdfast-admin secrets`.
#[derive(Debug, Args)]
pub(crate) struct SecretsArgs {
    /// The directory of the files; created, readable by its owner only, if it does not exist.
    #[arg(long, env = "HOLDFAST_SECRETS_DIR", default_value = "./secrets", value_name = "DIR")]
    out: PathBuf,
}

/// Creates the files. Fails if one exists, and overwrites nothing.
pub(crate) fn run(format: Format, args: &SecretsArgs) -> Result<()> {
    let dir = std::path::absolute(&args.out).with_context(|| format!("--out {}", args.out.display()))?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("can't make {}", dir.display()))?;
    let (cluster, operator) = (dir.join("cluster.secret"), dir.join("operator.token"));
    create_secret_file(&cluster, &ClusterSecret::generate()?.to_hex())?;
    create_secret_file(&operator, OperatorToken::generate()?.reveal())?;
    let (cluster, operator) = (cluster.display().to_string(), operator.display().to_string());
    match format {
        Format::Json => output::print(json!({"cluster_secret_file": cluster, "operator_token_file": operator})),
        Format::Text => output::print(format!(
            "every process of the cluster needs both:\n  --cluster-secret-file {cluster}\n  --operator-token-file {operator}"
        )),
    }
}
