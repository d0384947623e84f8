//! The same shard, restored from its own snapshot repeatedly. State that matters and is missing in a snapshot, and
//! results that depend on how a state arose, show as a difference.

use std::fmt;

use holdfast_core::Application;
use holdfast_core::codec::DecodeError;
use holdfast_core::shard::ShardState;
use holdfast_core::{Bounds, Command, Effect, EntryContext, Reply};

/// A locks shard before its first entry.
pub(crate) fn new_shard(shard: &str, bounds: Option<Bounds>) -> ShardState {
    match bounds {
        None => ShardState::new(Application::Locks, shard),
        Some(bounds) => ShardState::with_bounds(Application::Locks, shard, bounds),
    }
}

/// A core that is replaced by the state restored from its snapshot after every few steps, also within an entry.
pub(crate) struct Twin {
    core: ShardState,
    shard: String,
    bounds: Option<Bounds>,
    every: usize,
    /// Things get other numbers in memory then, drawn from this.
    renumbered: Option<u64>,
    steps: usize,
}

impl fmt::Display for Twin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let renumbered = if self.renumbered.is_some() { " and numbered otherwise" } else { "" };
        write!(f, "the core that is restored every {} steps{renumbered}", self.every)
    }
}

impl Twin {
    pub(crate) fn new(shard: &str, bounds: Option<Bounds>, every: usize, renumbered: Option<u64>) -> Self {
        let core = new_shard(shard, bounds.clone());
        Self { core, shard: shard.to_owned(), bounds, every, renumbered, steps: 0 }
    }

    fn restore_from_snapshot(&self) -> Result<ShardState, DecodeError> {
        let (chunks, locks) = (self.core.snapshot(), Application::Locks);
        match self.bounds.clone() {
            None => ShardState::restore(locks, &self.shard, &chunks),
            Some(bounds) => ShardState::restore_with_bounds(locks, &self.shard, &chunks, bounds),
        }
    }

    /// The clock moves.
    pub(crate) fn advance(&mut self, context: &EntryContext) {
        self.core.advance(context);
    }

    /// Runs a command, which must be answered as it was before.
    pub(crate) fn apply(
        &mut self,
        context: &EntryContext,
        command: &Command,
        meant: &Reply,
        find: &mut dyn FnMut(String),
    ) {
        let reply = self.core.apply(context, command);
        if reply != *meant {
            find(format!("[twin] {self} answers {command:?} {reply:?}, not {meant:?}"));
        }
    }

    /// After the clock has advanced, and after each command: the effects must be the same.
    pub(crate) fn compare_effects(&mut self, meant: &[Effect], find: &mut dyn FnMut(String)) {
        let effects = self.core.take_effects();
        if effects != meant {
            find(format!("[twin] {self} has the effects {effects:?}, not {meant:?}"));
        }
        self.steps += 1;
        if self.steps.is_multiple_of(self.every) {
            match self.restore_from_snapshot() {
                Ok(core) => {
                    let numbered = self.renumbered.map(|seed| core.renumbered(seed.wrapping_add(self.steps as u64)));
                    self.core = numbered.unwrap_or(core);
                }
                Err(error) => find(format!("[twin] its own snapshot can't be restored: {error}")),
            }
        }
    }

    /// After each entry: the state must be the same.
    pub(crate) fn compare_state(&self, meant: &[Vec<u8>], find: &mut dyn FnMut(String)) {
        if self.core.snapshot() != meant {
            find(format!("[twin] {self} has another state"));
        }
    }
}
