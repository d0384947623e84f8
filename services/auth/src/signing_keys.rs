//! The keys that sign tokens and grants, one for each period of time.
//!
//! Every gateway derives them from the cluster secret and the number of the period. So they are the same everywhere,
//! stored nowhere, and rotate by themselves. Three are public at the same time: that of the previous period, whose
//! signatures are still valid; the present one, which signs; and the next one, so that clients that cache the public
//! keys know it before its first use.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ClusterSecret;

/// The issuer in every signed text.
pub(crate) const ISSUER: &str = "holdfast";
/// The bytes before the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410).
const PKCS8_PREFIX: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// Bytes of a key's name.
const KEY_ID_BYTES: usize = 8;

/// When keys rotate. Every gateway of a cluster needs the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRotation {
    /// How long a key signs; less than a second counts as one.
    pub period: Duration,
    /// Another number makes other keys: every earlier signature becomes invalid at once.
    pub generation: u32,
}

impl Default for KeyRotation {
    /// A new key every day.
    fn default() -> Self {
        Self { period: Duration::from_secs(24 * 60 * 60), generation: 0 }
    }
}

/// Signing failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("signing failed: {0}")]
pub struct SigningError(String);

impl KeyRotation {
    pub(crate) fn period_s(self) -> u64 {
        self.period.as_secs().max(1)
    }
}

/// Signs and verifies for one cluster.
pub struct SigningKeys {
    secret: ClusterSecret,
    cluster_id: String,
    rotation: KeyRotation,
    ring: RwLock<Arc<KeyRing>>,
}

/// The keys that are public during one period: those of the previous period, of itself, and of the next one.
struct KeyRing {
    period: u64,
    keys: [Key; 3],
}

struct Key {
    id: String,
    public: Jwk,
    encoding_key: EncodingKey,
    decoding_key: DecodingKey,
}

impl SigningKeys {
    /// Returns the keys of a cluster.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new(secret: &ClusterSecret, rotation: KeyRotation) -> Result<Self, SigningError> {
        let ring = RwLock::new(Arc::new(KeyRing::of(secret, rotation, 0)?));
        Ok(Self { secret: secret.clone(), cluster_id: secret.cluster_id(), rotation, ring })
    }

    /// The public name of the cluster, which tokens carry as their audience.
    pub(crate) fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// How long at least a present signature is valid.
    pub(crate) fn overlap(&self) -> Duration {
        Duration::from_secs(self.rotation.period_s())
    }

    /// The public keys as a JSON Web Key Set. `now_ms` is wall clock in milliseconds since 1970.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn jwks(&self, now_ms: u64) -> Result<JwkSet, SigningError> {
        let ring = self.key_ring(now_ms)?;
        Ok(JwkSet { keys: ring.keys.iter().map(|key| key.public.clone()).collect() })
    }

    pub(crate) fn sign<T: Serialize>(&self, kind: &str, claims: &T, now_ms: u64) -> Result<String, SigningError> {
        let ring = self.key_ring(now_ms)?;
        let [_, present, _] = &ring.keys;
        let mut header = Header::new(Algorithm::EdDSA);
        header.typ = Some(kind.to_owned());
        header.kid = Some(present.id.clone());
        jsonwebtoken::encode(&header, claims, &present.encoding_key).map_err(|error| SigningError(error.to_string()))
    }

    /// Returns the claims of a text of that type, if one of the public keys signed it for that audience. The caller
    /// compares times. The reason of a rejection is for logs.
    pub(crate) fn verify<T: DeserializeOwned + Clone>(
        &self,
        kind: &str,
        audience: &str,
        text: &str,
        now_ms: u64,
    ) -> Result<T, String> {
        let header = jsonwebtoken::decode_header(text).map_err(|error| error.to_string())?;
        if header.typ.as_deref() != Some(kind) {
            return Err("it is signed for another purpose".to_owned());
        }
        let ring = self.key_ring(now_ms).map_err(|error| error.to_string())?;
        let name = header.kid.unwrap_or_default();
        let key = ring.keys.iter().find(|key| key.id == name).ok_or("it names a key that is not public now")?;
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.set_issuer(&[ISSUER]);
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&["iss", "aud", "sub"]);
        validation.validate_exp = false;
        let read =
            jsonwebtoken::decode::<T>(text, &key.decoding_key, &validation).map_err(|error| error.to_string())?;
        Ok(read.claims)
    }

    pub(crate) fn secret(&self) -> &ClusterSecret {
        &self.secret
    }

    pub(crate) fn rotation(&self) -> KeyRotation {
        self.rotation
    }

    fn key_ring(&self, now_ms: u64) -> Result<Arc<KeyRing>, SigningError> {
        // The guarded value is replaced in one step, so it is consistent also after a panic elsewhere.
        let period = now_ms / 1_000 / self.rotation.period_s();
        let known = Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner));
        if known.period == period {
            return Ok(known);
        }
        let ring = Arc::new(KeyRing::of(&self.secret, self.rotation, period)?);
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&ring);
        Ok(ring)
    }
}

