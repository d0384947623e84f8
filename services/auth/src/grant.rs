//! Signed grants: a text that proves a client's hold to a resource server offline.
//!
//! A grant is a JWT (EdDSA), signed with the keys of tokens. It has another type, so that neither passes for the other.

use std::time::Duration;

use holdfast_types::AccountId;
use serde::{Deserialize, Serialize};

use crate::signing_keys::{ISSUER, SigningError, SigningKeys};

/// The type in the header of a signed grant.
pub const GRANT_TYPE: &str = "holdfast-grant+jwt";
/// Longest life of a signed grant: an owner that holds for longer requests another one.
pub const MAX_GRANT_LIFETIME: Duration = Duration::from_secs(60 * 60);

/// The owner of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantOwner {
    /// The process; of a session, the session's.
    pub process_id: String,
    /// The session, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The holder in the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}

/// The content of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsignedGrant {
    /// The account of the namespace.
    pub account: AccountId,
    /// The namespace.
    pub namespace: String,
    /// The path of the hold.
    pub path: Vec<String>,
    /// `READ` or `WRITE`.
    pub mode: &'static str,
    /// The owner of the hold.
    pub owner: GrantOwner,
    /// The token of the hold.
    pub fencing_token: u64,
    /// When the hold ends; wall clock in milliseconds since 1970.
    pub expires_at_ms: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    /// The cluster id.
    aud: String,
    /// The account: 16 hex digits.
    sub: String,
    namespace: String,
    path: Vec<String>,
    mode: String,
    #[serde(flatten)]
    owner: GrantOwner,
    fencing_token: u64,
    /// Seconds since 1970.
    iat: u64,
    /// Seconds since 1970.
    exp: u64,
}

impl SigningKeys {
    /// Signs a grant. It ends with the hold, rounded down to a second, or after [`MAX_GRANT_LIFETIME`]. `now_ms` is
    /// wall clock in milliseconds since 1970.
    ///
    /// # Errors
    /// When signing fails.
    pub fn sign_grant(&self, grant: UnsignedGrant, now_ms: u64) -> Result<String, SigningError> {
        let life = MAX_GRANT_LIFETIME.min(self.overlap());
        let end_ms = now_ms.saturating_add(u64::try_from(life.as_millis()).unwrap_or(u64::MAX));
        let claims = Claims {
            iss: ISSUER.to_owned(),
            aud: self.cluster_id().to_owned(),
            sub: grant.account.to_string(),
            namespace: grant.namespace,
            path: grant.path,
            mode: grant.mode.to_owned(),
            owner: grant.owner,
            fencing_token: grant.fencing_token,
            iat: now_ms / 1_000,
            exp: grant.expires_at_ms.min(end_ms) / 1_000,
        };
        self.sign(GRANT_TYPE, &claims, now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterSecret, KeyRotation};

    fn keys() -> SigningKeys {
        SigningKeys::new(&ClusterSecret::generate().unwrap(), KeyRotation::default()).unwrap()
    }

    fn grant(expires_at_ms: u64) -> UnsignedGrant {
        UnsignedGrant {
            account: AccountId(7),
            namespace: "demo".to_owned(),
            path: vec!["a".to_owned(), "b".to_owned()],
            mode: "WRITE",
            owner: GrantOwner { process_id: "p".to_owned(), session_id: None, holder: None },
            fencing_token: 57,
            expires_at_ms,
        }
    }

    #[test]
    fn a_grant_says_what_is_held_and_ends_with_the_hold() {
        let keys = keys();
        let signed = keys.sign_grant(grant(1_000_030_999), 1_000_000_000).unwrap();
        let claims: serde_json::Value = keys.verify(GRANT_TYPE, keys.cluster_id(), &signed, 1_000_000_000).unwrap();
        let expected = serde_json::json!({
            "iss": "holdfast", "aud": keys.cluster_id(), "sub": "0000000000000007", "namespace": "demo",
            "path": ["a", "b"], "mode": "WRITE", "process_id": "p", "fencing_token": 57,
            "iat": 1_000_000, "exp": 1_000_030,
        });
        assert_eq!(claims, expected);
    }

    #[test]
    fn a_grant_lives_an_hour_at_most_and_is_no_token() {
        let keys = keys();
        let signed = keys.sign_grant(grant(u64::MAX), 1_000_000_000).unwrap();
        let claims: serde_json::Value = keys.verify(GRANT_TYPE, keys.cluster_id(), &signed, 1_000_000_000).unwrap();
        assert_eq!(claims["exp"], 1_003_600);
        assert!(keys.verify_token(&signed, 1_000_000_000).is_err());
    }
}
