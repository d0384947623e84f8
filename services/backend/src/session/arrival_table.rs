//! A connection's knowledge of its session's arrivals at barriers.

use std::collections::HashMap;

use holdfast_api::session_message::{Arrive, HeldPermits};
use holdfast_types::{BarrierOutcome, Path, Revision};

/// What the client was told of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrivalState {
    /// Its generation gathers.
    Gathering,
    /// It is inside a double barrier.
    Inside,
    /// It has left, and waits for the others.
    Leaving,
}

/// An arrival whose request goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArrivalEntry {
    pub(super) path: Path,
    pub(super) holder: Option<String>,
    pub(super) generation: Revision,
    pub(super) state: ArrivalState,
}

/// The arrivals, which the limits of the account bound.
#[derive(Debug, Default)]
pub(super) struct ArrivalTable {
    arrivals: HashMap<String, ArrivalEntry>,
}

impl ArrivalTable {
    pub(super) fn get(&self, request_id: &str) -> Option<&ArrivalEntry> {
        self.arrivals.get(request_id)
    }

    /// Adds an arrival that waits for the end of its generation.
    pub(super) fn arrived(&mut self, arrive: &Arrive, generation: Revision) {
        let (path, holder) = (Path(arrive.path.clone()), arrive.holder.clone());
        let entry = ArrivalEntry { path, holder, generation, state: ArrivalState::Gathering };
        self.arrivals.insert(arrive.request_id.clone(), entry);
    }

    /// Adds an arrival that the client of a resumed session listed. What became of it is asked next.
    pub(super) fn add_reported(&mut self, held: &HeldPermits) {
        let reported = &held.reported;
        let entry = ArrivalEntry {
            path: reported.path.clone(),
            holder: held.holder.clone(),
            generation: reported.fencing_token,
            state: ArrivalState::Gathering,
        };
        self.arrivals.insert(reported.request_id.clone(), entry);
    }

    pub(super) fn leaves(&mut self, request_id: &str) {
        if let Some(entry) = self.arrivals.get_mut(request_id) {
            entry.state = ArrivalState::Leaving;
        }
    }

    /// Records an outcome of a generation; `inside` tells whether the request goes on inside. Returns whether it is
    /// news for the client.
    pub(super) fn on_outcome(
        &mut self,
        request_id: &str,
        generation: Revision,
        outcome: BarrierOutcome,
        inside: bool,
    ) -> bool {
        let entry = self.arrivals.get_mut(request_id).filter(|entry| entry.generation == generation);
        let Some(entry) = entry.filter(|_| outcome != BarrierOutcome::Waiting) else { return false };
        if outcome != BarrierOutcome::Tripped || !inside {
            self.arrivals.remove(request_id);
            return true;
        }
        let is_news = entry.state == ArrivalState::Gathering;
        if is_news {
            entry.state = ArrivalState::Inside;
        }
        is_news
    }

    pub(super) fn remove(&mut self, request_id: &str) {
        self.arrivals.remove(request_id);
    }

    /// Returns the names of all arrivals, in order.
    pub(super) fn request_ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.arrivals.keys().cloned().collect();
        ids.sort_unstable();
        ids
    }

    /// Records the release of everything, and returns the requests that it ends.
    pub(super) fn clear(&mut self) -> Vec<String> {
        std::mem::take(&mut self.arrivals).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(request_id: &str) -> Arrive {
        let (request_id, path) = (request_id.to_owned(), vec!["b".to_owned()]);
        Arrive { request_id, path, generation: None, parties: None, double: None, holder: None }
    }

    #[test]
    fn each_outcome_is_told_once() {
        let mut table = ArrivalTable::default();
        table.arrived(&arrive("a"), 7);
        assert!(!table.on_outcome("a", 7, BarrierOutcome::Waiting, false));
        assert!(!table.on_outcome("a", 6, BarrierOutcome::Broken, false), "that was another generation");
        assert!(table.on_outcome("a", 7, BarrierOutcome::Broken, false));
        assert!(!table.on_outcome("a", 7, BarrierOutcome::Broken, false));
        assert_eq!(table.get("a"), None);
    }

    #[test]
    fn an_arrival_at_a_double_barrier_goes_on_until_all_have_left() {
        let mut table = ArrivalTable::default();
        table.arrived(&arrive("a"), 7);
        assert!(table.on_outcome("a", 7, BarrierOutcome::Tripped, true));
        assert!(!table.on_outcome("a", 7, BarrierOutcome::Tripped, true), "it is inside already");
        table.leaves("a");
        assert_eq!(table.get("a").map(|entry| entry.state), Some(ArrivalState::Leaving));
        assert!(table.on_outcome("a", 7, BarrierOutcome::Left, false));
        assert_eq!((table.request_ids(), table.clear()), (Vec::new(), Vec::new()));
    }
}
