//! A bounded cache that fetches a missing entry once for all concurrent callers.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, counter};
use moka::ops::compute::{CompResult, Op};
use moka::sync::Cache;
use tokio::sync::OnceCell;

/// How long a missing entry is cached: long enough to spare the shard a flood of wrong keys, short enough that no
/// caller waits for a new entry.
const NEGATIVE_TTL: Duration = Duration::from_millis(500);
/// Maximum cached missing entries.
const NEGATIVE_CAPACITY: u64 = 10_000;

/// A lookup in flight or completed, shared by all callers that wait for it.
type Lookup<V, E> = Arc<OnceCell<Result<Option<V>, E>>>;

/// Entries by their keys. Includes lookups in flight, so that invalidating a key also discards the outcome of a lookup
/// that began before.
pub(super) struct SingleFlightCache<K, V, E> {
    hits: Counter,
    misses: Counter,
    known_missing: Counter,
    found: Cache<K, Lookup<V, E>>,
    /// Absent when missing entries are not cached.
    missing: Option<Cache<K, ()>>,
}

impl<K, V, E> SingleFlightCache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    pub(super) fn new(name: &'static str, capacity: u64, remembers_missing: bool) -> Self {
        let missing = remembers_missing
            .then(|| Cache::builder().max_capacity(NEGATIVE_CAPACITY).time_to_live(NEGATIVE_TTL).build());
        let count = |outcome| counter!("holdfast_directory_cache_lookups_total", "cache" => name, "outcome" => outcome);
        let (hits, misses, known_missing) = (count("hit"), count("miss"), count("missing"));
        Self { hits, misses, known_missing, found: Cache::builder().max_capacity(capacity).build(), missing }
    }

    /// Returns the value from memory, or from `look_up`, which runs once for all concurrent callers. They share its
    /// failure too: if each tried after the other, the last would wait for as many timeouts as there are callers. They
    /// share a missing entry only where that is cached: the entry may have been created after that lookup began, and
    /// before the call.
    pub(super) async fn get<F>(&self, key: &K, look_up: impl Fn() -> F) -> Result<Option<V>, E>
    where
        F: Future<Output = Result<Option<V>, E>>,
    {
        if let Some(value) = self.find(key) {
            return Ok(Some(value));
        }
        if self.missing.as_ref().is_some_and(|missing| missing.contains_key(key)) {
            self.known_missing.increment(1);
            return Ok(None);
        }
        // Boxed, because few calls need a lookup, and all would have room for it.
        Box::pin(self.fetch(key, look_up)).await
    }

    /// Returns an entry in memory.
    fn find(&self, key: &K) -> Option<V> {
        let cell = self.found.get(key)?;
        let Ok(Some(value)) = cell.get()? else { return None };
        self.count_hit();
        Some(value.clone())
    }

    /// Counts an entry that was found in memory.
    pub(super) fn count_hit(&self) {
        self.hits.increment(1);
    }

    async fn fetch<F>(&self, key: &K, look_up: impl Fn() -> F) -> Result<Option<V>, E>
    where
        F: Future<Output = Result<Option<V>, E>>,
    {
        let (outcome, is_own) = self.get_or_fetch(key, &look_up).await;
        if is_own || self.missing.is_some() || !matches!(outcome, Ok(None)) {
            return outcome;
        }
        // Whatever lookup this one joins, it began after the other ended, and so after the call.
        self.get_or_fetch(key, &look_up).await.0
    }

    /// Returns the outcome of memory or a lookup, and whether the lookup began for this call.
    async fn get_or_fetch<F>(&self, key: &K, look_up: impl Fn() -> F) -> (Result<Option<V>, E>, bool)
    where
        F: Future<Output = Result<Option<V>, E>>,
    {
        let cell = self.found.get_with_by_ref(key, Arc::default);
        if let Some(Ok(Some(value))) = cell.get() {
            self.count_hit();
            return (Ok(Some(value.clone())), false);
        }
        self.misses.increment(1);
        let mut is_own = false;
        let begin = || {
            is_own = true;
            look_up()
        };
        let outcome = cell.get_or_init(begin).await.clone();
        if !matches!(outcome, Ok(Some(_))) {
            let missing = self.missing.as_ref().filter(|_| is_own && matches!(outcome, Ok(None)));
            // Only found entries stay here; the next caller starts a new lookup, or joins one.
            let present = self.found.entry_by_ref(key).and_compute_with(|present| match present {
                Some(present) if Arc::ptr_eq(present.value(), &cell) => {
                    if let Some(missing) = missing {
                        missing.insert(key.clone(), ());
                    }
                    Op::Remove
                }
                _ => Op::Nop,
            });
            // The key was invalidated meanwhile: a missing entry may have been created since.
            if let (Some(missing), false) = (missing, matches!(present, CompResult::Removed(_))) {
                missing.invalidate(key);
            }
        }
        (outcome, is_own)
    }

    pub(super) fn invalidate(&self, key: &K) {
        self.found.invalidate(key);
        if let Some(missing) = &self.missing {
            missing.invalidate(key);
        }
    }

    pub(super) fn invalidate_all(&self) {
        self.found.invalidate_all();
        if let Some(missing) = &self.missing {
            missing.invalidate_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn concurrent_misses_are_looked_up_once() {
        let cache = Arc::new(SingleFlightCache::<u64, u64, Infallible>::new("test", 10, true));
        let lookups = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let mut waiting = Vec::new();
        for _ in 0..8 {
            let (cache, lookups, gate) = (cache.clone(), lookups.clone(), gate.clone());
            waiting.push(tokio::spawn(async move {
                let look_up = || async {
                    lookups.fetch_add(1, Ordering::SeqCst);
                    let _permit = gate.acquire().await.unwrap();
                    Ok::<_, Infallible>(Some(7))
                };
                cache.get(&1, look_up).await.unwrap()
            }));
        }
        while lookups.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
        for call in waiting {
            assert_eq!(call.await.unwrap(), Some(7));
        }
        assert_eq!(lookups.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn what_is_missing_is_remembered_until_it_is_forgotten() {
        let cache = SingleFlightCache::<u64, u64, Infallible>::new("test", 10, true);
        assert_eq!(cache.get(&1, || async { Ok::<_, Infallible>(None) }).await.unwrap(), None);
        assert_eq!(cache.get(&1, || async { Ok::<_, Infallible>(Some(1)) }).await.unwrap(), None);
        cache.invalidate(&1);
        assert_eq!(cache.get(&1, || async { Ok::<_, Infallible>(Some(1)) }).await.unwrap(), Some(1));
    }

    #[tokio::test]
    async fn a_lookup_that_began_before_its_key_was_forgotten_is_not_kept() {
        let cache = SingleFlightCache::<u64, u64, Infallible>::new("test", 10, false);
        let stale = cache.get(&1, || async {
            cache.invalidate(&1);
            Ok::<_, Infallible>(Some(1))
        });
        assert_eq!(stale.await.unwrap(), Some(1));
        assert_eq!(cache.get(&1, || async { Ok::<_, Infallible>(Some(2)) }).await.unwrap(), Some(2));
    }

    #[tokio::test]
    async fn what_was_forgotten_during_its_lookup_is_not_remembered_as_missing() {
        let cache = SingleFlightCache::<u64, u64, Infallible>::new("test", 10, true);
        let before = cache.get(&1, || async {
            cache.invalidate(&1);
            Ok::<_, Infallible>(None)
        });
        assert_eq!(before.await.unwrap(), None);
        assert_eq!(cache.get(&1, || async { Ok::<_, Infallible>(Some(2)) }).await.unwrap(), Some(2));
    }

    #[tokio::test]
    async fn who_joins_a_lookup_that_finds_nothing_looks_afresh() {
        let cache = SingleFlightCache::<u64, u64, Infallible>::new("test", 10, false);
        let lookups = AtomicUsize::new(0);
        // The entry is created while the first lookup, which does not see it, is in flight.
        let look_up = || async {
            let is_made = lookups.fetch_add(1, Ordering::SeqCst) > 0;
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(is_made.then_some(1))
        };
        let outcomes = tokio::join!(cache.get(&1, look_up), cache.get(&1, look_up), cache.get(&1, look_up));
        assert_eq!(outcomes, (Ok(None), Ok(Some(1)), Ok(Some(1))));
        assert_eq!(lookups.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_failed_lookup_is_tried_again_by_the_next_caller() {
        let cache = SingleFlightCache::<u64, u64, &str>::new("test", 10, true);
        assert_eq!(cache.get(&1, || async { Err("down") }).await, Err("down"));
        assert_eq!(cache.get(&1, || async { Ok::<_, &str>(Some(3)) }).await, Ok(Some(3)));
    }

    #[tokio::test]
    async fn all_who_wait_for_a_lookup_share_its_failure() {
        let cache = SingleFlightCache::<u64, u64, &str>::new("test", 10, true);
        let lookups = AtomicUsize::new(0);
        let look_up = || async {
            lookups.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            Err("down")
        };
        let outcomes = tokio::join!(cache.get(&1, look_up), cache.get(&1, look_up), cache.get(&1, look_up));
        assert_eq!(outcomes, (Err("down"), Err("down"), Err("down")));
        assert_eq!(lookups.load(Ordering::SeqCst), 1);
    }
}
