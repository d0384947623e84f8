//! A connection's knowledge of its session: the unreleased requests that it named, and the holds that its client was
//! notified of.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use holdfast_api::session_message::Lock;
use holdfast_types::{FencingToken, HolderView, LockView, Mode, Owner, Path, Phase, ReportedHold, WaitId};
use tokio::task::yield_now;

use super::claim_index::ClaimIndex;
use super::ledger::reported_bytes;
use super::path_holds::{Hold, PathHolds};
use super::receipted::requested_claims;
use crate::admission::DeferredCall;

/// Requests, and paths with holds, that are freed before others run: each may have 64 paths of 16 segments.
const FREED_AT_ONCE: usize = 16;
/// The same of claims, each of which is little more than a pointer to its request.
const CLAIMS_FREED_AT_ONCE: usize = 1_024;

/// The state of a request, as the client was notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    Waiting(WaitId),
    /// It waits, and its leader does not know it yet. These are sent again in order of their number.
    Unqueued(u64),
    Granted,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) lock: Arc<Lock>,
    pub(super) state: RequestState,
    /// Claims that it had and lost: if its thread holds these paths again, the holds are not its own.
    pub(super) lost: Vec<Path>,
    /// The first place that it had, once it has had one at an earlier leader: later ones of some requests may never be
    /// heard of, so that only the first places of all are in one order.
    pub(super) ticket: Option<WaitId>,
    /// Whether its release is under way, or has failed.
    pub(super) is_released: bool,
    /// Roughly how many bytes it takes in a report.
    pub(super) bytes: usize,
    /// Counts it for its account while it waits and never had a place.
    counted: Option<DeferredCall>,
}

impl Request {
    fn new(lock: &Arc<Lock>, state: RequestState) -> Self {
        let bytes = reported_bytes(lock);
        Self { lock: Arc::clone(lock), state, lost: Vec::new(), ticket: None, is_released: false, bytes, counted: None }
    }

    fn waits(&self) -> bool {
        matches!(self.state, RequestState::Waiting(_) | RequestState::Unqueued(_))
    }

    /// Returns whether it waits, or holds one of its claims.
    fn has_or_awaits(&self) -> bool {
        let is_held = |path: &[String]| !self.lost.iter().any(|lost| lost.0 == path);
        self.waits() || self.lock.resources.iter().any(|claim| is_held(&claim.path))
    }

    /// Returns whether it has something that the client did not give up: then another one of its name repeats it.
    pub(super) fn is_kept(&self) -> bool {
        !self.is_released && self.has_or_awaits()
    }

    fn is_of(&self, thread: &Option<String>) -> bool {
        self.lock.holder == *thread
    }

    /// Returns whether it claims the path and holds it.
    fn holds_claim(&self, path: &Path) -> bool {
        let claims = || self.lock.resources.iter().any(|claim| claim.path == path.0);
        self.state == RequestState::Granted && claims() && !self.lost.contains(path)
    }
}

/// Its size is proportional to the holds and waiting requests of the session, which its account's limits bound.
#[derive(Debug)]
pub(super) struct RequestTable {
    session_id: String,
    pub(super) requests: HashMap<String, Request>,
    /// The holds of each path.
    pub(super) holds: BTreeMap<Vec<String>, PathHolds>,
    /// The number of the last request that waited without a place.
    pub(super) unqueued: u64,
    /// The requests that wait without a place, by number.
    pub(super) places: BTreeMap<u64, String>,
    /// Roughly how many bytes all requests take in a report.
    pub(super) bytes: usize,
    /// The claims of granted requests, without those that are known to be lost.
    claims: ClaimIndex,
}

impl RequestTable {
    pub(super) fn new(session_id: &str) -> Self {
        Self {
            session_id: session_id.to_owned(),
            requests: HashMap::new(),
            holds: BTreeMap::new(),
            unqueued: 0,
            places: BTreeMap::new(),
            bytes: 0,
            claims: ClaimIndex::default(),
        }
    }

    /// Returns the lock of a request.
    pub(super) fn lock(&self, request_id: &str) -> Option<&Lock> {
        self.requests.get(request_id).map(|request| &*request.lock)
    }

