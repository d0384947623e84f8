//! Secrets and authentication: API keys, tokens for them, the operator token, the cluster secret, service tokens,
//! principals; signed grants; and receipts of sessions.
//!
//! Purpose: create, reveal once, parse, hash and compare secrets, store them in files, and determine the permissions of
//! a caller.
//!
//! Invariants: no secret appears in the output of `Debug` or `Display`; only [`Secret::expose`] reveals it. Presented
//! secrets are compared with stored ones in constant time, over their hashes. Every secret carries 256 random bits, so
//! that a plain SHA-256 of it can be stored: no dictionary contains it, and a slow hash would only cost time.
//!
//! Deliberately unknown here: HTTP and gRPC, the storage of keys, whether an account is suspended, and which call needs
//! which scope.

mod api_key;
mod cluster_secret;
mod credential;
mod grant;
mod operator;
mod principal;
mod random;
mod receipt;
mod secret;
mod secret_file;
mod service_token;
mod signing_keys;
mod token;

pub use api_key::{ApiKeySecret, MalformedApiKey, PresentedApiKey};
pub use cluster_secret::{ClusterSecret, MalformedClusterSecret};
pub use credential::{Credential, MalformedCredential};
pub use grant::{GRANT_TYPE, GrantOwner, MAX_GRANT_LIFETIME, UnsignedGrant};
pub use operator::{MalformedOperatorToken, OperatorToken, OperatorVerifier};
pub use principal::{AccountPrincipal, CredentialKind, Principal};
pub use random::RandomError;
pub use receipt::{InvalidReceipt, Receipted};
pub use secret::Secret;
pub use secret_file::{MAX_SECRET_FILE_BYTES, SecretFile, SecretFileError, create_secret_file, read_secret_file};
pub use service_token::{SERVICE_TOKEN_LIFETIME, ServiceSigner, ServiceTokenError, ServiceVerifier};
pub use signing_keys::{KeyRotation, SigningError, SigningKeys};
pub use token::{InvalidToken, MAX_TOKEN_BYTES, MAX_TOKEN_LIFETIME};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256, the stored form of secrets.
fn sha256(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Compares hashes in constant time, so that the time does not reveal where they differ.
fn constant_time_eq(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}
