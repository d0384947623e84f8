//! Replicas that are restored from snapshots on the way. They answer, tell and keep what one does that applied
//! everything: nothing that a shard does may depend on how its state came to be.

use holdfast_core::Application;
use holdfast_core::codec::DecodeError;
use holdfast_core::shard::ShardState;
use holdfast_core::{Bounds, Command, Effect, EntryContext, Reply};

use crate::random::SeededRng;

const SHARD: &str = "locks_00";
/// Of so many commands one twin carries out one as a follower does, who owes no reply.
const WITHOUT_VIEWS_EVERY: u64 = 3;

/// Two of them: one numbers what it has as a restore does, the other at random.
pub(crate) struct RestoredReplicas {
    /// When they are not those of the rules.
    bounds: Option<Bounds>,
    restored: ShardState,
    renumbered: ShardState,
    /// After so many entries they are restored again.
    every: u64,
    entries: u64,
    commands: u64,
    seed: u64,
}

impl RestoredReplicas {
    pub(crate) fn new(bounds: Option<Bounds>, dice: &mut SeededRng) -> Self {
        let begin = || begin(bounds.as_ref());
        let (restored, renumbered) = (begin(), begin());
        Self {
            bounds,
            restored,
            renumbered,
            every: 1 + dice.below(12),
            entries: 0,
            commands: 0,
            seed: dice.below(1 << 32),
        }
    }

    /// A shard before its first entry.
    pub(crate) fn new_shard(&self) -> ShardState {
        begin(self.bounds.as_ref())
    }

    /// A shard from its snapshot.
    pub(crate) fn restored(&self, chunks: &[Vec<u8>]) -> Result<ShardState, DecodeError> {
        match &self.bounds {
            None => ShardState::restore(Application::Locks, SHARD, chunks),
            Some(bounds) => ShardState::restore_with_bounds(Application::Locks, SHARD, chunks, bounds.clone()),
        }
    }

    pub(crate) fn advance(&mut self, context: &EntryContext) {
        self.restored.advance(context);
        self.renumbered.advance(context);
    }

    /// Both answer as the other one did, unless nobody is to see the answer.
    pub(crate) fn apply(&mut self, context: &EntryContext, command: &Command, reply: &Reply) {
        assert_eq!(
            self.restored.apply(context, command),
            *reply,
            "one that was restored answers {command:?} otherwise"
        );
        self.commands += 1;
        if self.commands.is_multiple_of(WITHOUT_VIEWS_EVERY) {
            self.renumbered.apply_without_views(context, command);
            return;
        }
        let renumbered = self.renumbered.apply(context, command);
        assert_eq!(renumbered, *reply, "one with other numbers answers {command:?} otherwise");
    }

    /// Both did to others what the other one did, and came to the same state. Now and then they are restored from it.
    pub(crate) fn end_entry(&mut self, core: &ShardState, effects: &[Effect]) {
        let chunks = core.snapshot();
        for (twin, name) in [(&mut self.restored, "restored"), (&mut self.renumbered, "renumbered")] {
            assert_eq!(twin.take_effects(), effects, "effects of the {name} one");
            assert_eq!(twin.next_deadline_ms(), core.next_deadline_ms());
            assert_eq!(twin.footprint(), core.footprint());
            assert!(twin.snapshot() == chunks, "the {name} one is in another state");
        }
        self.entries += 1;
        if self.entries.is_multiple_of(self.every) {
            self.restored = self.restored(&chunks).expect("what was applied can be restored");
            self.seed += 1;
            self.renumbered = self.restored(&chunks).expect("what was applied can be restored").renumbered(self.seed);
            for twin in [&self.restored, &self.renumbered] {
                assert!(twin.snapshot() == chunks, "a snapshot is the same when it was restored");
                assert_eq!(twin.footprint(), core.footprint());
            }
        }
    }
}

fn begin(bounds: Option<&Bounds>) -> ShardState {
    match bounds {
        None => ShardState::new(Application::Locks, SHARD),
        Some(bounds) => ShardState::with_bounds(Application::Locks, SHARD, bounds.clone()),
    }
}