impl KeyRing {
    fn of(secret: &ClusterSecret, plan: KeyRotation, period: u64) -> Result<Self, SigningError> {
        let key = |period| Key::derive(secret, plan, period);
        Ok(Self { period, keys: [key(period.wrapping_sub(1))?, key(period)?, key(period + 1)?] })
    }
}

impl Key {
    fn derive(secret: &ClusterSecret, plan: KeyRotation, period: u64) -> Result<Self, SigningError> {
        let failed = |error: jsonwebtoken::errors::Error| SigningError(error.to_string());
        let (generation, length, number) =
            (plan.generation.to_be_bytes(), plan.period_s().to_be_bytes(), period.to_be_bytes());
        let parts = [generation.as_slice(), length.as_slice(), number.as_slice()];
        let id = hex::encode(&secret.derive("signing key name", &parts)[..KEY_ID_BYTES]);
        let seed = secret.derive("signing key", &parts);
        let encoding_key = EncodingKey::from_ed_der(&[PKCS8_PREFIX.as_slice(), &seed].concat());
        let mut public = Jwk::from_encoding_key(&encoding_key, Algorithm::EdDSA).map_err(failed)?;
        public.common.key_id = Some(id.clone());
        public.common.public_key_use = Some(PublicKeyUse::Signature);
        let decoding_key = DecodingKey::from_jwk(&public).map_err(failed)?;
        Ok(Self { id, public, encoding_key, decoding_key })
    }
}

impl std::fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKeys(of cluster {})", self.cluster_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(period_s: u64) -> SigningKeys {
        let secret = ClusterSecret::from_hex(&"5a".repeat(32)).unwrap();
        SigningKeys::new(&secret, KeyRotation { period: Duration::from_secs(period_s), generation: 0 }).unwrap()
    }

    fn names(keys: &SigningKeys, now_ms: u64) -> Vec<String> {
        keys.jwks(now_ms).unwrap().keys.into_iter().map(|key| key.common.key_id.unwrap()).collect()
    }

    #[test]
    fn keys_follow_one_another_with_overlap_and_are_the_same_at_every_gateway() {
        let (one, other) = (keys(60), keys(60));
        let first = names(&one, 600_000);
        assert_eq!(first, names(&other, 659_999));
        let second = names(&one, 660_000);
        assert_eq!(second[..2], first[1..]);
        assert!(!first.contains(&second[2]));
        let later = names(&one, 780_000);
        assert!(first.iter().all(|name| !later.contains(name)), "nothing of it is left after two more rotations");
        assert_ne!(names(&keys(61), 600_000), first);
        let plan = KeyRotation { period: Duration::from_secs(60), generation: 1 };
        let other = SigningKeys::new(&one.secret, plan).unwrap();
        assert!(names(&other, 600_000).iter().all(|name| !first.contains(name)), "another generation shares nothing");
    }

    #[test]
    fn the_public_keys_have_the_form_of_a_key_set_and_no_private_half() {
        let set = serde_json::to_value(keys(60).jwks(1_000).unwrap()).unwrap();
        for key in set["keys"].as_array().unwrap() {
            let fields = ["kty", "crv", "alg", "use"].map(|field| key[field].as_str().unwrap());
            assert_eq!(fields, ["OKP", "Ed25519", "EdDSA", "sig"]);
            assert!(key["x"].as_str().unwrap().len() == 43 && key.get("d").is_none());
        }
    }

    #[test]
    fn a_signing_key_does_not_show_itself_in_debug_output() {
        assert_eq!(format!("{:?}", keys(60)), format!("SigningKeys(of cluster {})", keys(60).cluster_id));
    }
}
