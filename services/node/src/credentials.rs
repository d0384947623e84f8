//! Service tokens for calls between nodes.

use holdfast_auth::{ClusterSecret, ServiceSigner, ServiceVerifier};
use holdfast_replication::Credentials;

/// Signs this node's calls and verifies those of other nodes.
pub(crate) struct ServiceCredentials {
    signer: ServiceSigner,
    verifier: ServiceVerifier,
}

impl ServiceCredentials {
    pub(crate) fn new(secret: &ClusterSecret, process: &str) -> Self {
        Self { signer: ServiceSigner::new(secret, process), verifier: ServiceVerifier::new(secret) }
    }
}

impl Credentials for ServiceCredentials {
    fn authorization(&self) -> String {
        match self.signer.token() {
            Ok(token) => format!("Bearer {}", token.expose()),
            Err(error) => {
                // The peer rejects the call and logs the failure as well.
                tracing::error!(%error, "can't sign a service token");
                String::new()
            }
        }
    }

    fn accepts(&self, authorization: &str) -> bool {
        authorization.strip_prefix("Bearer ").is_some_and(|token| self.verifier.verify(token).is_ok())
    }
}
