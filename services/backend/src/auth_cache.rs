//! Callers in memory by their API keys: one look-up from a presented key to its principal and account.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_auth::PresentedApiKey;
use holdfast_types::{AccountId, ApiKey};
use parking_lot::RwLock;

use crate::AuthContext;

/// Maximum callers in memory. At the limit, the cache begins anew.
const MAX_CALLERS: usize = 20_000;
/// Minimum time between two records of the use of one key, which is shown to the minute.
const USE_INTERVAL_MS: u64 = 1_000;

/// Callers, each with the generation of its account in the directory in which it was checked. A change of the account
/// or a key of it begins the next generation, in which they are checked again.
#[derive(Default)]
pub(crate) struct AuthCache(RwLock<HashMap<String, Arc<CheckedCaller>>>);

/// A caller whose API key and account were checked.
pub(crate) struct CheckedCaller {
    account: AccountId,
    generation: u64,
    context: AuthContext,
    secret_hash: [u8; 32],
    /// When the use of the key was last recorded; wall clock in milliseconds since 1970.
    recorded_ms: AtomicU64,
}

impl AuthCache {
    /// Returns the caller with this key, if it was checked in the present generation of its account.
    pub(crate) fn find(
        &self,
        presented: &PresentedApiKey<'_>,
        generation_of: impl Fn(AccountId) -> u64,
    ) -> Option<Arc<CheckedCaller>> {
        let found = self.0.read().get(presented.key_id()).cloned()?;
        let is_present = found.generation == generation_of(found.account);
        (is_present && presented.matches(&found.secret_hash)).then_some(found)
    }

    /// Adds a caller that was checked at `now_ms` (wall clock in milliseconds since 1970), when the use of its key was
    /// recorded too. `generation` is that of its account.
    pub(crate) fn insert(&self, generation: u64, key: &ApiKey, context: AuthContext, now_ms: u64) {
        let mut callers = self.0.write();
        if callers.len() >= MAX_CALLERS && !callers.contains_key(&key.key_id) {
            callers.clear();
        }
        let caller = CheckedCaller {
            account: key.account,
            generation,
            context,
            secret_hash: key.secret_hash,
            recorded_ms: AtomicU64::new(now_ms),
        };
        callers.insert(key.key_id.clone(), Arc::new(caller));
    }
}

impl CheckedCaller {
    /// The caller.
    pub(crate) fn context(&self) -> &AuthContext {
        &self.context
    }

    /// Returns whether its key has expired.
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        let end = self.context.principal().account().and_then(|principal| principal.expires_at_ms);
        end.is_some_and(|expires_at_ms| expires_at_ms <= now_ms)
    }

    /// Returns whether the use of its key should be recorded now, and notes that it was.
    pub(crate) fn is_use_due(&self, now_ms: u64) -> bool {
        // The wall clock may have been set back.
        let is_due = now_ms.abs_diff(self.recorded_ms.load(Ordering::Relaxed)) >= USE_INTERVAL_MS;
        if is_due {
            // Two calls at once may both record it, which does no harm.
            self.recorded_ms.store(now_ms, Ordering::Relaxed);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use holdfast_auth::{ApiKeySecret, ClusterSecret, Principal};
    use holdfast_types::Scopes;

    use super::*;

    fn new_key() -> ApiKeySecret {
        ApiKeySecret::generate(&ClusterSecret::generate().unwrap()).unwrap()
    }

    fn stored_key(secret: &ApiKeySecret, expires_at_ms: Option<u64>) -> ApiKey {
        ApiKey {
            key_id: secret.key_id().to_owned(),
            account: AccountId(7),
            secret_hash: secret.hash(),
            description: String::new(),
            scopes: Scopes::LOCKS_READ,
            namespaces: None,
            expires_at_ms,
            created_at_ms: 0,
        }
    }

    fn insert(cache: &AuthCache, generation: u64, secret: &ApiKeySecret, expires_at_ms: Option<u64>) {
        let key = stored_key(secret, expires_at_ms);
        let principal = Principal::from_api_key(secret, &key, 0).unwrap();
        cache.insert(generation, &key, AuthContext::new(principal, None), 5_000);
    }

    fn find(cache: &AuthCache, secret: &ApiKeySecret, generation: u64) -> Option<Arc<CheckedCaller>> {
        cache.find(&PresentedApiKey::parse(secret.reveal().expose()).unwrap(), |_| generation)
    }

    #[test]
    fn a_caller_is_found_by_its_whole_key_until_the_next_generation() {
        let (cache, secret) = (AuthCache::default(), new_key());
        assert!(find(&cache, &secret, 0).is_none());
        insert(&cache, 1, &secret, None);
        assert!(find(&cache, &secret, 1).is_some());
        assert!(find(&cache, &secret, 0).is_none() && find(&cache, &secret, 2).is_none());
        let other = new_key();
        assert!(find(&cache, &other, 1).is_none());
        let forged = format!("hf_{}_{}", secret.key_id(), "a".repeat(43));
        assert!(cache.find(&PresentedApiKey::parse(&forged).unwrap(), |_| 1).is_none());
    }

    #[test]
    fn a_change_of_one_account_leaves_callers_of_others_in_memory() {
        let (cache, one, other) = (AuthCache::default(), new_key(), new_key());
        insert(&cache, 1, &one, None);
        let key = ApiKey { account: AccountId(8), ..stored_key(&other, None) };
        let principal = Principal::from_api_key(&other, &key, 0).unwrap();
        cache.insert(1, &key, AuthContext::new(principal, None), 5_000);
        let find = |secret: &ApiKeySecret| {
            let changed = |account: AccountId| if account == AccountId(8) { 2 } else { 1 };
            cache.find(&PresentedApiKey::parse(secret.reveal().expose()).unwrap(), changed)
        };
        assert!(find(&one).is_some() && find(&other).is_none());
    }

    #[test]
    fn the_cache_is_bounded() {
        let (cache, secret) = (AuthCache::default(), new_key());
        let mut key = stored_key(&secret, None);
        let principal = Principal::from_api_key(&secret, &key, 0).unwrap();
        for number in 0..MAX_CALLERS {
            key.key_id = number.to_string();
            cache.insert(1, &key, AuthContext::new(principal.clone(), None), 0);
        }
        assert_eq!(cache.0.read().len(), MAX_CALLERS);
        insert(&cache, 1, &secret, None);
        assert_eq!(cache.0.read().len(), 1);
        assert!(find(&cache, &secret, 1).is_some());
    }

    #[test]
    fn a_key_expires_and_its_use_is_recorded_once_a_second() {
        let (cache, secret) = (AuthCache::default(), new_key());
        insert(&cache, 1, &secret, Some(9_000));
        let caller = find(&cache, &secret, 1).unwrap();
        assert!(!caller.is_expired(8_999) && caller.is_expired(9_000));
        assert!(!caller.is_use_due(5_999));
        assert!(caller.is_use_due(6_000) && !caller.is_use_due(6_001) && caller.is_use_due(7_000));
    }
}
