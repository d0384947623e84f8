//! What the state machines keep, show and do at once at most, in one place.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::Rules;

/// The limits that are the same for every account. They are part of the rules that an entry is applied by, so every
/// replica keeps the same; [`super::Limits`] are those of an account. Tests make them tiny, so that each is met often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Owners of a namespace that wait and are waited for, whatever the account's limit. Who waits for whom is dear to find
    /// out only among them.
    pub tangled_owners: u64,
    /// The holds of these that others wait for, and the claims that they wait for, together.
    pub tangled_claims: u64,
    /// All holds of these and the claims that they wait for, together.
    pub tangled_holds: u64,
    /// Steps that it takes to find out who waits for whom, beyond which nobody joins the queue who is, or makes others,
    /// part of that.
    pub tangle_visits: u64,
    /// Waiting requests of one owner, whatever the account's limit.
    pub waiting_of_owner: u64,
    /// Holds and waiting claims of an owner that waits, whatever the account's limit. Who holds more may ask, but not wait,
    /// and overtakes nobody.
    pub holds_of_waiting_owner: u64,
    /// Holds of all owners that wait, beyond which no request joins the queue that is above others' holds.
    pub holds_of_waiting: u64,
    /// Holds and waits that end in one slice of something long: an entry begins with a slice of what was begun and is not
    /// finished, and one of what is due; each of its commands does as much at once, and leaves the rest.
    pub ends_per_slice: usize,
    /// Grants in one slice to those who wait.
    pub grants_per_slice: usize,
    /// Paths and waiting requests that a slice looks at to find what it has to end.
    pub visits_per_slice: usize,
    /// API keys of an account.
    pub api_keys_per_account: usize,
    /// Creations that a shard remembers so that their repeats answer as the first did.
    pub cached_creations: usize,
    /// Changes that the accounts shard remembers for gateways that keep accounts and keys in memory.
    pub retained_changes: usize,
    /// Messages that a shard keeps for others that have not confirmed them; beyond it new work that would need one is
    /// refused.
    pub pending_messages: usize,
    /// Records in the audit log of a shard; the oldest goes first.
    pub audit_records: usize,
    /// Records of one account in the audit log of a shard.
    pub audit_records_per_account: usize,
    /// Events that a namespace remembers.
    pub retained_events: usize,
    /// Bytes of events, as charged, that a namespace keeps when the account has no room for anything new.
    pub min_event_bytes: u64,
    /// Readers shown in the answer to an acquire or a release; a get shows all.
    pub max_readers_in_reply: usize,
    /// Blockers named in a refusal.
    pub max_blockers_in_reply: usize,
    /// Steps of a cycle named in a refusal.
    pub max_cycle_in_reply: usize,
    /// Locks shown in the answer to a release of everything.
    pub max_locks_in_reply: usize,
    /// A place in the queue beyond this is shown as this.
    pub max_queue_position: u64,
    /// Paths under a claim that are searched for blockers to be named.
    pub paths_searched_for_blockers: usize,
    /// A fault that tests plant: beyond so many steps whoever may wait is taken to wait. No rules have it.
    pub search_falls_back_after: Option<u64>,
}

impl Bounds {
    /// Those of the rules.
    pub const fn of(rules: Rules) -> Self {
        // What was let in before there was a limit stays in.
        const fn since_two(rules: Rules, max: u64) -> u64 {
            if rules.0 >= Rules::TWO.0 { max } else { u64::MAX }
        }
        // Before there were slices everything was done at once.
        let (ends_per_slice, grants_per_slice, visits_per_slice) =
            if rules.0 >= Rules::TWO.0 { (512, 256, 4_096) } else { (usize::MAX, usize::MAX, usize::MAX) };
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
            cached_creations: 1_000,
            retained_changes: 10_000,
            pending_messages: 100_000,
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

    /// Those of the rules, kept once: every entry asks for them.
    pub(crate) fn shared(rules: Rules) -> &'static Arc<Self> {
        static OF_ONE: LazyLock<Arc<Bounds>> = LazyLock::new(|| Arc::new(Bounds::of(Rules::ONE)));
        static OF_LATER: LazyLock<Arc<Bounds>> = LazyLock::new(|| Arc::new(Bounds::of(Rules::HIGHEST)));
        if rules == Rules::ONE { &OF_ONE } else { &OF_LATER }
    }

    /// So small that a test meets each of them in every run.
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
            cached_creations: 2,
            retained_changes: 3,
            pending_messages: 4,
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

    /// Whether it is counted how often waiting requests are looked at.
    pub(crate) const fn limits_visits(&self) -> bool {
        self.visits_per_slice < usize::MAX
    }

    /// Whether they are those of some rules that this build can apply.
    pub(crate) fn are_of_rules(&self) -> bool {
        (Rules::LOWEST.0..=Rules::HIGHEST.0).any(|rules| *self == Self::of(Rules(rules)))
    }
}
