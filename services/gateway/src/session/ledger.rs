//! What a connection knows of its session: the requests that it named and that are not released, and the holds that
//! its client was told of.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::{BelievedHold, FencingToken, HolderView, LockView, Mode, Owner, Path, WaitId};

use super::message::Lock;

/// Where a request stands, as the client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Waits(WaitId),
    Holds,
}

#[derive(Debug)]
struct Request {
    lock: Arc<Lock>,
    standing: Standing,
}

#[derive(Debug)]
struct Hold {
    mode: Mode,
    /// Which thread of the session has it; not known of what the client listed after a resume.
    holder: Option<Option<String>>,
}

/// As large as what the session holds and awaits, which its account's limits bound.
#[derive(Debug)]
pub(super) struct Ledger {
    session_id: String,
    requests: BTreeMap<String, Request>,
    /// A token names a hold of a path: each grant has its own.
    holds: BTreeMap<(Path, FencingToken), Hold>,
}

impl Ledger {
    pub(super) fn new(session_id: &str) -> Self {
        Self { session_id: session_id.to_owned(), requests: BTreeMap::new(), holds: BTreeMap::new() }
    }

    pub(super) fn standing(&self, request_id: &str) -> Option<Standing> {
        self.requests.get(request_id).map(|request| request.standing)
    }

    /// A request that waits, to ask again how it stands.
    pub(super) fn waiting(&self, request_id: &str) -> Option<Arc<Lock>> {
        let request = self.requests.get(request_id)?;
        matches!(request.standing, Standing::Waits(_)).then(|| Arc::clone(&request.lock))
    }

    /// Names of all requests that wait.
    pub(super) fn all_waiting(&self) -> Vec<String> {
        let waits = self.requests.iter().filter(|(_, request)| matches!(request.standing, Standing::Waits(_)));
        waits.map(|(request_id, _)| request_id.clone()).collect()
    }

    /// What the client believes to hold.
    pub(super) fn believed(&self) -> Vec<BelievedHold> {
        let believed = |((path, token), hold): (&(Path, FencingToken), &Hold)| BelievedHold {
            path: path.clone(),
            mode: hold.mode,
            fencing_token: *token,
        };
        self.holds.iter().map(believed).collect()
    }

    pub(super) fn holds(&self, path: &Path, token: FencingToken) -> bool {
        self.mode(path, token).is_some()
    }

    /// The mode of a hold, if it is there.
    pub(super) fn mode(&self, path: &Path, token: FencingToken) -> Option<Mode> {
        // The key owns its path, so it is looked for from its place on.
        let from = (path.clone(), token);
        self.holds.get(&from).map(|hold| hold.mode)
    }

    /// The client of a resumed session holds this.
    pub(super) fn remember(&mut self, held: BelievedHold) {
        self.holds.insert((held.path, held.fencing_token), Hold { mode: held.mode, holder: None });
    }

    pub(super) fn enqueued(&mut self, lock: &Arc<Lock>, wait: WaitId) {
        let request = Request { lock: Arc::clone(lock), standing: Standing::Waits(wait) };
        self.requests.insert(lock.request_id.clone(), request);
    }

    /// A request holds all its claims. `locks` are those claimed, as they are after the grant; claims that were held
    /// before keep their tokens, which are read from there.
    pub(super) fn granted(&mut self, lock: &Arc<Lock>, token: FencingToken, locks: &[LockView]) {
        let request = Request { lock: Arc::clone(lock), standing: Standing::Holds };
        self.requests.insert(lock.request_id.clone(), request);
        let owner = Owner::Session { session_id: self.session_id.clone(), holder: lock.holder.clone() };
        for claim in &lock.resources {
            let path = Path(claim.path.clone());
            let view = locks.iter().find(|view| view.path == path);
            let shown = view.and_then(|view| shown(view).find(|hold| hold.owner == owner));
            let is_same = |hold: &Hold| hold.holder.as_ref().is_none_or(|holder| *holder == lock.holder);
            let (mode, token) = match shown {
                Some(hold) => (hold.mode, hold.fencing_token),
                // One of very many readers, not all of which are shown. What it held before it still has.
                None if self.at(&path).any(|(_, hold)| is_same(hold)) => continue,
                None => (claim.mode, token),
            };
            let replaced = self.at(&path).filter(|(_, hold)| hold.holder.as_ref() == Some(&lock.holder));
            let replaced: Vec<FencingToken> = replaced.map(|(token, _)| token).filter(|old| *old != token).collect();
            for old in replaced {
                self.holds.remove(&(path.clone(), old));
            }
            self.holds.insert((path, token), Hold { mode, holder: Some(lock.holder.clone()) });
        }
    }

