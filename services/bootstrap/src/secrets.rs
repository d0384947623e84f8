//! The secrets of a cluster, in its data directory.

use std::path::{Path, PathBuf};

use holdfast_auth::{ClusterSecret, OperatorToken, Secret, create_secret_file, read_secret_file};

use crate::demo::FirstStart;
use crate::error::BootstrapError;

/// Exists from the making of the secrets until the demo account is complete.
const PENDING_FILE: &str = "first-start.pending";

/// The cluster's secrets, as its data directory holds them.
pub struct Secrets {
    dir: PathBuf,
    cluster_secret: ClusterSecret,
    operator_token: OperatorToken,
}

impl Secrets {
    /// Reads the secrets, or makes them in an empty directory.
    ///
    /// # Errors
    /// When the directory can't be written or a file holds something else.
    pub fn load_or_create(dir: &Path) -> Result<Self, BootstrapError> {
        let writing = |reason| BootstrapError::Directory { path: dir.to_owned(), reason };
        std::fs::create_dir_all(dir).map_err(writing)?;
        let dir = dir.canonicalize().map_err(writing)?;
        let cluster_file = dir.join("cluster.secret");
        let operator_file = dir.join("operator.token");
        if !cluster_file.exists() {
            // Before the secrets: an interrupted first start must be known as one.
            let pending = dir.join(PENDING_FILE);
            std::fs::write(&pending, "").map_err(|reason| BootstrapError::Directory { path: pending, reason })?;
            create_secret_file(&cluster_file, &ClusterSecret::generate()?.to_hex())?;
        }
        if !operator_file.exists() {
            create_secret_file(&operator_file, OperatorToken::generate()?.reveal())?;
        }
        let cluster_secret = read_secret_file(&cluster_file)?.cluster_secret()?;
        let operator_token = read_secret_file(&operator_file)?.operator_token()?;
        Ok(Self { dir, cluster_secret, operator_token })
    }

    /// The cluster secret.
    pub fn cluster_secret(&self) -> &ClusterSecret {
        &self.cluster_secret
    }

    /// The operator token.
    pub fn operator_token(&self) -> &OperatorToken {
        &self.operator_token
    }

    /// Where the cluster secret is.
    pub fn cluster_secret_file(&self) -> PathBuf {
        self.dir.join("cluster.secret")
    }

    /// Where the operator token is.
    pub fn operator_token_file(&self) -> PathBuf {
        self.dir.join("operator.token")
    }

    /// Where the API key of the demo account is.
    pub fn demo_key_file(&self) -> PathBuf {
        self.dir.join("demo.key")
    }

    /// Makes the demo account, its key and its namespace, when that is still to be done. Returns a text that says where
    /// everything is, with a line to try. `url` is the service's address for users.
    ///
    /// # Errors
    /// When the service refuses or can't be reached.
    pub async fn first_start(&self, service: &impl FirstStart, url: &str) -> Result<String, BootstrapError> {
        let pending = self.dir.join(PENDING_FILE);
        if pending.exists() {
            let key = service.create_demo(&self.operator_token).await?;
            if !self.demo_key_file().exists() {
                create_secret_file(&self.demo_key_file(), &Secret::new(key))?;
            }
            std::fs::remove_file(&pending).map_err(|reason| BootstrapError::Directory { path: pending, reason })?;
        }
        Ok(self.welcome_text(url))
    }

    fn welcome_text(&self, url: &str) -> String {
        let demo = self.demo_key_file();
        let mut text = format!(
            "Holdfast serves at {url}\n  operator token  {}\n  cluster secret  {}\n",
            self.operator_token_file().display(),
            self.cluster_secret_file().display()
        );
        if demo.exists() {
            let path = demo.display();
            text += &format!(
                "  demo API key    {path}\n\nTake a lock for a minute:\n\n  curl -sS {url}/v1/namespaces/demo/locks/my-lock/acquire \\\n    \
                 -H \"Authorization: Bearer $(cat '{path}')\" -H 'Content-Type: application/json' \\\n    \
                 -d '{{\"process_id\": \"me\", \"ttl_ms\": 60000}}'\n"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_start_changes_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let first = Secrets::load_or_create(dir.path()).unwrap();
        let second = Secrets::load_or_create(dir.path()).unwrap();
        assert_eq!(first.cluster_secret().cluster_id(), second.cluster_secret().cluster_id());
        assert_eq!(first.operator_token().reveal().expose(), second.operator_token().reveal().expose());
        assert!(dir.path().join(PENDING_FILE).exists(), "the demo account is still to be made");
    }

    #[test]
    fn a_damaged_secret_is_refused_with_the_file_named() {
        let dir = tempfile::tempdir().unwrap();
        Secrets::load_or_create(dir.path()).unwrap();
        std::fs::write(dir.path().join("cluster.secret"), "nonsense").unwrap();
        let error = Secrets::load_or_create(dir.path()).err().unwrap().to_string();
        assert!(error.contains("cluster.secret"), "{error}");
    }
}
