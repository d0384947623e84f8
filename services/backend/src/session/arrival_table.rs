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
    /// The request by which each owner arrived last at a barrier, by its path and its holder.
    latest: HashMap<(Path, Option<String>), String>,
}

impl ArrivalTable {
    pub(super) fn get(&self, request_id: &str) -> Option<&ArrivalEntry> {
        self.arrivals.get(request_id)
    }

    /// Adds an arrival that waits for the end of its generation. Returns the request that it takes the place of: one
    /// owner arrives once in a generation, and the service tells only its latest request what becomes of it.
    pub(super) fn arrived(&mut self, arrive: &Arrive, generation: Revision) -> Option<String> {
        let (path, holder) = (Path(arrive.path.clone()), arrive.holder.clone());
        let earlier = self.latest.get(&(path.clone(), holder.clone())).filter(|id| **id != arrive.request_id);
        let is_same_arrival =
            |entry: &ArrivalEntry| entry.generation == generation && entry.state != ArrivalState::Leaving;
        let replaced = earlier.filter(|id| self.arrivals.get(*id).is_some_and(is_same_arrival)).cloned();
        if let Some(replaced) = &replaced {
            self.remove(replaced);
        }
        let entry = ArrivalEntry { path, holder, generation, state: ArrivalState::Gathering };
        self.insert(arrive.request_id.clone(), entry);
        replaced
    }

    fn insert(&mut self, request_id: String, entry: ArrivalEntry) {
        self.remove(&request_id);
        self.latest.insert((entry.path.clone(), entry.holder.clone()), request_id.clone());
        self.arrivals.insert(request_id, entry);
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
        self.insert(reported.request_id.clone(), entry);
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
            self.remove(request_id);
            return true;
        }
        let is_news = entry.state == ArrivalState::Gathering;
        if is_news {
            entry.state = ArrivalState::Inside;
        }
        is_news
    }

    pub(super) fn remove(&mut self, request_id: &str) {
        let Some(ArrivalEntry { path, holder, .. }) = self.arrivals.remove(request_id) else { return };
        let place = (path, holder);
        if self.latest.get(&place).is_some_and(|latest| latest == request_id) {
            self.latest.remove(&place);
        }
    }

    /// Returns the names of all arrivals, in order.
    pub(super) fn request_ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.arrivals.keys().cloned().collect();
        ids.sort_unstable();
        ids
    }

    /// Records the release of everything, and returns the requests that it ends.
    pub(super) fn clear(&mut self) -> Vec<String> {
        self.latest.clear();
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
    fn each_outcome_is_sent_once() {
        let mut table = ArrivalTable::default();
        table.arrived(&arrive("a"), 7);
        assert!(!table.on_outcome("a", 7, BarrierOutcome::Waiting, false));
        assert!(!table.on_outcome("a", 6, BarrierOutcome::Broken, false), "that was another generation");
        assert!(table.on_outcome("a", 7, BarrierOutcome::Broken, false));
        assert!(!table.on_outcome("a", 7, BarrierOutcome::Broken, false));
        assert_eq!(table.get("a"), None);
    }

    #[test]
    fn a_second_request_of_an_owner_takes_the_place_of_its_first_in_the_same_generation() {
        let mut table = ArrivalTable::default();
        assert_eq!(table.arrived(&arrive("a"), 7), None);
        assert_eq!(table.arrived(&arrive("a"), 7), None, "a repeat");
        assert_eq!(table.arrived(&Arrive { holder: Some("h".into()), ..arrive("b") }, 7), None, "another owner");
        assert_eq!(table.arrived(&Arrive { path: vec!["c".into()], ..arrive("c") }, 7), None, "another barrier");
        assert_eq!(table.arrived(&arrive("d"), 7), Some("a".to_owned()));
        assert_eq!(table.get("a"), None);
        assert!(table.on_outcome("d", 7, BarrierOutcome::Tripped, true));
        assert_eq!(table.arrived(&arrive("e"), 7), Some("d".to_owned()), "it is inside");
        assert!(table.on_outcome("e", 7, BarrierOutcome::Tripped, true));
        table.leaves("e");
        assert_eq!(table.arrived(&arrive("f"), 7), None, "the first waits for the others to leave");
        assert_eq!(table.arrived(&arrive("g"), 9), None, "the first has to hear how its generation ended");
        assert_eq!(table.request_ids(), ["b", "c", "e", "f", "g"]);
        for id in ["b", "c", "e", "f", "g"] {
            table.remove(id);
        }
        assert!(table.latest.is_empty());
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
