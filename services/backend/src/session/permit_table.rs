//! A connection's knowledge of its session's requests for permits and for members.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_api::session_message::{AcquirePermits, HeldPermits};
use holdfast_types::{FencingToken, Kind, MAX_MEMBERS_PER_TAKE, Path, ReportedPermits, WaitId};

/// The state of a request, as the client was notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitState {
    Waiting(WaitId),
    Held(FencingToken),
    /// The hold was lost; the client has yet to release the request.
    Lost,
}

#[derive(Debug)]
struct PermitRequest {
    /// Absent for a hold that the client listed after a resume.
    acquire: Option<Arc<AcquirePermits>>,
    kind: Kind,
    path: Path,
    holder: Option<String>,
    state: PermitState,
}

/// What a release names besides the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PermitOwner {
    pub(super) kind: Kind,
    pub(super) path: Path,
    pub(super) holder: Option<String>,
}

/// The unreleased requests, which the limits of the account bound.
#[derive(Debug, Default)]
pub(super) struct PermitTable {
    requests: HashMap<String, PermitRequest>,
}

impl PermitTable {
    pub(super) fn state(&self, request_id: &str) -> Option<PermitState> {
        self.requests.get(request_id).map(|request| request.state)
    }

    /// Returns the path and the holder of a request.
    pub(super) fn owner(&self, request_id: &str) -> Option<PermitOwner> {
        let request = self.requests.get(request_id)?;
        Some(PermitOwner { kind: request.kind, path: request.path.clone(), holder: request.holder.clone() })
    }

    /// Returns the cost of ending a request, in units; 0 if it is not known here.
    pub(super) fn units(&self, request_id: &str) -> usize {
        let Some(request) = self.requests.get(request_id) else { return 0 };
        let units = match (&request.acquire, request.kind) {
            (Some(acquire), _) => acquire.wanted.units(),
            // How many it has is not known.
            (None, Kind::Pool) => MAX_MEMBERS_PER_TAKE,
            (None, _) => 1,
        };
        usize::try_from(units).unwrap_or(usize::MAX)
    }

    /// Returns a waiting request, to query its state again.
    pub(super) fn waiting(&self, request_id: &str) -> Option<Arc<AcquirePermits>> {
        let request = self.requests.get(request_id)?;
        request.acquire.clone().filter(|_| matches!(request.state, PermitState::Waiting(_)))
    }

