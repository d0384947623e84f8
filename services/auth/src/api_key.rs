//! API keys: `hf_<key id>_<secret>`.

use std::fmt;

use holdfast_types::AccountId;

use crate::random::{self, RandomError, is_secret_text, secret_text};
use crate::{ClusterSecret, Secret};

const PREFIX: &str = "hf_";
const KEY_ID_LENGTH: usize = 16;
/// Five bits a letter, without letters that are easily confused, and without `_`, which ends the key id.
const KEY_ID_ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// An API key with its secret half, as created for or presented by a caller.
#[derive(Clone, Debug)]
pub struct ApiKeySecret {
    key_id: String,
    secret: Secret,
}

/// An API key as a caller presents it, in parts that borrow from the text. `Debug` does not show the secret half.
#[derive(Clone, Copy)]
pub struct PresentedApiKey<'a> {
    key_id: &'a str,
    secret: &'a str,
}

/// The text is not an API key. The error does not repeat it, since it may be most of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an API key looks like hf_<key id>_<secret>, with a key id of 16 lower-case letters and digits")]
pub struct MalformedApiKey;

impl ApiKeySecret {
    /// Draws a new key.
    ///
    /// # Errors
    /// When the system provides no random bytes.
    pub fn generate() -> Result<Self, RandomError> {
        Ok(Self::from_bytes(&random::bytes()?, &random::bytes()?))
    }

    /// Derives the key of an account and an idempotency key. It is always the same in this cluster, so that a repeated
    /// creation can return the secret, which is stored nowhere. Without the cluster secret it cannot be guessed.
    ///
    /// Where the identity of the caller matters, it must be part of `idempotency_key`: a caller that repeats the
    /// creation receives the secret.
    pub fn derive(cluster_secret: &ClusterSecret, account: AccountId, idempotency_key: &str) -> Self {
        let account = account.0.to_be_bytes();
        let parts = [account.as_slice(), idempotency_key.as_bytes()];
        let id = cluster_secret.derive("api key id", &parts);
        let secret = cluster_secret.derive("api key secret", &parts);
        Self::from_bytes(&id, &secret)
    }

    /// Parses a key as presented.
    ///
    /// # Errors
    /// When the text does not have the form of a key.
    pub fn parse(text: &str) -> Result<Self, MalformedApiKey> {
        let PresentedApiKey { key_id, secret } = PresentedApiKey::parse(text)?;
        Ok(Self { key_id: key_id.to_owned(), secret: Secret::new(secret) })
    }

    /// The public half.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The whole key, to be shown to its new owner once.
    pub fn reveal(&self) -> Secret {
        Secret::new(format!("{PREFIX}{}_{}", self.key_id, self.secret.expose()))
    }

    /// SHA-256 of the secret half, the only stored form.
    pub fn hash(&self) -> [u8; 32] {
        crate::sha256(self.secret.expose())
    }

    /// Returns whether this is the secret of that hash, in constant time.
    pub fn matches(&self, secret_hash: &[u8; 32]) -> bool {
        crate::constant_time_eq(&self.hash(), secret_hash)
    }

    fn from_bytes(id: &[u8; random::SECRET_BYTES], secret: &[u8; random::SECRET_BYTES]) -> Self {
        let letter = |byte: &u8| char::from(KEY_ID_ALPHABET[usize::from(byte % 32)]);
        let key_id = id.iter().take(KEY_ID_LENGTH).map(letter).collect();
        Self { key_id, secret: Secret::new(secret_text(secret)) }
    }
}

impl<'a> PresentedApiKey<'a> {
    /// Parses a key as presented.
    ///
    /// # Errors
    /// When the text does not have the form of a key.
    pub fn parse(text: &'a str) -> Result<Self, MalformedApiKey> {
        let rest = text.strip_prefix(PREFIX).ok_or(MalformedApiKey)?;
        let (key_id, secret) = rest.split_once('_').ok_or(MalformedApiKey)?;
        let is_key_id = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if key_id.len() != KEY_ID_LENGTH || !key_id.bytes().all(is_key_id) || !is_secret_text(secret) {
            return Err(MalformedApiKey);
        }
        Ok(Self { key_id, secret })
    }