    /// Returns the lock of a request, to be kept.
    pub(super) fn shared_lock(&self, request_id: &str) -> Option<Arc<Lock>> {
        self.requests.get(request_id).map(|request| Arc::clone(&request.lock))
    }

    /// Returns the token of the hold of a granted request that claims one path, if the table knows it.
    pub(super) fn write_token(&self, request_id: &str) -> Option<FencingToken> {
        let request = self.requests.get(request_id).filter(|request| request.state == RequestState::Granted)?;
        let [claim] = request.lock.resources.as_slice() else { return None };
        let is_its = |hold: &Hold| hold.holder.as_ref().is_none_or(|holder| *holder == request.lock.holder);
        let mut tokens = self.holds_at(&claim.path).filter(|(_, hold)| is_its(hold)).map(|(token, _)| token);
        tokens.next_back()
    }

    pub(super) fn state(&self, request_id: &str) -> Option<RequestState> {
        self.requests.get(request_id).map(|request| request.state)
    }

    /// Returns whether a request waits, or holds one of its claims.
    pub(super) fn has_or_awaits(&self, request_id: &str) -> bool {
        self.requests.get(request_id).is_some_and(Request::has_or_awaits)
    }

    /// Returns a waiting request, to query its state again.
    pub(super) fn waiting(&self, request_id: &str) -> Option<Arc<Lock>> {
        let request = self.requests.get(request_id)?;
        request.waits().then(|| Arc::clone(&request.lock))
    }

    /// Returns the names of all waiting requests, in order.
    pub(super) fn waiting_request_ids(&self) -> Vec<String> {
        let waits = self.requests.iter().filter(|(_, request)| request.waits());
        let mut request_ids: Vec<String> = waits.map(|(request_id, _)| request_id.clone()).collect();
        request_ids.sort_unstable();
        request_ids
    }

    /// Returns the holds that the client believes to have, in order of path.
    pub(super) fn client_view(&self) -> Vec<ReportedHold> {
        let mut believed = Vec::new();
        for (path, holds) in &self.holds {
            believed.extend(holds.iter().map(|(fencing_token, hold)| ReportedHold {
                path: Path(path.clone()),
                mode: hold.mode,
                fencing_token,
            }));
        }
        believed
    }

    pub(super) fn holds(&self, path: &Path, token: FencingToken) -> bool {
        self.mode(path, token).is_some()
    }

    /// Returns the mode of a hold, if it exists.
    pub(super) fn mode(&self, path: &Path, token: FencingToken) -> Option<Mode> {
        self.hold(&path.0, token).map(|hold| hold.mode)
    }

    /// Adds a hold that the client of a resumed session reported.
    pub(super) fn add_reported(&mut self, held: ReportedHold) {
        let hold = Hold { mode: held.mode, holder: None, is_listed: true };
        self.insert_hold(held.path.0, held.fencing_token, hold);
    }

    /// Records that a request waits behind all such ones without a place at its leader, and which one it had at an
    /// earlier one. Its account is charged for it as long as it does.
    pub(super) fn unqueued(&mut self, lock: &Arc<Lock>, ticket: Option<WaitId>, counted: Option<DeferredCall>) {
        self.unqueued += 1;
        self.put(lock, RequestState::Unqueued(self.unqueued));
        if let Some(request) = self.requests.get_mut(&lock.request_id) {
            (request.ticket, request.counted) = (ticket, counted);
        }
    }

    /// Charges no account for requests without a place any more: from now on they count as kept.
    pub(super) fn clear_counts(&mut self) {
        self.requests.values_mut().for_each(|request| request.counted = None);
    }

    pub(super) fn is_unqueued(&self, request_id: &str) -> bool {
        matches!(self.state(request_id), Some(RequestState::Unqueued(_)))
    }

