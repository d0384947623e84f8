//! Keys that changed since this gateway began to track changes: tokens of all other keys are valid by their signature
//! alone.
//!
//! Changes are kept by account. An account with more changes than are kept puts only its own tokens in doubt.

use std::collections::HashMap;
use std::time::Duration;

use holdfast_auth::MAX_TOKEN_LIFETIME;
use holdfast_types::AccountId;
use parking_lot::Mutex;

/// Maximum changed keys of one account in memory; with more of them within the life of a token, its keys are looked up
/// instead. At the default rate of changes, a token ends before.
const MAX_KEYS_OF_ACCOUNT: usize = 4_096;
/// The same for all accounts together; with more of them, the account with the most has its keys looked up.
const MAX_KEYS: usize = 100_000;
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
    /// `None` is for changes that do not name their account.
    accounts: HashMap<Option<AccountId>, AccountChanges>,
    /// The number of keys of all accounts.
    keys: usize,
}

#[derive(Default)]
struct AccountChanges {
    /// When the change of each key was received.
    keys: HashMap<String, u64>,
    /// When changes were dropped last.
    dropped_at_ms: Option<u64>,
}

impl Revocations {
    /// Returns whether the key of a token issued then needs a lookup, because it may have been revoked.
    pub(super) fn needs_lookup(&self, account: AccountId, key_id: &str, issued_at_ms: u64) -> bool {
        let log = self.0.lock();
        let knows_all = |since_ms: u64| issued_at_ms > since_ms.saturating_add(ms(CLOCK_SLACK));
        let may_be_revoked = |account: Option<AccountId>| {
            log.accounts.get(&account).is_some_and(|changes| {
                changes.keys.contains_key(key_id) || changes.dropped_at_ms.is_some_and(|dropped| !knows_all(dropped))
            })
        };
        !log.since_ms.is_some_and(knows_all) || may_be_revoked(Some(account)) || may_be_revoked(None)
    }

    /// Records that a key of the account was created or revoked.
    pub(super) fn record(&self, account: Option<AccountId>, key_id: &str, now_ms: u64) {
        let mut log = self.0.lock();
        if log.keys >= MAX_KEYS {
            log.drop_expired(now_ms);
        }
        while log.keys >= MAX_KEYS
            && let Some(largest) = log.largest_account()
        {
            log.drop_changes(largest, now_ms);
        }
        log.enforce_account_limit(account, now_ms);
        let changes = log.accounts.entry(account).or_default();
        let is_new = changes.keys.insert(key_id.to_owned(), now_ms).is_none();
        log.keys += usize::from(is_new);
    }

    /// The accounts shard replies, and from now on every change is received.
    pub(super) fn start_tracking(&self, now_ms: u64) {
        self.0.lock().since_ms.get_or_insert(now_ms);
    }

    /// Records that changes were missed.
    pub(super) fn reset(&self, now_ms: u64) {
        *self.0.lock() = ChangeLog { since_ms: Some(now_ms), ..ChangeLog::default() };
    }
}

impl ChangeLog {
    /// Drops what concerns tokens that have expired.
    fn drop_expired(&mut self, now_ms: u64) {
        self.accounts.retain(|_, changes| {
            changes.drop_expired(now_ms);
            !changes.keys.is_empty() || changes.dropped_at_ms.is_some()
        });
        self.keys = self.accounts.values().map(|changes| changes.keys.len()).sum();
    }

    /// Drops changes of the account until it may have another key.
    fn enforce_account_limit(&mut self, account: Option<AccountId>, now_ms: u64) {
        let Some(changes) = self.accounts.get_mut(&account) else { return };
        let before = changes.keys.len();
        if before < MAX_KEYS_OF_ACCOUNT {
            return;
        }
        changes.drop_expired(now_ms);
        let left = changes.keys.len();
        self.keys -= before - left;
        if left >= MAX_KEYS_OF_ACCOUNT {
            self.drop_changes(account, now_ms);
        }
    }

