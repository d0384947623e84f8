//! The two secrets of nodes and gateways.

use std::path::{Path, PathBuf};

use clap::Args;
use holdfast_auth::{
    ClusterSecret, MalformedClusterSecret, MalformedOperatorToken, OperatorToken, SecretFileError, read_secret_file,
};

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

/// A secret can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// The file can't be read.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// The file contains no valid cluster secret.
    #[error("{path}: {reason}")]
    ClusterSecret {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: MalformedClusterSecret,
    },
    /// The file contains no valid operator token.
    #[error("{path}: {reason}")]
    OperatorToken {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: MalformedOperatorToken,
    },
}

impl SecretsArgs {
    /// Reads both secrets.
    ///
    /// # Errors
    /// The error names the file.
    pub fn read(&self) -> Result<(ClusterSecret, OperatorToken), SecretsError> {
        let cluster = read_secret(&self.cluster_secret_file)?;
        let cluster = ClusterSecret::from_hex(&cluster)
            .map_err(|reason| SecretsError::ClusterSecret { path: self.cluster_secret_file.clone(), reason })?;
        let operator = read_secret(&self.operator_token_file)?;
        let operator = OperatorToken::parse(&operator)
            .map_err(|reason| SecretsError::OperatorToken { path: self.operator_token_file.clone(), reason })?;
        Ok((cluster, operator))
    }
}

fn read_secret(path: &Path) -> Result<String, SecretsError> {
    let file = read_secret_file(path)?;
    if file.is_exposed {
        tracing::warn!(path = %path.display(), "other users of this machine can read this secret; run: chmod 600");
    }
    Ok(file.secret.expose().to_owned())
}