    /// Returns the names of all waiting requests, in order.
    pub(super) fn waiting_request_ids(&self) -> Vec<String> {
        let waiting = self.requests.iter().filter(|(_, request)| matches!(request.state, PermitState::Waiting(_)));
        let mut ids: Vec<String> = waiting.map(|(request_id, _)| request_id.clone()).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns all holds, in the order of their tokens.
    pub(super) fn holds(&self) -> Vec<ReportedPermits> {
        let mut holds: Vec<ReportedPermits> =
            self.requests.keys().filter_map(|request_id| self.hold(request_id)).collect();
        holds.sort_unstable_by_key(|hold| hold.fencing_token);
        holds
    }

    /// Returns the hold of a request, if it has one.
    pub(super) fn hold(&self, request_id: &str) -> Option<ReportedPermits> {
        let request = self.requests.get(request_id)?;
        let PermitState::Held(fencing_token) = request.state else { return None };
        let (kind, path, request_id) = (request.kind, request.path.clone(), request_id.to_owned());
        Some(ReportedPermits { kind, path, request_id, fencing_token })
    }

    /// Records the state of a request.
    pub(super) fn set(&mut self, acquire: &Arc<AcquirePermits>, state: PermitState) {
        let request = PermitRequest {
            acquire: Some(Arc::clone(acquire)),
            kind: acquire.wanted.kind(),
            path: Path(acquire.path.clone()),
            holder: acquire.holder.clone(),
            state,
        };
        self.requests.insert(acquire.request_id.clone(), request);
    }

    /// Adds a hold that the client of a resumed session reported.
    pub(super) fn add_reported(&mut self, held: &HeldPermits) {
        let ReportedPermits { kind, path, request_id, fencing_token } = held.reported.clone();
        let (state, holder) = (PermitState::Held(fencing_token), held.holder.clone());
        self.requests.insert(request_id, PermitRequest { acquire: None, kind, path, holder, state });
    }

    /// Records the loss of a hold, and returns whether the client had been notified of it.
    pub(super) fn lose(&mut self, hold: &ReportedPermits) -> bool {
        let lost = self.requests.get_mut(&hold.request_id);
        match lost.filter(|request| request.state == PermitState::Held(hold.fencing_token)) {
            Some(request) => {
                request.state = PermitState::Lost;
                true
            }
            None => false,
        }
    }

    /// Removes a request that has no hold and does not wait.
    pub(super) fn remove(&mut self, request_id: &str) {
        self.requests.remove(request_id);
    }

    /// Records the release of everything, and returns the requests that it ends.
    pub(super) fn clear(&mut self) -> Vec<String> {
        std::mem::take(&mut self.requests).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::Wanted;

    use super::*;

    fn acquire(request_id: &str) -> Arc<AcquirePermits> {
        Arc::new(AcquirePermits {
            request_id: request_id.to_owned(),
            path: vec!["s".to_owned()],
            wanted: Wanted::Permits { weight: 1, permits: None },
            holder: Some("h".to_owned()),
            priority: 0,
            transition_ms: 0,
            only_try: false,
        })
    }

    fn hold(request_id: &str, fencing_token: FencingToken) -> ReportedPermits {
        let (kind, path) = (Kind::Semaphore, Path::flat("s"));
        ReportedPermits { kind, path, request_id: request_id.to_owned(), fencing_token }
    }

    #[test]
    fn a_request_waits_holds_and_may_lose_its_permits_before_it_is_released() {
        let mut table = PermitTable::default();
        table.set(&acquire("a"), PermitState::Waiting(WaitId(3)));
        assert_eq!((table.waiting_request_ids(), table.hold("a")), (vec!["a".to_owned()], None));
        table.set(&acquire("a"), PermitState::Held(7));
        assert_eq!((table.hold("a"), table.waiting("a")), (Some(hold("a", 7)), None));
        assert!(!table.lose(&hold("a", 6)), "that was another hold");
        assert!(table.lose(&hold("a", 7)) && !table.lose(&hold("a", 7)));
        let owner = PermitOwner { kind: Kind::Semaphore, path: Path::flat("s"), holder: Some("h".to_owned()) };
        assert_eq!((table.state("a"), table.owner("a")), (Some(PermitState::Lost), Some(owner)));
        table.remove("a");
        assert_eq!(table.owner("a"), None);
    }

    #[test]
    fn ending_a_request_costs_as_much_as_it_may_have() {
        let mut table = PermitTable::default();
        let wanted = Wanted::Members { count: 40, prefer: None };
        table.set(&Arc::new(AcquirePermits { wanted, ..(*acquire("a")).clone() }), PermitState::Held(7));
        table.set(&acquire("b"), PermitState::Held(8));
        let pool = ReportedPermits { kind: Kind::Pool, ..hold("c", 9) };
        table.add_reported(&HeldPermits { reported: pool, holder: None });
        assert_eq!(["a", "b", "c", "d"].map(|request_id| table.units(request_id)), [40, 1, 64, 0]);
    }

    #[test]
    fn what_a_resumed_client_lists_is_held_and_can_be_released() {
        let mut table = PermitTable::default();
        table.add_reported(&HeldPermits { reported: hold("b", 5), holder: None });
        table.set(&acquire("a"), PermitState::Held(7));
        assert_eq!(table.holds(), [hold("b", 5), hold("a", 7)]);
        assert_eq!(table.owner("b"), Some(PermitOwner { kind: Kind::Semaphore, path: Path::flat("s"), holder: None }));
        let mut ended = table.clear();
        ended.sort_unstable();
        assert_eq!((ended, table.holds()), (vec!["a".to_owned(), "b".to_owned()], Vec::new()));
    }
}
