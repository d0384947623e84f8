//! Service tokens: processes of a cluster use them to prove to one another that they belong to it.
//!
//! A token is a JWT (HS256) signed with a key derived from the cluster secret. It lives for minutes, so that a token
//! that leaks into a log soon becomes worthless.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use crate::{ClusterSecret, Secret};

/// How long a token is valid. A signer makes a new one after half of it.
pub const SERVICE_TOKEN_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Maximum difference between the wall clocks of two hosts.
const LEEWAY: Duration = Duration::from_secs(60);
const ISSUER: &str = "holdfast";

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    /// The process.
    sub: String,
    /// The cluster id.
    aud: String,
    /// Seconds since 1970.
    exp: u64,
}

/// Why a service token is rejected or cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceTokenError {
    /// It was signed with another secret.
    #[error("the service token is signed with the secret of another cluster; give all processes the same secret")]
    ClusterMismatch,
    /// It has expired.
    #[error("the service token has expired; if it was just made, the clocks of the two hosts differ too much")]
    Expired,
    /// It is not a token of this kind.
    #[error("the service token is malformed: {0}")]
    Malformed(String),
    /// Signing failed.
    #[error("no service token can be signed: {0}")]
    SigningFailed(String),
}

/// Signs the tokens of one process.
pub struct ServiceSigner {
    key: EncodingKey,
    process: String,
    cluster_id: String,
    cached: Mutex<Option<CachedToken>>,
}

#[derive(Clone)]
struct CachedToken {
    token: Secret,
    made_at: SystemTime,
}

impl ServiceSigner {
    /// Returns the signer of a process, named like `node nd_1`; other processes log the name.
    pub fn new(secret: &ClusterSecret, process: impl Into<String>) -> Self {
        Self {
            key: EncodingKey::from_secret(&signing_key(secret)),
            process: process.into(),
            cluster_id: secret.cluster_id(),
            cached: Mutex::new(None),
        }
    }

    /// Returns a token that is valid for at least half of [`SERVICE_TOKEN_LIFETIME`]. Cheap: signs a new one only when
    /// needed.
    ///
    /// # Errors
    /// [`ServiceTokenError::SigningFailed`] when the token cannot be made.
    pub fn token(&self) -> Result<Secret, ServiceTokenError> {
        self.token_at(SystemTime::now())
    }

    fn token_at(&self, now: SystemTime) -> Result<Secret, ServiceTokenError> {
        // The guarded value is replaced in one step, so it is consistent also after a panic elsewhere.
        let mut current = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = current.as_ref() {
            // If the clock went back, the token counts as too old, because its creation may lie arbitrarily far in the
            // future.
            let is_young = now.duration_since(current.made_at).is_ok_and(|age| age < SERVICE_TOKEN_LIFETIME / 2);
            if is_young {
                return Ok(current.token.clone());
            }
        }
        let token = self.sign(now)?;
        *current = Some(CachedToken { token: token.clone(), made_at: now });
        Ok(token)
    }

    fn sign(&self, now: SystemTime) -> Result<Secret, ServiceTokenError> {
        let expires_at = (now + SERVICE_TOKEN_LIFETIME)
            .duration_since(UNIX_EPOCH)
            .map_err(|_| ServiceTokenError::SigningFailed("the wall clock is before 1970; set it".to_owned()))?;
        let claims = Claims {
            iss: ISSUER.to_owned(),
            sub: self.process.clone(),
            aud: self.cluster_id.clone(),
            exp: expires_at.as_secs(),
        };
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.key)
            .map(Secret::new)
            .map_err(|error| ServiceTokenError::SigningFailed(error.to_string()))
    }
}

/// Verifies the tokens of other processes.
pub struct ServiceVerifier {
    key: DecodingKey,
    validation: Validation,
}