    /// The public half.
    pub fn key_id(&self) -> &'a str {
        self.key_id
    }

    /// Returns whether this is the secret of that hash, in constant time.
    pub fn matches(&self, secret_hash: &[u8; 32]) -> bool {
        crate::constant_time_eq(&crate::sha256(self.secret), secret_hash)
    }
}

impl fmt::Debug for PresentedApiKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PresentedApiKey").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_reads_back_and_matches_only_its_own_hash() {
        let key = ApiKeySecret::generate().unwrap();
        let shown = key.reveal();
        assert_eq!(shown.expose().len(), 3 + 16 + 1 + 43);
        let parsed = ApiKeySecret::parse(shown.expose()).unwrap();
        assert_eq!(parsed.key_id(), key.key_id());
        assert!(parsed.matches(&key.hash()));

        let other = ApiKeySecret::generate().unwrap();
        assert_ne!(other.key_id(), key.key_id());
        assert!(!other.matches(&key.hash()));

        let presented = PresentedApiKey::parse(shown.expose()).unwrap();
        assert_eq!(presented.key_id(), key.key_id());
        assert!(presented.matches(&key.hash()) && !presented.matches(&other.hash()));
    }

    #[test]
    fn a_secret_may_contain_the_separator() {
        let secret = "_-__aaaabbbbccccddddeeeeffffgggghhhhiiiijjjj";
        let key = ApiKeySecret::parse(&format!("hf_abcdefgh23456789_{secret}")).unwrap();
        assert_eq!(key.key_id(), "abcdefgh23456789");
        assert_eq!(key.hash(), crate::sha256(secret));
    }

    #[test]
    fn texts_that_are_no_keys_are_refused_without_being_repeated() {
        let secret = "a".repeat(43);
        let good = format!("hf_abcdefgh23456789_{secret}");
        assert!(ApiKeySecret::parse(&good).is_ok());
        let bad = [
            String::new(),
            good.replace("hf_", "hx_"),
            good.replace("abcdefgh", "Abcdefgh"),
            good.replace("abcdefgh", "abcdefg"),
            good.replacen("9_", "9", 1),
            good.replace("aaaa", ""),
            good.replace("aaaa", "aa a"),
            format!("{good}\n"),
            format!("{good}{}", "a".repeat(100)),
        ];
        for text in bad {
            let error = ApiKeySecret::parse(&text).expect_err(&text);
            assert!(!error.to_string().contains(&secret[..8]));
        }
    }

    #[test]
    fn derived_keys_depend_on_cluster_account_and_idempotency_key() {
        let cluster = ClusterSecret::generate().unwrap();
        let derive = |cluster: &ClusterSecret, account, key| {
            ApiKeySecret::derive(cluster, AccountId(account), key).reveal().expose().to_owned()
        };
        let first = derive(&cluster, 7, "ci");
        assert_eq!(derive(&cluster, 7, "ci"), first);
        assert!(ApiKeySecret::parse(&first).is_ok());
        assert_ne!(derive(&cluster, 8, "ci"), first);
        assert_ne!(derive(&cluster, 7, "cj"), first);
        assert_ne!(derive(&ClusterSecret::generate().unwrap(), 7, "ci"), first);
    }

    #[test]
    fn a_key_does_not_show_its_secret_in_debug_output() {
        let key = ApiKeySecret::generate().unwrap();
        assert_eq!(format!("{key:?}"), format!("ApiKeySecret {{ key_id: {:?}, secret: [secret] }}", key.key_id()));
        let shown = key.reveal();
        let presented = PresentedApiKey::parse(shown.expose()).unwrap();
        assert_eq!(format!("{presented:?}"), format!("PresentedApiKey {{ key_id: {:?}, .. }}", key.key_id()));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_parsing_panic(text in "(hf_)?\\PC{0,100}") {
            let _ = ApiKeySecret::parse(&text);
        }
    }
}
