//! The phase of a hold. A hold past its deadline counts as over immediately, though the entry that ends it may come
//! later.

use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_mutations::{Mutation, is_enabled};

use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::session_end::EndingSession;
use super::tree::NodeId;
use crate::{Phase, SessionEnd};

/// A clock that is set before every access. Accesses are sequential, so no access sees it change.
#[derive(Debug, Default)]
pub(super) struct ClockCell(AtomicU64);

impl ClockCell {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, now_ms: u64) {
        self.0.store(now_ms, Ordering::Relaxed);
    }
}

impl Clone for ClockCell {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.get()))
    }
}

impl Namespace {
    /// Returns whether the owner may act on the hold.
    pub(super) fn is_current(&self, node: NodeId, hold: &Hold) -> bool {
        self.phase_of(node, hold).0 == Phase::Held
    }

    /// Returns whether the hold is over: it can only end.
    pub(super) fn is_over(&self, node: NodeId, hold: &Hold) -> bool {
        self.phase_of(node, hold).1.is_some_and(|ends_at_ms| ends_at_ms <= self.now_ms.get())
    }

    /// Returns the phase of the hold and the end of that phase.
    pub(super) fn phase_of(&self, node: NodeId, hold: &Hold) -> (Phase, Option<u64>) {
        let is_due = |at_ms: &u64| *at_ms <= self.now_ms.get() && !is_enabled(Mutation::DueHeld);
        if let Some(forced_at_ms) = hold.forced_at_ms().filter(is_due) {
            return (Phase::Transition, Some(forced_at_ms));
        }
        if hold.phase != Phase::Held {
            return (hold.phase, hold.ends_at_ms());
        }
        let due_ms = hold.deadline_ms.map(u64::from).filter(is_due);
        let transition_ms = u64::from(hold.transition_ms);
        let over_at = |ends_at_ms: u64| {
            let kept_until_ms = hold.at_least().map_or(0, |at_least| at_least.until_ms);
            (Phase::Transition, Some(kept_until_ms.max(ends_at_ms)))
        };
        match (self.ending_session_of(hold.owner), self.swept_by(node, hold), due_ms) {
            (Some(ending), ..) => {
                let transition_ms = if ending.reason == SessionEnd::Expired { transition_ms } else { 0 };
                over_at(ending.since_ms.saturating_add(transition_ms))
            }
            (None, Some(sweep), _) if sweep.target.is_path() => (Phase::Transition, Some(sweep.since_ms)),
            (None, Some(sweep), _) => over_at(sweep.since_ms),
            (None, None, Some(due_ms)) => over_at(due_ms.saturating_add(transition_ms)),
            (None, None, None) => (hold.phase, hold.ends_at_ms()),
        }
    }

    /// Returns whether the owner has released the hold: it is kept from others, or a sweep is about to end it.
    pub(super) fn is_relinquished(&self, node: NodeId, hold: &Hold) -> bool {
        hold.is_kept() || (hold.is_held() && self.swept_by(node, hold).is_some())
    }

    /// Returns the session of an owner if it has ended and still has holds or waits to end. Such an owner is granted
    /// nothing.
    pub(super) fn ending_session_of(&self, owner: OwnerId) -> Option<&EndingSession> {
        if self.ending_sessions.is_empty() {
            return None;
        }
        self.ending_sessions.get(&self.owners.name(owner).session()?.number)
    }
}