    /// Returns the first ones without a place, in order, at most this many.
    pub(super) fn first_unqueued(&self, max: usize) -> Vec<String> {
        self.places.values().take(max).cloned().collect()
    }

    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Records the place of a request at its leader. A request that has waited at an earlier leader, or whose client
    /// has proved so, keeps its place.
    pub(super) fn enqueued(&mut self, lock: &Arc<Lock>, wait: WaitId, shown: Option<WaitId>) {
        let known = self.requests.get(&lock.request_id).filter(|known| known.waits() && !known.is_released);
        let ticket = known.and_then(|known| known.ticket).or(shown).filter(|first| *first < wait);
        self.put(lock, RequestState::Waiting(wait));
        if let Some(request) = self.requests.get_mut(&lock.request_id) {
            request.ticket = ticket;
        }
    }

    /// Returns the first place of a request that has one.
    pub(super) fn first_position(&self, request_id: &str) -> Option<WaitId> {
        let request = self.requests.get(request_id)?;
        let RequestState::Waiting(wait) = request.state else { return None };
        Some(request.ticket.unwrap_or(wait))
    }

    /// Records that a request holds all its claims. `locks` are the claimed locks after the grant; claims that were
    /// held before keep their tokens, which this reads from there.
    pub(super) fn granted(&mut self, lock: &Arc<Lock>, token: FencingToken, locks: &[LockView]) {
        self.put(lock, RequestState::Granted);
        for claim in &lock.resources {
            let path = &claim.path;
            let view = locks.iter().find(|view| view.path.0 == *path);
            let shown = view.and_then(|view| holders_in(view).find(|hold| self.is_owner(&hold.owner, &lock.holder)));
            let is_same = |hold: &Hold| hold.holder.as_ref().is_none_or(|holder| *holder == lock.holder);
            let (mode, token) = match shown {
                Some(hold) => (hold.mode, hold.fencing_token),
                // The hold is one of very many readers, of which only some are shown. It keeps its earlier state.
                None if self.holds_at(path).any(|(_, hold)| is_same(hold)) => continue,
                None => (claim.mode, token),
            };
            if let Some(holds) = self.holds.get_mut(path) {
                holds.retain(|old, hold| old == token || hold.holder.as_ref() != Some(&lock.holder));
            }
            let is_listed = self.hold(path, token).is_some_and(|hold| hold.is_listed);
            self.insert_hold(path.clone(), token, Hold { mode, holder: Some(lock.holder.clone()), is_listed });
        }
    }

    /// Records that a request holds all its claims, each under this token.
    pub(super) fn granted_anew(&mut self, lock: &Arc<Lock>, token: FencingToken) {
        self.put(lock, RequestState::Granted);
        for claim in &lock.resources {
            let path = &claim.path;
            if let Some(holds) = self.holds.get_mut(path) {
                holds.retain(|old, hold| old == token || hold.holder.as_ref() != Some(&lock.holder));
            }
            // A path may be claimed twice, and is then held in the stronger mode.
            let other = self.hold(path, token);
            let mode = other.map_or(claim.mode, |other| other.mode.max(claim.mode));
            let is_listed = other.is_some_and(|other| other.is_listed);
            self.insert_hold(path.clone(), token, Hold { mode, holder: Some(lock.holder.clone()), is_listed });
        }
    }

    /// Removes a request that has no holds and does not wait.
    pub(super) fn remove(&mut self, request_id: &str) {
        self.take(request_id);
    }

    /// Removes a hold, and returns it if the client had been notified of it.
    pub(super) fn remove_hold(&mut self, path: &Path, token: FencingToken) -> Option<Hold> {
        let hold = self.take_hold(&path.0, token)?;
        let Some(thread) = &hold.holder else { return Some(hold) };
        let candidates: Vec<Arc<Lock>> = self.claims.candidates(thread, &path.0).cloned().collect();
        for lock in candidates {
            let claiming = self.requests.get_mut(&lock.request_id);
            if let Some(request) = claiming.filter(|request| request.is_of(thread) && request.holds_claim(path)) {
                request.lost.push(path.clone());
                self.claims.remove_claim(&lock, &path.0);
            }
        }
        Some(hold)
    }

