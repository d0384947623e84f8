//! API keys: `hf_<key id>_<secret>`.
//!
//! The last letters of a key id authenticate the others with the cluster secret. So a gateway tells most invented ids
//! from those of keys without looking them up. Ids from before that, or from before another cluster secret, are still
//! valid, but look like invented ones.

use std::fmt;

use holdfast_types::AccountId;

use crate::random::{self, RandomError, is_secret_text, secret_text};
use crate::{ClusterSecret, Secret};

const PREFIX: &str = "hf_";
const KEY_ID_LENGTH: usize = 16;
/// Letters that tell one id from another: 50 bits. The others, 30 bits, authenticate them.
const DISTINCT_LENGTH: usize = 10;
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
    pub fn generate(cluster_secret: &ClusterSecret) -> Result<Self, RandomError> {
        Ok(Self::from_bytes(cluster_secret, &random::bytes()?, &random::bytes()?))
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
        Self::from_bytes(cluster_secret, &id, &secret)
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

    /// Returns whether the id was made with this cluster secret. If not, it was invented, or is older than that secret
    /// or than this part of ids.
    pub fn is_authentic(&self, cluster_secret: &ClusterSecret) -> bool {
        let parts = self.key_id.split_at_checked(DISTINCT_LENGTH);
        parts.is_some_and(|(distinct, rest)| {
            // Hashed, so that the time tells nothing of the letters.
            let expected = crate::sha256(&authenticator(cluster_secret, distinct));
            crate::constant_time_eq(&crate::sha256(rest), &expected)
        })
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

    fn from_bytes(
        cluster_secret: &ClusterSecret,
        id: &[u8; random::SECRET_BYTES],
        secret: &[u8; random::SECRET_BYTES],
    ) -> Self {
        let distinct = letters(id, DISTINCT_LENGTH);
        let key_id = format!("{distinct}{}", authenticator(cluster_secret, &distinct));
        Self { key_id, secret: Secret::new(secret_text(secret)) }
    }
}

fn letters(bytes: &[u8; random::SECRET_BYTES], count: usize) -> String {
    bytes.iter().take(count).map(|byte| char::from(KEY_ID_ALPHABET[usize::from(byte % 32)])).collect()
}

/// Returns the last letters of the key id that begins with these.
fn authenticator(cluster_secret: &ClusterSecret, distinct: &str) -> String {
    letters(&cluster_secret.derive("api key id authenticator", &[distinct.as_bytes()]), KEY_ID_LENGTH - DISTINCT_LENGTH)
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
    fn an_id_is_authentic_in_its_cluster_only_and_an_invented_one_is_not() {
        let (cluster, other) = (ClusterSecret::generate().unwrap(), ClusterSecret::generate().unwrap());
        let drawn = ApiKeySecret::generate(&cluster).unwrap().reveal();
        let derived = ApiKeySecret::derive(&cluster, AccountId(7), "ci").reveal();
        for key in [&drawn, &derived] {
            let presented = ApiKeySecret::parse(key.expose()).unwrap();
            assert!(presented.is_authentic(&cluster) && !presented.is_authentic(&other));
        }
        // Another letter in either part.
        let key = drawn.expose();
        for place in [3, 3 + DISTINCT_LENGTH] {
            let letter = if key.as_bytes()[place] == b'a' { "b" } else { "a" };
            let invented = format!("{}{letter}{}", &key[..place], &key[place + 1..]);
            assert!(!ApiKeySecret::parse(&invented).unwrap().is_authentic(&cluster), "{place}");
        }
    }

    #[test]
    fn a_new_key_reads_back_and_matches_only_its_own_hash() {
        let cluster = ClusterSecret::generate().unwrap();
        let key = ApiKeySecret::generate(&cluster).unwrap();
        let shown = key.reveal();
        assert_eq!(shown.expose().len(), 3 + 16 + 1 + 43);
        let parsed = ApiKeySecret::parse(shown.expose()).unwrap();
        assert_eq!(parsed.key_id(), key.key_id());
        assert!(parsed.matches(&key.hash()));

        let other = ApiKeySecret::generate(&cluster).unwrap();
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
        let key = ApiKeySecret::generate(&ClusterSecret::generate().unwrap()).unwrap();
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
