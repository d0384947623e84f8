//! Keys that changed since this gateway began to track changes: tokens of all other keys are valid by their signature
//! alone.

use std::collections::HashMap;
use std::time::Duration;

use holdfast_auth::MAX_TOKEN_LIFETIME;
use parking_lot::Mutex;

/// Maximum changed keys in memory; with more of them within the life of a token, keys are looked up instead.
const MAX_CHANGED_KEYS: usize = 100_000;
/// A gateway without contact may have signed for a revoked key for 30 s more. Its wall clock and this one may differ by
/// a minute.
const CLOCK_SLACK: Duration = Duration::from_secs(90);

/// The received changes. Instants are wall clock in milliseconds since 1970.
#[derive(Default)]
pub(super) struct Revocations(Mutex<ChangeLog>);

#[derive(Default)]
struct ChangeLog {
    /// Every change after this is known here; absent before the accounts shard first replied.
    since_ms: Option<u64>,
    /// When the change of each key was received.
    changed: HashMap<String, u64>,
}

impl Revocations {
    /// Returns whether the key of a token issued then needs a lookup, because it may have been revoked.
    pub(super) fn needs_lookup(&self, key_id: &str, issued_at_ms: u64) -> bool {
        let heard = self.0.lock();
        let knows_all = heard.since_ms.is_some_and(|since_ms| issued_at_ms > since_ms.saturating_add(ms(CLOCK_SLACK)));
        !knows_all || heard.changed.contains_key(key_id)
    }

    /// Records that a key was created or revoked.
    pub(super) fn record(&self, key_id: &str, now_ms: u64) {
        let mut heard = self.0.lock();
        if heard.changed.len() >= MAX_CHANGED_KEYS {
            // Tokens that were issued before then have expired.
            let oldest_ms = now_ms.saturating_sub(ms(MAX_TOKEN_LIFETIME + CLOCK_SLACK));
            heard.changed.retain(|_, heard_ms| *heard_ms >= oldest_ms);
        }
        if heard.changed.len() >= MAX_CHANGED_KEYS {
            *heard = ChangeLog { since_ms: Some(now_ms), changed: HashMap::new() };
        }
        heard.changed.insert(key_id.to_owned(), now_ms);
    }

    /// The accounts shard replies, and from now on every change is received.
    pub(super) fn start_tracking(&self, now_ms: u64) {
        self.0.lock().since_ms.get_or_insert(now_ms);
    }

    /// Records that changes were missed.
    pub(super) fn reset(&self, now_ms: u64) {
        *self.0.lock() = ChangeLog { since_ms: Some(now_ms), changed: HashMap::new() };
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000_000;

    #[test]
    fn only_tokens_from_after_the_beginning_and_of_keys_that_stayed_need_no_looking_up() {
        let revocations = Revocations::default();
        assert!(revocations.needs_lookup("a", START + 120_000), "nothing was heard yet");
        revocations.start_tracking(START);
        revocations.start_tracking(START + 500);
        assert!(revocations.needs_lookup("a", START - 1));
        assert!(revocations.needs_lookup("a", START + 90_000), "the other gateway's clock may be ahead");
        assert!(!revocations.needs_lookup("a", START + 90_001));
        revocations.record("b", START + 95_000);
        assert!(revocations.needs_lookup("b", START + 100_000) && !revocations.needs_lookup("a", START + 100_000));
        revocations.reset(START + 200_000);
        assert!(revocations.needs_lookup("a", START + 100_000));
        assert!(!revocations.needs_lookup("b", START + 290_001));
    }

    #[test]
    fn more_changes_than_are_kept_put_all_tokens_in_doubt_unless_they_are_old() {
        let revocations = Revocations::default();
        revocations.start_tracking(START);
        let later = START + 10_000_000;
        for key in 0..MAX_CHANGED_KEYS {
            revocations.record(&key.to_string(), START + 100_000);
        }
        revocations.record("new", later);
        assert!(revocations.needs_lookup("new", later) && !revocations.needs_lookup("0", later));
        for key in 0..MAX_CHANGED_KEYS {
            revocations.record(&key.to_string(), later);
        }
        assert!(revocations.needs_lookup("never", later), "from here on it is listened anew");
    }
}