    /// Records the release of a request. `locks` are the locks that it claimed, as they are now.
    pub(super) fn released(&mut self, request_id: &str, locks: &[LockView]) {
        let released = self.take(request_id);
        for view in locks {
            let is_complete = holders_in(view).count() as u64 == view.holders_total;
            // Holds of other threads were lost; the message that says how notifies the client.
            let is_its = |hold: &Hold| match &released {
                Some(released) => hold.holder.as_ref().is_none_or(|holder| *holder == released.lock.holder),
                None => hold.is_listed,
            };
            let ended = match &released {
                Some(released) if self.is_claimed(&released.lock.holder, &view.path) => Vec::new(),
                _ if is_complete => {
                    self.holds_at(&view.path.0).filter(|(_, hold)| is_its(hold)).map(|(token, _)| token).collect()
                }
                Some(released) => self.unshared_holds(released, &view.path),
                None => Vec::new(),
            };
            for token in ended {
                // One in transition was released, and is only kept from others.
                let is_held = |hold: &HolderView| hold.fencing_token == token && hold.phase == Phase::Held;
                if !holders_in(view).any(|hold| is_held(hold) && self.is_own_session(&hold.owner)) {
                    self.take_hold(&view.path.0, token);
                }
            }
        }
        // What a new leader had not entered yet is not shown.
        if let Some(released) = &released {
            let is_shown = |path: &[String]| locks.iter().any(|view| view.path.0 == path);
            for claim in released.lock.resources.iter().filter(|claim| !is_shown(&claim.path)) {
                self.end_unshared_holds(released, &claim.path);
            }
        }
    }

    /// Records the release of a request after which no hold is left at its paths.
    pub(super) fn released_completely(&mut self, request_id: &str) {
        let Some(released) = self.take(request_id) else { return };
        let is_its = |hold: &Hold| hold.holder.as_ref().is_none_or(|holder| *holder == released.lock.holder);
        for claim in &released.lock.resources {
            // Another request was granted since.
            if self.is_claimed(&released.lock.holder, &Path(claim.path.clone())) {
                continue;
            }
            let ended = self.holds_at(&claim.path).filter(|(_, hold)| is_its(hold)).map(|(token, _)| token);
            for token in ended.collect::<Vec<FencingToken>>() {
                self.take_hold(&claim.path, token);
            }
        }
    }

    /// Records the release of a request without views of its locks: ends its holds that no other request of its thread
    /// claims.
    pub(super) fn released_without_views(&mut self, request_id: &str) {
        let Some(released) = self.take(request_id) else { return };
        for claim in &released.lock.resources {
            self.end_unshared_holds(&released, &claim.path);
        }
    }

    fn end_unshared_holds(&mut self, released: &Request, path: &[String]) {
        let path = Path(path.to_vec());
        for token in self.unshared_holds(released, &path) {
            self.take_hold(&path.0, token);
        }
    }

    /// Frees the table in steps: it may be large, and others wait for the thread.
    pub(super) async fn free(self) {
        // Before the requests, or the last claim of each would free it.
        let mut claims = self.claims.into_requests();
        while claims.by_ref().take(CLAIMS_FREED_AT_ONCE).count() > 0 {
            yield_now().await;
        }
        let mut requests = self.requests.into_iter();
        while requests.by_ref().take(FREED_AT_ONCE).count() > 0 {
            yield_now().await;
        }
        let mut holds = self.holds.into_iter();
        while holds.by_ref().take(FREED_AT_ONCE).count() > 0 {
            yield_now().await;
        }
    }

    /// Records the release of everything, and returns the requests that it ends, in order of name. None has come after it:
    /// it is sent alone.
    pub(super) fn clear(&mut self) -> Vec<String> {
        self.holds.clear();
        self.places.clear();
        self.claims.clear();
        self.bytes = 0;
        let mut request_ids: Vec<String> = std::mem::take(&mut self.requests).into_keys().collect();
        request_ids.sort_unstable();
        request_ids
    }

    /// Adds a request in this state, or replaces the request of its name. A repeat does not grow the report beyond the
    /// limit.
    pub(super) fn put(&mut self, lock: &Arc<Lock>, state: RequestState) {
        let lock = &self.repeated(lock, state).unwrap_or_else(|| Arc::clone(lock));
        let request = Request::new(lock, state);
        self.bytes += request.bytes;
        let replaced = self.requests.insert(lock.request_id.clone(), request);
        self.unindex(replaced.as_ref());
        match state {
            RequestState::Unqueued(number) => _ = self.places.insert(number, lock.request_id.clone()),
            RequestState::Granted => self.claims.insert(lock),
            RequestState::Waiting(_) => {}
        }
    }