    /// Drops the changes of an account: its tokens from before now are in doubt.
    fn drop_changes(&mut self, account: Option<AccountId>, now_ms: u64) {
        let changes = self.accounts.entry(account).or_default();
        self.keys -= changes.keys.len();
        *changes = AccountChanges { keys: HashMap::new(), dropped_at_ms: Some(now_ms) };
    }

    fn largest_account(&self) -> Option<Option<AccountId>> {
        self.accounts.iter().max_by_key(|(_, changes)| changes.keys.len()).map(|(account, _)| *account)
    }
}

impl AccountChanges {
    fn drop_expired(&mut self, now_ms: u64) {
        let oldest_ms = now_ms.saturating_sub(ms(MAX_TOKEN_LIFETIME + CLOCK_SLACK));
        self.keys.retain(|_, heard_ms| *heard_ms >= oldest_ms);
        self.dropped_at_ms = self.dropped_at_ms.filter(|dropped| *dropped >= oldest_ms);
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000_000;
    const ONE: AccountId = AccountId(1);
    const OTHER: AccountId = AccountId(2);

    #[test]
    fn only_tokens_from_after_the_beginning_and_of_keys_that_stayed_need_no_looking_up() {
        let revocations = Revocations::default();
        let needs_lookup = |key, issued_at_ms| revocations.needs_lookup(ONE, key, issued_at_ms);
        assert!(needs_lookup("a", START + 120_000), "nothing was heard yet");
        revocations.start_tracking(START);
        revocations.start_tracking(START + 500);
        assert!(needs_lookup("a", START - 1));
        assert!(needs_lookup("a", START + 90_000), "the other gateway's clock may be ahead");
        assert!(!needs_lookup("a", START + 90_001));
        revocations.record(Some(ONE), "b", START + 95_000);
        revocations.record(None, "c", START + 95_000);
        assert!(needs_lookup("b", START + 100_000) && !needs_lookup("a", START + 100_000));
        assert!(needs_lookup("c", START + 100_000), "its change names no account");
        revocations.reset(START + 200_000);
        assert!(needs_lookup("a", START + 100_000));
        assert!(!needs_lookup("b", START + 290_001));
    }

    #[test]
    fn more_changes_of_an_account_than_are_kept_put_its_own_tokens_in_doubt() {
        let revocations = Revocations::default();
        revocations.start_tracking(START);
        let at = START + 100_000;
        revocations.record(Some(OTHER), "revoked", at);
        for key in 0..=MAX_KEYS_OF_ACCOUNT {
            revocations.record(Some(ONE), &key.to_string(), at);
        }
        assert!(revocations.needs_lookup(ONE, "never", at + 90_000));
        assert!(!revocations.needs_lookup(ONE, "never", at + 90_001), "it was issued after those that were dropped");
        assert!(revocations.needs_lookup(ONE, &MAX_KEYS_OF_ACCOUNT.to_string(), at + 90_001));
        assert!(!revocations.needs_lookup(OTHER, "never", at) && revocations.needs_lookup(OTHER, "revoked", at));
        assert_eq!(revocations.0.lock().keys, 2);
    }

    #[test]
    fn of_too_many_changes_in_all_those_of_the_largest_account_are_dropped_unless_they_are_old() {
        let revocations = Revocations::default();
        revocations.start_tracking(START);
        let at = START + 100_000;
        let fill = |at_ms| {
            revocations.record(Some(OTHER), "revoked", at_ms);
            for number in 0..MAX_KEYS as u64 {
                revocations.record(Some(AccountId(100 + number / 4_000)), &format!("{at_ms} {number}"), at_ms);
            }
        };
        fill(at);
        assert!(revocations.0.lock().keys <= MAX_KEYS);
        let in_doubt =
            |at_ms| (100..125).filter(|account| revocations.needs_lookup(AccountId(*account), "never", at_ms)).count();
        assert_eq!(in_doubt(at), 1, "one account made room for all");
        assert!(revocations.needs_lookup(OTHER, "revoked", at) && !revocations.needs_lookup(OTHER, "never", at));
        let later = at + 10_000_000;
        fill(later);
        assert_eq!(in_doubt(later), 1, "the old ones went first");
    }
}
