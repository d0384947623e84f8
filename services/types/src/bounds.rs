//! The bounds on what the state machines store, return and do in one step, in one place.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::Rules;
use super::limit::MAX_PENDING_MESSAGES;

/// The limits that are the same for every account. They are part of the rules that an entry is applied by, so they are
/// equal on every replica; [`super::Limits`] are those of an account. Tests make them tiny, so that each is reached
/// often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Maximum number of tangled owners of a namespace, whatever the account's limit. The wait-for graph is expensive
    /// only among them.
    pub tangled_owners: u64,
    /// Maximum number of their awaited holds and waiting claims together.
    pub tangled_claims: u64,
    /// Maximum number of all their holds and waiting claims together.
    pub tangled_holds: u64,
    /// Maximum number of visits to build the wait-for graph. Beyond it, requests are rejected that would add to the
    /// graph or make other owners part of it.
    pub tangle_visits: u64,
    /// Maximum number of waiting requests of one owner, whatever the account's limit.
    pub waiting_of_owner: u64,
    /// Maximum number of holds of a waiting owner, whatever the account's limit. An owner with more may acquire, but
    /// not wait, and overtakes none.
    pub holds_of_waiting_owner: u64,
    /// Number of holds of all waiting owners beyond which no request joins the queue above holds of others.
    pub holds_of_waiting: u64,
    /// Maximum number of holds and waits that end in one slice of long work. An entry begins with one slice of
    /// unfinished work and one of due deadlines. Each of its commands also ends at most this many, and leaves the rest
    /// to later entries. In a large state, whose memory no processor cache holds, an end takes some 4 µs and a grant
    /// 12 µs: a slice of either takes 1 to 1.5 ms.
    pub ends_per_slice: usize,
    /// Maximum number of grants to waiting requests in one slice.
    pub grants_per_slice: usize,
    /// Maximum number of paths and waiting requests that a slice visits to find state to end.
    pub visits_per_slice: usize,
    /// Maximum number of API keys of an account.
    pub api_keys_per_account: usize,
    /// Number of creations that a shard caches, so that repeats return the first result; likewise of deleted API keys,
    /// so that repeats do not bring them back. The account with the most loses its oldest one.
    pub cached_creations: usize,
    /// Number of them that a shard caches of one account.
    pub cached_creations_per_account: usize,
    /// Number of changes that the accounts shard retains for gateways that cache accounts and keys.
    pub retained_changes: usize,
    /// Maximum number of messages about one account that other shards have not confirmed. Beyond it, new work on the
    /// account that would need a message is rejected.
    pub pending_messages_per_account: usize,
    /// Number of records in the audit log of a shard. The account with the most loses its oldest one.
    pub audit_records: usize,
    /// Number of records of one account in the audit log of a shard.
    pub audit_records_per_account: usize,
    /// Number of events that a namespace retains.
    pub retained_events: usize,
    /// Bytes of events, as charged, that a namespace retains even if the account has no capacity for new state.
    pub min_event_bytes: u64,
    /// Maximum number of readers of a lock in every response but that of a query for one lock, which has at most 1,000.
    /// [`super::LockView::holders_total`] counts all.
    pub max_readers_in_reply: usize,
    /// Maximum number of blockers in a refusal.
    pub max_blockers_in_reply: usize,
    /// Maximum number of steps of a cycle in a refusal.
    pub max_cycle_in_reply: usize,
    /// Maximum number of locks in the response to a release of everything.
    pub max_locks_in_reply: usize,
    /// The highest reported queue position; higher ones are reported as this.
    pub max_queue_position: u64,
    /// Maximum number of paths below a claim that are searched for blockers to report.
    pub paths_searched_for_blockers: usize,
    /// A mutation for tests: beyond this many visits, the search treats every possible wait as a wait. No rules set it.
    pub search_falls_back_after: Option<u64>,
}

impl Bounds {
    /// Returns the bounds of the rules.
    pub const fn of(rules: Rules) -> Self {
        // State from before a limit existed stays.
        const fn since_two(rules: Rules, max: u64) -> u64 {
            if rules.0 >= Rules::TWO.0 { max } else { u64::MAX }
        }
        // Before slices existed, all work was done in one step.
        let (ends_per_slice, grants_per_slice, visits_per_slice) =
            if rules.0 >= Rules::TWO.0 { (256, 128, 4_096) } else { (usize::MAX, usize::MAX, usize::MAX) };
        Self {
            ends_per_slice,
            grants_per_slice,
            visits_per_slice,
            tangled_owners: since_two(rules, 1_024),
            tangled_claims: since_two(rules, 16_384),
            tangled_holds: since_two(rules, 16_384),
            tangle_visits: since_two(rules, 12_288),
            waiting_of_owner: since_two(rules, 10_000),
            holds_of_waiting_owner: since_two(rules, 16_384),
            holds_of_waiting: since_two(rules, 16_384),
            api_keys_per_account: 1_000,
            cached_creations: 100_000,
            cached_creations_per_account: 100,
            retained_changes: 10_000,
            pending_messages_per_account: MAX_PENDING_MESSAGES as usize,
            audit_records: 20_000,
            audit_records_per_account: 1_000,
            retained_events: 10_000,
            min_event_bytes: 64 * 1024,
            max_readers_in_reply: 16,
            max_blockers_in_reply: 16,
            max_cycle_in_reply: 128,
            max_locks_in_reply: 64,
            max_queue_position: 10_000,
            paths_searched_for_blockers: 1_000,
            search_falls_back_after: None,
        }
    }

    /// Returns the bounds of the rules, allocated once, because every entry needs them.
    pub fn shared(rules: Rules) -> &'static Arc<Self> {
        static OF_ONE: LazyLock<Arc<Bounds>> = LazyLock::new(|| Arc::new(Bounds::of(Rules::ONE)));
        static OF_LATER: LazyLock<Arc<Bounds>> = LazyLock::new(|| Arc::new(Bounds::of(Rules::HIGHEST)));
        if rules == Rules::ONE { &OF_ONE } else { &OF_LATER }
    }

    /// Returns bounds so small that a test reaches each of them in every run.
    pub const fn tiny() -> Self {
        Self {
            tangled_owners: 3,
            tangled_claims: 12,
            tangled_holds: 14,
            tangle_visits: u64::MAX,
            waiting_of_owner: 3,
            holds_of_waiting_owner: 8,
            holds_of_waiting: 6,
            ends_per_slice: 2,
            grants_per_slice: 2,
            visits_per_slice: 100_000,
            api_keys_per_account: 2,
            cached_creations: 3,
            cached_creations_per_account: 2,
            retained_changes: 3,
            pending_messages_per_account: 4,
            audit_records: 5,
            audit_records_per_account: 3,
            retained_events: 4,
            min_event_bytes: 100,
            max_readers_in_reply: 1,
            max_blockers_in_reply: 1,
            max_cycle_in_reply: 2,
            max_locks_in_reply: 1,
            max_queue_position: 1,
            paths_searched_for_blockers: 1_000,
            search_falls_back_after: None,
        }
    }

    /// Returns whether evaluations of waiting requests are limited.
    pub const fn limits_visits(&self) -> bool {
        self.visits_per_slice < usize::MAX
    }

    /// Returns whether these are the bounds of rules that this build can apply.
    pub fn are_of_rules(&self) -> bool {
        (Rules::LOWEST.0..=Rules::HIGHEST.0).any(|rules| *self == Self::of(Rules(rules)))
    }
}