    /// Returns the request that this one repeats, if it counts as it was. As at the leader, nothing changes about what
    /// is granted; and what waits has the metadata of the newest call, unless there is no room for it.
    fn repeated(&self, lock: &Arc<Lock>, state: RequestState) -> Option<Arc<Lock>> {
        let is_repeatable = |known: &&Request| known.is_kept() && !Arc::ptr_eq(&known.lock, lock);
        let known = self.requests.get(&lock.request_id).filter(is_repeatable)?;
        let asks_the_same = known.lock.holder == lock.holder
            && requested_claims(&known.lock.resources) == requested_claims(&lock.resources);
        let more = reported_bytes(lock).saturating_sub(known.bytes);
        let is_renewed = state != RequestState::Granted && self.has_capacity(more);
        (asks_the_same && !is_renewed).then(|| Arc::clone(&known.lock))
    }

    fn take(&mut self, request_id: &str) -> Option<Request> {
        let removed = self.requests.remove(request_id);
        self.unindex(removed.as_ref());
        removed
    }

    fn unindex(&mut self, gone: Option<&Request>) {
        let Some(gone) = gone else { return };
        self.bytes -= gone.bytes;
        match gone.state {
            RequestState::Unqueued(number) => _ = self.places.remove(&number),
            RequestState::Granted => self.claims.remove(&gone.lock),
            RequestState::Waiting(_) => {}
        }
    }

    /// Returns whether a granted request of a thread claims a path.
    fn is_claimed(&self, thread: &Option<String>, path: &Path) -> bool {
        let claims = |request: &Request| request.is_of(thread) && request.holds_claim(path);
        let mut candidates = self.claims.candidates(thread, &path.0);
        candidates.any(|lock| self.requests.get(&lock.request_id).is_some_and(claims))
    }

    /// Returns the holds of the path that no request claims after the release of this request.
    fn unshared_holds(&self, released: &Request, path: &Path) -> Vec<FencingToken> {
        let thread = &released.lock.holder;
        if released.state != RequestState::Granted || self.is_claimed(thread, path) {
            return Vec::new();
        }
        let is_its = |hold: &Hold| !hold.is_listed && hold.holder.as_ref() == Some(thread);
        self.holds_at(&path.0).filter(|(_, hold)| is_its(hold)).map(|(token, _)| token).collect()
    }

    fn is_own_session(&self, owner: &Owner) -> bool {
        matches!(owner, Owner::Session { session_id, .. } if *session_id == self.session_id)
    }

    /// Returns whether the owner is this thread of the session.
    fn is_owner(&self, owner: &Owner, thread: &Option<String>) -> bool {
        matches!(owner, Owner::Session { holder, .. } if holder == thread) && self.is_own_session(owner)
    }

    fn holds_at(&self, path: &[String]) -> impl DoubleEndedIterator<Item = (FencingToken, &Hold)> {
        self.holds.get(path).into_iter().flat_map(PathHolds::iter)
    }

    fn hold(&self, path: &[String], token: FencingToken) -> Option<&Hold> {
        self.holds.get(path)?.get(token)
    }

    /// Adds a hold, or replaces the one with this token.
    fn insert_hold(&mut self, path: Vec<String>, token: FencingToken, hold: Hold) {
        self.holds.entry(path).or_default().insert(token, hold);
    }

    /// Removes a hold, and with the last one of a path the path.
    fn take_hold(&mut self, path: &[String], token: FencingToken) -> Option<Hold> {
        let holds = self.holds.get_mut(path)?;
        let hold = holds.remove(token)?;
        if holds.is_empty() {
            self.holds.remove(path);
        }
        Some(hold)
    }
}

/// Returns the holders that a view shows.
fn holders_in(view: &LockView) -> impl Iterator<Item = &HolderView> {
    view.write_lock_holder.iter().chain(&view.read_lock_holders)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
