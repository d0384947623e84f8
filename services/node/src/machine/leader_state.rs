//! The leader state of a shard while its replica leads: built from the state, and built again after a panic in it.
//!
//! A panic in the leader state leaves the state sound, so it costs no other part of the replica. Until the leader state
//! is built again, keep-alives wait, and calls that need it are redirected, as by a replica that does not lead.

use holdfast_supervise::{CaughtPanic, catch_panic};
use tokio::sync::watch;

use super::slices::free_in_background;
use super::{Inner, ShardMachine};
use crate::leader::{LeaderState, Takeover};
use crate::memory::NodeMemory;

impl Inner {
    /// Takes the leader state out. One of the same term, if there is another, continues its attempts.
    pub(super) fn take_leader_state(&mut self) -> Option<LeaderState> {
        let table = self.leader_state.take();
        self.last_attempts = table.as_ref().map_or(self.last_attempts, |table| (table.term, table.attempts()));
        table
    }

    /// Drops what was taken over for a leadership that is to begin: the state changes, or another leadership begins or
    /// none.
    pub(super) fn drop_takeover(&mut self) {
        if let Some(stale) = self.takeover.take() {
            free_in_background(stale);
        }
    }

    /// Builds the leader state from the state, if this replica leads. Returns the reason if that panics; there is none
    /// then.
    pub(super) fn build_leader_state(&mut self) -> Option<String> {
        let (rules, (term, attempts)) = (self.rules, self.last_attempts);
        let begins = self.leads.filter(|_| self.core.is_some());
        let takeover = self.takeover.take_if(|takeover| takeover.is_done() && Some(takeover.term()) == begins);
        self.drop_takeover();
        let built = catch_panic(|| {
            self.leads.zip(self.core.as_ref()).map(|(leads, core)| {
                let fresh = match takeover {
                    Some(takeover) => takeover.finish(rules),
                    None => LeaderState::new(leads, rules, core),
                };
                let fresh = fresh.with_table_memory(self.table_memory.clone());
                if leads == term { fresh.with_attempts(attempts) } else { fresh }
            })
        });
        let failed = built.as_ref().err().map(ToString::to_string);
        self.leader_state = built.unwrap_or_default();
        failed
    }
}

/// The leader state while a slice is applied. Without it the slice goes on.
pub(super) struct AppliedLeaderState<'a> {
    /// `None` if the replica does not lead, and after a panic.
    pub(super) state: Option<&'a mut LeaderState>,
    /// A panic in the leader state.
    pub(super) panicked: Option<CaughtPanic>,
}

impl AppliedLeaderState<'_> {
    pub(super) fn is_some(&self) -> bool {
        self.state.is_some()
    }

    /// Changes the leader state, if there is one. Returns `None` if there is none, or none any more.
    pub(super) fn update<T>(&mut self, change: impl FnOnce(&mut LeaderState) -> T) -> Option<T> {
        let state = self.state.as_deref_mut()?;
        match catch_panic(|| change(state)) {
            Ok(changed) => Some(changed),
            Err(panicked) => {
                (self.state, self.panicked) = (None, Some(panicked));
                None
            }
        }
    }
}

impl ShardMachine {
    /// Takes the next page of the state over for a leadership that is to begin in this term. Returns true once there is
    /// no more to do before it.
    pub(crate) fn prepare_leadership(&self, term: u64) -> bool {
        let mut inner = self.inner.lock();
        if inner.takeover.as_ref().is_some_and(|takeover| takeover.term() != term) {
            inner.drop_takeover();
        }
        let Inner { core, takeover, rules, .. } = &mut *inner;
        let Some(core) = core else { return true };
        let begun = takeover.get_or_insert_with(|| Takeover::new(term, *rules));
        // A panic in it comes again when the leadership begins, and is handled there.
        let is_done = begun.is_done() || catch_panic(|| begun.take_page(core)).unwrap_or(true);
        drop(inner);
        is_done
    }

    /// Drops a leader state that panicked, which redirects its callers.
    pub(super) fn drop_leader_state(&self, inner: &mut Inner, panicked: &CaughtPanic) {
        let half = inner.take_leader_state();
        // The fault in it may cause another panic on drop.
        let _ = catch_panic(move || drop(half));
        self.leader_state_failed.send_replace(Some(panicked.to_string()));
    }

    /// Builds a lost leader state of this term again from the state: every session gets its full time. All that was
    /// proposed with the lost one must be applied. Changes nothing if the replica does not lead in this term.
    pub(crate) fn rebuild_leader_state(&self, term: u64) {
        let mut inner = self.inner.lock();
        if inner.leads != Some(term) {
            return;
        }
        let mut failed = None;
        // It may have been built with the state, which had failed too.
        if inner.leader_state.is_none() {
            failed = inner.build_leader_state();
        }
        // Under the lock, so that the next failure is not lost.
        self.leader_state_failed.send_replace(failed);
        drop(inner);
        self.leader_state_changed.notify_waiters();
        self.expiry_resolved.notify_waiters();
    }

    /// Returns the node's memory for lock tables that are in no log; one without a limit if there is none.
    pub(crate) fn table_memory(&self) -> NodeMemory {
        self.inner.lock().table_memory.clone().unwrap_or_else(|| NodeMemory::of_tables(u64::MAX))
    }

    /// Is `Some`, with the reason, from the moment that the leader state fails until it is built again.
    pub(crate) fn leader_state_failed(&self) -> watch::Receiver<Option<String>> {
        self.leader_state_failed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Application, Rules};

    use super::*;
    use crate::machine::empty_state;

    #[tokio::test]
    async fn a_slice_goes_on_without_a_leader_state_that_panics() {
        let core = empty_state(Application::Locks, "locks_00", None);
        let mut leader_state = LeaderState::new(3, Rules::LOWEST, &core);
        let mut table = AppliedLeaderState { state: Some(&mut leader_state), panicked: None };
        assert_eq!(table.update(|state| state.term), Some(3));
        assert_eq!(table.update(|_| -> u64 { panic!("a bug") }), None);
        assert!(!table.is_some() && table.panicked.as_ref().is_some_and(|panicked| panicked.message == "a bug"));
        assert_eq!(table.update(|state| state.term), None);
    }
}
