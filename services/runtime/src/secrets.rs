//! The two secrets of nodes and gateways.

use std::path::{Path, PathBuf};

use clap::Args;
use holdfast_auth::{ClusterSecret, OperatorToken, SecretFile, SecretFileError, read_secret_file};

/// Flags that name the files with the cluster's secrets.
#[derive(Debug, Clone, Args)]
pub struct SecretsArgs {
    /// File with the cluster secret, the same for every process of the cluster.
    #[arg(long, env = "HOLDFAST_CLUSTER_SECRET_FILE", value_name = "FILE")]
    pub cluster_secret_file: PathBuf,
    /// File with the operator token.
    #[arg(long, env = "HOLDFAST_OPERATOR_TOKEN_FILE", value_name = "FILE")]
    pub operator_token_file: PathBuf,
}

impl SecretsArgs {
    /// Reads both secrets.
    ///
    /// # Errors
    /// The error names the file.
    pub fn read(&self) -> Result<(ClusterSecret, OperatorToken), SecretFileError> {
        let cluster_secret = read_secret(&self.cluster_secret_file)?.cluster_secret()?;
        Ok((cluster_secret, read_secret(&self.operator_token_file)?.operator_token()?))
    }
}

fn read_secret(path: &Path) -> Result<SecretFile, SecretFileError> {
    let file = read_secret_file(path)?;
    if file.is_exposed {
        tracing::warn!(path = %path.display(), "secret readable by other users of this machine; run: chmod 600");
    }
    Ok(file)
}
