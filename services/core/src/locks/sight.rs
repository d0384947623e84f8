//! Decides whether a semaphore's hold or wait counts as over, from the clock and the unfinished sweeps.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_primitives::kit::{Sight, SweepMark};
use holdfast_primitives::permits::{PermitItem, Scope};

use super::namespace::Namespace;
use super::sessions::Session;
use super::sweep::Sweep;
use super::target::Target;
use crate::{Owner, Revision};

impl Namespace {
    /// Lets a query see the semaphores.
    pub(super) fn with_sight<T>(&self, look: impl FnOnce(Sight<'_>) -> T) -> T {
        let sweep_of = |permits: &PermitItem<'_>| sweep_mark(&self.sweeps, &self.sessions, permits);
        let (visible_ms, max_queue_position) = (self.now_ms.get(), self.max_queue_position());
        let has_sweeps = !self.sweeps.is_empty();
        look(Sight { visible_ms, max_queue_position, has_sweeps, sweep_of: &sweep_of })
    }

    pub(super) fn max_queue_position(&self) -> usize {
        usize::try_from(self.bounds.max_queue_position).unwrap_or(usize::MAX)
    }
}

/// Returns the unfinished sweep that will end a hold of a semaphore or a wait for one. A reset is none: until it ends
/// something, that stays valid, and it grants nothing at all.
pub(super) fn sweep_mark(
    sweeps: &BTreeMap<Revision, Sweep>,
    sessions: &BTreeMap<Arc<str>, Session>,
    permits: &PermitItem<'_>,
) -> Option<SweepMark> {
    let goes = |began: Revision, target: &Target| match (target, permits.scope) {
        _ if permits.since >= began || target.is_reset() || !covers(target, permits) => false,
        (Target::Unlisted(_), Scope::Session { session_id, .. }) => {
            let report = sessions.get(session_id).and_then(|session| session.report.as_ref());
            report.is_some_and(|report| !report.keeps_permits(permits))
        }
        _ => true,
    };
    let (began, sweep) = sweeps.iter().find(|(began, sweep)| goes(**began, &sweep.target))?;
    Some(SweepMark { began: *began, since_ms: sweep.since_ms, at_once: sweep.target.takes_effect_at_once() })
}

/// Returns whether a target covers a hold or a wait, as far as its owner tells. The age of a process is not regarded.
pub(super) fn covers(target: &Target, permits: &PermitItem<'_>) -> bool {
    match (target, permits.scope) {
        (Target::Owner(Owner::Process(process_id), _), Scope::Process(owner)) => **owner == **process_id,
        (Target::Owner(Owner::Session { holder, .. }, number), Scope::Session { number: session, .. }) => {
            session == number && permits.holder == holder.as_deref()
        }
        (Target::Session(number) | Target::Unlisted(number), Scope::Session { number: session, .. }) => {
            session == number
        }
        (Target::Reset { live, .. }, Scope::Process(owner)) => !live.contains(&**owner),
        (Target::Reset { .. }, Scope::Session { number, session_id }) => target.covers_session(session_id, *number),
        _ => false,
    }
}
