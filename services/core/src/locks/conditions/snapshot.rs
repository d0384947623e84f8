//! Awaits in a snapshot, and what holds and waits came from.

use std::sync::Arc;

use holdfast_primitives::attempts::Attempts;
use serde::{Deserialize, Serialize};

use super::{Await, CameFrom, SignalAnswer, WakeCall};
use crate::codec::DecodeError;
use crate::locks::hold::HoldTerms;
use crate::locks::owner::NO_OWNER;
use crate::locks::restore::ensure;
use crate::locks::snapshot_items::OwnerItem;
use crate::{FencingToken, Path, Revision, WaitId, Woken};

/// An await.
#[derive(Serialize, Deserialize)]
pub(in crate::locks) struct AwaitItem<S> {
    pub(in crate::locks) wait: WaitId,
    pub(in crate::locks) owner: OwnerItem<S>,
    pub(in crate::locks) path: Vec<S>,
    pub(in crate::locks) condition: S,
    pub(in crate::locks) from_token: FencingToken,
    pub(in crate::locks) terms: HoldTerms,
    pub(in crate::locks) request_id: Option<S>,
    pub(in crate::locks) attempt: u64,
    pub(in crate::locks) ends_at_ms: Option<u64>,
    pub(in crate::locks) relock_ms: Option<u64>,
    pub(in crate::locks) since_ms: u64,
    /// The revision of its call, why, and whether the signal is handed on.
    pub(in crate::locks) call: Option<(Revision, Woken, bool)>,
}

/// What a hold or a wait came from.
#[derive(Serialize, Deserialize)]
pub(in crate::locks) struct PastItem<S> {
    /// The token that was given up, why its owner was woken, and the condition whose signal is handed on.
    pub(in crate::locks) came_from: Vec<(FencingToken, Woken, Option<S>)>,
    /// The ids of signals, and how many they woke and left.
    pub(in crate::locks) signals: Vec<(S, u64, u64)>,
}

impl<S> AwaitItem<S> {
    /// Makes the instants of the shard clock later by a time.
    pub(in crate::locks) fn delay(&mut self, by_ms: u64) {
        self.ends_at_ms = self.ends_at_ms.map(|at_ms| at_ms.saturating_add(by_ms));
    }
}

impl AwaitItem<String> {
    /// Returns its owner, its wait, and the await without its owner; `now` is the revision of the shard.
    pub(in crate::locks) fn into_await(self, now: Revision) -> Result<(OwnerItem<String>, WaitId, Await), DecodeError> {
        let called_at = self.call.map_or(0, |(at, ..)| at);
        ensure(self.wait.0 <= now && called_at <= now && now < 1 << 53, "an await is from the future")?;
        ensure(self.from_token < self.wait.0 && !self.path.is_empty(), "an await is of no lock")?;
        let awaits = Await {
            owner: NO_OWNER,
            owner_bytes: 0,
            path: Arc::new(Path(self.path)),
            condition: self.condition.into(),
            from_token: self.from_token,
            terms: self.terms,
            request_id: self.request_id.map(Into::into),
            attempts: Attempts::of(self.attempt),
            ends_at_ms: self.ends_at_ms,
            relock_ms: self.relock_ms,
            since_ms: self.since_ms,
            call: self.call.map(|(at, woken, passes_on)| WakeCall { at, woken, passes_on }),
        };
        Ok((self.owner, self.wait, awaits))
    }
}

impl PastItem<String> {
    pub(in crate::locks) fn into_past(self) -> (Vec<CameFrom>, Vec<SignalAnswer>) {
        let came_from = self.came_from.into_iter();
        let came_from = came_from.map(|(token, woken, condition)| CameFrom {
            token,
            woken,
            passes_on: condition.map(|condition| condition.as_str().into()),
        });
        let signals = self.signals.into_iter();
        let signals = signals.map(|(id, signalled, awaiting)| SignalAnswer { id: id.into(), signalled, awaiting });
        (came_from.collect(), signals.collect())
    }
}
