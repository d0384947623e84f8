//! What the state machines keep, show and do at once at most, in one place.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::Rules;

/// The limits that are the same for every account. They are part of the rules that an entry is applied by, so every
/// replica keeps the same; [`super::Limits`] are those of an account. Tests make them tiny, so that each is met often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Owners of a namespace that wait and are waited for. Who waits for whom is dear to find out only among them.
    pub tangled_owners: u64,
    /// The holds of these that others wait for, and the claims that they wait for, together.
    pub tangled_claims: u64,
    /// Holds and waits that end in one slice of something long: an entry begins with a slice of what was begun and is not
    /// finished, and one of what is due; each of its commands does as much at once, and leaves the rest.
    pub ends_in_slice: usize,
    /// Grants in one slice to those who wait.
    pub grants_in_slice: usize,
    /// Paths and waiting requests that a slice looks at to find what it has to end.
    pub looks_in_slice: usize,
    /// API keys of an account.
    pub api_keys_per_account: usize,
    /// Creations that a shard remembers so that their repeats answer as the first did.
    pub remembered_creations: usize,
    /// Changes that the accounts shard remembers for gateways that keep accounts and keys in memory.
    pub remembered_changes: usize,
    /// Messages that a shard keeps for others that have not confirmed them; beyond it new work that would need one is
    /// refused.
    pub pending_messages: usize,
    /// Records in the audit log of a shard; the oldest goes first.
    pub audit_records: usize,
    /// Records of one account in the audit log of a shard.
    pub audit_records_per_account: usize,
    /// Events that a namespace remembers.
    pub remembered_events: usize,
    /// Readers shown in the answer to an acquire or a release; a get shows all.
    pub readers_shown: usize,
    /// Blockers named in a refusal.
    pub blockers_shown: usize,
    /// Steps of a cycle named in a refusal.
    pub cycle_shown: usize,
    /// Locks shown in the answer to a release of everything.
    pub locks_shown: usize,
    /// A place in the queue beyond this is shown as this.
    pub queue_position_shown: u64,
    /// Paths under a claim that are searched for blockers to be named.
    pub paths_searched_for_blockers: usize,
    /// How far short searches go.
    pub searches: ShortSearches,
    /// A fault that tests plant: beyond so many steps whoever may wait is taken to wait. No rules have it.
    pub search_falls_back_after: Option<u64>,
}

/// How far searches go before another, longer way is taken to the same answer. What is found never depends on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortSearches {
    /// Those who wait for an owner are few when they are found in so many steps.
    pub few_steps: usize,
    /// An owner with more holds than this is taken to be awaited without a look.
    pub holds_of_one: usize,
    /// So many blockers are followed before the search goes the other way.
    pub blockers: usize,
    /// So many requests behind those who wait for an owner are looked at before those that it waits for.
    pub later: usize,
    /// Beyond so many earlier requests in a line it is asked first who waits for the owner.
    pub earlier: usize,
    /// So many paths are searched for one hold to be watched.
    pub paths: usize,
    /// So many holds in the way of a request are looked at one by one.
    pub holds_in_the_way: usize,
}

impl Bounds {
    /// Those of the rules.
    pub const fn of(rules: Rules) -> Self {
        // What was let in before there was a limit stays in.
        let (tangled_owners, tangled_claims) =
            if rules.0 >= Rules::TWO.0 { (256, 4_096) } else { (u64::MAX, u64::MAX) };
        // Before there were slices everything was done at once.
        let (ends_in_slice, grants_in_slice, looks_in_slice) =
            if rules.0 >= Rules::TWO.0 { (512, 256, 4_096) } else { (usize::MAX, usize::MAX, usize::MAX) };
        Self {
            tangled_owners,
            tangled_claims,
            ends_in_slice,
            grants_in_slice,
            looks_in_slice,
            api_keys_per_account: 1_000,
            remembered_creations: 1_000,
            remembered_changes: 10_000,
            pending_messages: 100_000,
            audit_records: 20_000,
            audit_records_per_account: 1_000,
            remembered_events: 10_000,
            readers_shown: 16,
            blockers_shown: 16,
            cycle_shown: 128,
            locks_shown: 64,
            queue_position_shown: 10_000,
            paths_searched_for_blockers: 1_000,
            searches: ShortSearches {
                few_steps: 256,
                holds_of_one: 64,
                blockers: 2_000,
                later: 256,
                earlier: 64,
                paths: 1_000,
                holds_in_the_way: 1_000,
            },
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
            ends_in_slice: 2,
            grants_in_slice: 2,
            looks_in_slice: 1_000,
            api_keys_per_account: 2,
            remembered_creations: 2,
            remembered_changes: 3,
            pending_messages: 4,
            audit_records: 5,
            audit_records_per_account: 3,
            remembered_events: 4,
            readers_shown: 1,
            blockers_shown: 1,
            cycle_shown: 2,
            locks_shown: 1,
            queue_position_shown: 1,
            paths_searched_for_blockers: 1_000,
            searches: ShortSearches {
                few_steps: 3,
                holds_of_one: 1,
                blockers: 2,
                later: 1,
                earlier: 1,
                paths: 1,
                holds_in_the_way: 1,
            },
            search_falls_back_after: None,
        }
    }

    /// Whether they are those of some rules that this build can apply.
    pub(crate) fn are_of_rules(&self) -> bool {
        (Rules::LOWEST.0..=Rules::HIGHEST.0).any(|rules| *self == Self::of(Rules(rules)))
    }
}