impl ServiceVerifier {
    /// Returns the verifier for processes with that secret.
    pub fn new(secret: &ClusterSecret) -> Self {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_issuer(&[ISSUER]);
        validation.set_audience(&[secret.cluster_id()]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        // Checked below: the library subtracts the leeway from the clock, and panics if the result is before 1970.
        validation.validate_exp = false;
        Self { key: DecodingKey::from_secret(&signing_key(secret)), validation }
    }

    /// Returns the name of the process that presents the token.
    ///
    /// # Errors
    /// When the token is malformed, expired, or of another cluster.
    pub fn verify(&self, token: &str) -> Result<String, ServiceTokenError> {
        self.verify_at(token, SystemTime::now())
    }

    fn verify_at(&self, token: &str, now: SystemTime) -> Result<String, ServiceTokenError> {
        // With a clock before 1970 no token counts as expired, as with one in 1970.
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        match jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation) {
            Ok(decoded) if decoded.claims.exp.saturating_add(LEEWAY.as_secs()) < now => Err(ServiceTokenError::Expired),
            Ok(decoded) => Ok(decoded.claims.sub),
            Err(error) => Err(match error.kind() {
                ErrorKind::InvalidSignature | ErrorKind::InvalidAudience => ServiceTokenError::ClusterMismatch,
                _ => ServiceTokenError::Malformed(error.to_string()),
            }),
        }
    }
}

fn signing_key(secret: &ClusterSecret) -> [u8; 32] {
    secret.derive("service token", &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> ClusterSecret {
        ClusterSecret::from_hex(&"5a".repeat(32)).unwrap()
    }

    #[test]
    fn a_token_tells_the_verifier_which_process_it_is() {
        let signer = ServiceSigner::new(&secret(), "node nd_1");
        let verifier = ServiceVerifier::new(&secret());
        assert_eq!(verifier.verify(signer.token().unwrap().expose()), Ok("node nd_1".to_owned()));
    }

    #[test]
    fn a_token_of_another_cluster_is_refused() {
        let signer = ServiceSigner::new(&ClusterSecret::generate().unwrap(), "node nd_1");
        let refused = ServiceVerifier::new(&secret()).verify(signer.token().unwrap().expose());
        assert_eq!(refused, Err(ServiceTokenError::ClusterMismatch));
    }

    #[test]
    fn an_old_token_is_refused_and_one_within_the_leeway_is_not() {
        let verifier = ServiceVerifier::new(&secret());
        let made_ago = |ago| {
            let signer = ServiceSigner::new(&secret(), "node nd_1");
            signer.token_at(SystemTime::now() - ago).unwrap()
        };
        let old = made_ago(SERVICE_TOKEN_LIFETIME + LEEWAY + Duration::from_secs(10));
        assert_eq!(verifier.verify(old.expose()), Err(ServiceTokenError::Expired));
        let recent = made_ago(SERVICE_TOKEN_LIFETIME + LEEWAY / 2);
        assert!(verifier.verify(recent.expose()).is_ok());
    }

    #[test]
    fn a_machine_whose_clock_begins_in_1970_takes_tokens() {
        let (signer, verifier) = (ServiceSigner::new(&secret(), "node nd_1"), ServiceVerifier::new(&secret()));
        let booted = UNIX_EPOCH + Duration::from_secs(1);
        let token = signer.token_at(booted).unwrap();
        assert_eq!(verifier.verify_at(token.expose(), booted), Ok("node nd_1".to_owned()));
        let later = booted + SERVICE_TOKEN_LIFETIME + LEEWAY + Duration::from_secs(1);
        assert_eq!(verifier.verify_at(token.expose(), later), Err(ServiceTokenError::Expired));
    }

    #[test]
    fn a_signer_renews_its_token_at_half_its_life_and_after_the_clock_went_back() {
        let signer = ServiceSigner::new(&secret(), "node nd_1");
        let start = SystemTime::now();
        let token_at = |at| signer.token_at(at).unwrap().expose().to_owned();
        let first = token_at(start);
        assert_eq!(token_at(start + SERVICE_TOKEN_LIFETIME / 2 - Duration::from_secs(1)), first);
        let second = token_at(start + SERVICE_TOKEN_LIFETIME / 2);
        assert_ne!(second, first);
        assert_ne!(token_at(start - Duration::from_secs(3600)), second);
    }

    #[test]
    fn other_texts_and_other_algorithms_are_refused() {
        let verifier = ServiceVerifier::new(&secret());
        let claims =
            Claims { iss: ISSUER.to_owned(), sub: "x".to_owned(), aud: secret().cluster_id(), exp: u64::MAX / 2 };
        let key = EncodingKey::from_secret(&signing_key(&secret()));
        let other = jsonwebtoken::encode(&Header::new(Algorithm::HS512), &claims, &key).unwrap();
        let stranger = Claims { iss: "somebody".to_owned(), ..claims };
        let stranger = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &stranger, &key).unwrap();
        for text in ["", "a.b.c", "hf_key", &other, &stranger] {
            assert!(matches!(verifier.verify(text), Err(ServiceTokenError::Malformed(_))), "{text}");
        }
    }
}
