//! The secrets of a cluster, in files that processes read.

use std::path::{Path, PathBuf};

use holdfast_auth::{ClusterSecret, OperatorToken, ServiceSigner, create_secret_file};

/// New secrets in a folder, under the names that `holdfast-standalone` looks for.
pub struct Secrets {
    dir: PathBuf,
    cluster_secret: ClusterSecret,
    operator_token: OperatorToken,
}

impl Secrets {
    /// Creates the folder and the files.
    ///
    /// # Panics
    /// If they can't be written or exist.
    pub fn create(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).expect("the folder of the secrets can be created");
        let cluster_secret = ClusterSecret::generate().expect("the system has random bytes");
        let operator_token = OperatorToken::generate().expect("the system has random bytes");
        let secrets = Self { dir: dir.to_owned(), cluster_secret, operator_token };
        let cluster_secret = secrets.cluster_secret.to_hex();
        create_secret_file(&secrets.cluster_secret_file(), &cluster_secret).expect("a secret can be written");
        let operator_token = secrets.operator_token.reveal();
        create_secret_file(&secrets.operator_token_file(), operator_token).expect("a secret can be written");
        secrets
    }

    /// The secret of the cluster.
    pub fn cluster_secret(&self) -> &ClusterSecret {
        &self.cluster_secret
    }

    /// The token of the operator.
    pub fn operator_token(&self) -> &str {
        self.operator_token.reveal().expose()
    }

    /// The file with the secret of the cluster.
    pub fn cluster_secret_file(&self) -> PathBuf {
        self.dir.join("cluster.secret")
    }

    /// The file with the token of the operator.
    pub fn operator_token_file(&self) -> PathBuf {
        self.dir.join("operator.token")
    }

    /// Returns what signs the calls of another process of the cluster.
    pub fn signer(&self) -> ServiceSigner {
        ServiceSigner::new(&self.cluster_secret, "cluster test")
    }
}
