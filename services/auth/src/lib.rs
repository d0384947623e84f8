//! Secrets and who may call: API keys, tokens got for them, the operator token, the cluster secret, service tokens,
//! principals; and the signed proofs of grants.
//!
//! Purpose: make, show once, read, hash and compare secrets, keep them in files, and say what a caller is allowed.
//!
//! Invariants: no secret appears in the output of `Debug` or `Display`; it is shown only by [`Secret::expose`].
//! Presented secrets are compared with kept ones in constant time, over their hashes. Every secret carries 256 random
//! bits, so that a plain SHA-256 of it can be kept: no dictionary contains it, and a slow hash would only slow us.
//!
//! Deliberately unknown here: HTTP and gRPC, where keys are stored, whether an account is suspended, and which call
//! needs which scope.

mod api_key;
mod cluster_secret;
mod credential;
mod grant;
mod operator;
mod principal;
mod random;
mod secret;
mod secret_file;
mod service_token;
mod signing_keys;
mod token;

pub use api_key::{ApiKeySecret, MalformedApiKey};
pub use cluster_secret::{ClusterSecret, MalformedClusterSecret};
pub use credential::{Credential, MalformedCredential};
pub use grant::{GRANT_TYPE, GrantOwner, MAX_GRANT_LIFETIME, UnsignedGrant};
pub use operator::{MalformedOperatorToken, OperatorToken, OperatorVerifier};
pub use principal::{AccountPrincipal, CredentialKind, Principal};
pub use random::RandomError;
pub use secret::Secret;
pub use secret_file::{MAX_SECRET_FILE_BYTES, SecretFile, SecretFileError, create_secret_file, read_secret_file};
pub use service_token::{SERVICE_TOKEN_LIFETIME, ServiceSigner, ServiceTokenError, ServiceVerifier};
pub use signing_keys::{KeyRotation, SigningError, SigningKeys};
pub use token::{InvalidToken, MAX_TOKEN_BYTES, MAX_TOKEN_LIFETIME};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256, the form in which secrets are kept.
fn sha256(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Compares hashes without telling by the time taken where they differ.
fn constant_time_eq(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}