    /// The request has nothing and does not wait.
    pub(super) fn forget(&mut self, request_id: &str) {
        self.requests.remove(request_id);
    }

    /// Whether the client had been told of that hold.
    pub(super) fn lost(&mut self, path: &Path, token: FencingToken) -> bool {
        self.holds.remove(&(path.clone(), token)).is_some()
    }

    /// A request was released. `locks` are those that it claimed, as they are now.
    pub(super) fn released(&mut self, request_id: &str, locks: &[LockView]) {
        let released = self.requests.remove(request_id);
        for view in locks {
            let tokens: Vec<FencingToken> = self.at(&view.path).map(|(token, _)| token).collect();
            let is_complete = shown(view).count() as u64 == view.holders_total;
            for token in tokens {
                let is_shown = shown(view).any(|hold| hold.fencing_token == token && self.is_mine(&hold.owner));
                let has_ended = if is_complete {
                    !is_shown
                } else {
                    !is_shown && self.is_last_claim(&view.path, released.as_ref())
                };
                if has_ended {
                    self.holds.remove(&(view.path.clone(), token));
                }
            }
        }
    }

    /// A request was released, and what is held now was not told: holds end that no other request of its thread claims.
    pub(super) fn released_unseen(&mut self, request_id: &str) {
        let Some(released) = self.requests.remove(request_id) else { return };
        let claimed = released.lock.resources.iter().map(|claim| Path(claim.path.clone()));
        for path in claimed.collect::<Vec<_>>() {
            if self.is_last_claim(&path, Some(&released)) {
                let is_of_thread = |hold: &Hold| hold.holder.as_ref() == Some(&released.lock.holder);
                let of_thread = self.at(&path).filter(|(_, hold)| is_of_thread(hold));
                for token in of_thread.map(|(token, _)| token).collect::<Vec<_>>() {
                    self.holds.remove(&(path.clone(), token));
                }
            }
        }
    }

    /// Everything was released; the requests that it ends.
    pub(super) fn released_all(&mut self) -> Vec<String> {
        self.holds.clear();
        std::mem::take(&mut self.requests).into_keys().collect()
    }

    /// Whether no other request of the same thread claims the path.
    fn is_last_claim(&self, path: &Path, released: Option<&Request>) -> bool {
        let Some(released) = released.filter(|request| request.standing == Standing::Holds) else { return false };
        !self.requests.values().any(|request| {
            let is_same_thread = request.lock.holder == released.lock.holder;
            let claims = || request.lock.resources.iter().any(|claim| claim.path == path.0);
            request.standing == Standing::Holds && is_same_thread && claims()
        })
    }

    fn is_mine(&self, owner: &Owner) -> bool {
        matches!(owner, Owner::Session { session_id, .. } if *session_id == self.session_id)
    }

    fn at(&self, path: &Path) -> impl Iterator<Item = (FencingToken, &Hold)> {
        let range = (path.clone(), FencingToken::MIN)..=(path.clone(), FencingToken::MAX);
        self.holds.range(range).map(|((_, token), hold)| (*token, hold))
    }
}

/// The holders that a view shows.
fn shown(view: &LockView) -> impl Iterator<Item = &HolderView> {
    view.write_lock_holder.iter().chain(&view.read_lock_holders)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
