//! The secret that the processes of one cluster share.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::Secret;
use crate::random::{self, RandomError, SECRET_BYTES};

/// 32 random bytes that every process of a cluster has, stored in a file as 64 hex digits.
#[derive(Clone)]
pub struct ClusterSecret([u8; SECRET_BYTES]);

/// The text is not a cluster secret. The error does not repeat it, since it may be most of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cluster secret is 64 hex digits")]
pub struct MalformedClusterSecret;

impl ClusterSecret {
    /// Draws a new secret.
    ///
    /// # Errors
    /// When the system provides no random bytes.
    pub fn generate() -> Result<Self, RandomError> {
        random::bytes().map(Self)
    }

    /// Parses the hex digits of a file.
    ///
    /// # Errors
    /// When they are not 64 hex digits.
    pub fn from_hex(text: &str) -> Result<Self, MalformedClusterSecret> {
        let mut bytes = [0; SECRET_BYTES];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| MalformedClusterSecret)?;
        Ok(Self(bytes))
    }

    /// Returns the hex digits for a file.
    pub fn to_hex(&self) -> Secret {
        Secret::new(hex::encode(self.0))
    }

    /// The public name of the cluster: the first 16 hex digits of SHA-256 over a label and the secret. By it, processes
    /// detect that they belong to different clusters; it reveals nothing about the secret.
    pub fn cluster_id(&self) -> String {
        let digest = Sha256::new().chain_update("holdfast cluster id").chain_update(self.0).finalize();
        hex::encode(&digest[..8])
    }

    /// Derives a secret for one purpose: HMAC-SHA-256 over the label and the parts. The length of each precedes it, so
    /// that no two lists of parts have the same encoding.
    pub(crate) fn derive(&self, label: &str, parts: &[&[u8]]) -> [u8; SECRET_BYTES] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        for part in [b"holdfast".as_slice(), label.as_bytes()].iter().chain(parts) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// Derives a secret for one purpose of which others are derived.
    pub(crate) fn derived(&self, label: &str, parts: &[&[u8]]) -> Self {
        Self(self.derive(label, parts))
    }
}

impl std::fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClusterSecret(of cluster {})", self.cluster_id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_reads_back_what_it_writes() {
        let secret = ClusterSecret::generate().unwrap();
        let text = secret.to_hex();
        assert_eq!(text.expose().len(), 64);
        assert_eq!(ClusterSecret::from_hex(text.expose()).unwrap().0, secret.0);
    }

    #[test]
    fn the_cluster_id_never_changes_for_a_secret() {
        let secret = ClusterSecret::from_hex(&"00".repeat(32)).unwrap();
        let mut bytes = b"holdfast cluster id".to_vec();
        bytes.extend_from_slice(&[0; 32]);
        assert_eq!(secret.cluster_id(), hex::encode(Sha256::digest(&bytes))[..16]);
        assert_ne!(ClusterSecret::generate().unwrap().cluster_id(), secret.cluster_id());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "00", &"0".repeat(63), &"g".repeat(64), &"0".repeat(65)] {
            assert_eq!(ClusterSecret::from_hex(text).unwrap_err(), MalformedClusterSecret);
        }
    }

    #[test]
    fn a_secret_does_not_show_itself_in_debug_output() {
        let secret = ClusterSecret::generate().unwrap();
        let shown = format!("{secret:?}");
        assert!(shown.contains(&secret.cluster_id()));
        assert!(!shown.contains(&secret.to_hex().expose()[..16]));
    }

    #[test]
    fn purposes_and_parts_do_not_run_together() {
        let secret = ClusterSecret::generate().unwrap();
        assert_ne!(secret.derive("a", &[b"bc"]), secret.derive("ab", &[b"c"]));
        assert_ne!(secret.derive("a", &[b"b", b"c"]), secret.derive("a", &[b"bc"]));
    }
}
