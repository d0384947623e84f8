//! Handles the service's messages about requests and holds.

use std::sync::Arc;

use holdfast_proto::v1;
use holdfast_proto::v1::server_message::{self as server, refused::Why};

use super::entry::{Entry, HeldPath, OwnedPath, Phase};
use super::{Effect, Event, RequestNo, RequestTable, parse_request_id};
use crate::error::{Error, LossReason, Reason, Refusal};
use crate::locks::{LockStatus, Woken};
use crate::view::{Blocker, Path, PermitHolder, ReleaseRequest, WaitStatus};

/// Lost holds whose tokens are remembered, besides those of the last list of everything.
const MAX_RELEASED: usize = 10_000;

impl RequestTable {
    /// Handles the status of a request.
    pub(crate) fn on_state(&mut self, state: server::State) -> Vec<Effect> {
        use server::state::Value;
        let Some(no) = state.request_id.as_deref().and_then(parse_request_id) else { return Vec::new() };
        match state.state() {
            Value::Ready => self.on_ready(no),
            Value::Enqueued if self.arrivals.contains_key(&no) => {
                self.on_gathering(no, state.generation);
                Vec::new()
            }
            Value::Enqueued => self.on_enqueued(no, state),
            Value::Acquired => {
                let woken = match state.woken() {
                    v1::Woken::Signalled => Some(Woken::Signalled),
                    v1::Woken::Elapsed => Some(Woken::Elapsed),
                    v1::Woken::Unspecified => None,
                };
                let token = state.fencing_token.unwrap_or_default();
                let effects = self.on_acquired(no, token, state.members, woken);
                self.store_receipt(no, token, state.receipt);
                effects
            }
            // It was said already.
            Value::Awaiting => Vec::new(),
        }
    }

    fn on_ready(&mut self, no: RequestNo) -> Vec<Effect> {
        // Only a request released here is over; the service releases nothing by itself.
        let is_released = self.entries.get(&no).is_some_and(|entry| matches!(entry.phase, Phase::Releasing));
        if is_released { self.remove(no) } else { Vec::new() }
    }

    fn on_enqueued(&mut self, no: RequestNo, state: server::State) -> Vec<Effect> {
        let Some(entry) = self.entries.get_mut(&no) else { return Vec::new() };
        if !entry.phase.is_awaited() {
            return Vec::new();
        }
        let standing = WaitStatus {
            queue_position: state.queue_position,
            blockers: state.blockers.into_iter().map(Blocker::from).collect(),
            holders: state.holders.into_iter().map(PermitHolder::from).collect(),
        };
        let mut effects: Vec<Effect> = entry.update_status(LockStatus::Waiting).into_iter().collect();
        // The lock service view answers with the first known status.
        let told = |waiter: &u64| Effect::Queued(*waiter, standing.clone());
        effects.extend(entry.waiters.iter().map(told));
        if entry.request.persistent {
            entry.waiters.clear();
        }
        if let Some(ticket) = state.ticket {
            entry.place = Some((ticket, state.receipt));
        }
        if !matches!(entry.phase, Phase::Awaiting(_)) {
            entry.phase = Phase::Waiting(standing);
        }
        effects
    }

    fn on_acquired(&mut self, no: RequestNo, token: u64, members: Vec<String>, woken: Option<Woken>) -> Vec<Effect> {
        let Some(entry) = self.entries.get_mut(&no) else { return Vec::new() };
        let (owner, paths) = entry.request.key();
        match entry.phase {
            Phase::Held => return Vec::new(),
            // Its release is in flight, which the service confirms.
            Phase::Releasing => {
                let lock = |path| Effect::Notify(Event::UnexpectedLock { path, fencing_token: token });
                return paths.into_iter().map(lock).collect();
            }
            // It says how it was before the lock was given up.
            Phase::Awaiting(_) if woken.is_none() => return Vec::new(),
            Phase::Requested | Phase::Waiting(_) | Phase::Awaiting(_) => entry.phase = Phase::Held,
        }
        self.awaited.remove(&entry.request);
        let mut hold = |held: &mut std::collections::HashMap<_, HeldPath>, claim: &super::Claim| {
            let new = || HeldPath { mode: claim.mode, token, is_listed: false, asked: None, requests: Vec::new() };
            let path: &mut HeldPath = held.entry((owner.clone(), claim.path.clone())).or_insert_with(new);
            if path.mode < claim.mode {
                self.released_tokens.extend((path.is_listed && path.token != token).then_some(path.token));
                path.is_listed &= path.token == token;
                (path.mode, path.token) = (claim.mode, token);
            }
            path.requests.push(no);
            if path.asked.is_some() {
                entry.asked.send_replace(path.asked.clone());
            }
            (claim.path.clone(), path.token)
        };
        entry.tokens = if entry.request.permits.is_some() {
            Arc::new(entry.request.claims.iter().map(|claim| (claim.path.clone(), token)).collect())
        } else {
            Arc::new(entry.request.claims.iter().map(|claim| hold(&mut self.held, claim)).collect())
        };
        (entry.token, entry.members, entry.woken) = (token, members.into(), woken);
        entry.is_unheard = false;
        let mut effects: Vec<Effect> = entry.update_status(LockStatus::Holding).into_iter().collect();
        let granted = entry.granted(no);
        let waiters = std::mem::take(&mut entry.waiters);
        entry.count = if entry.request.persistent { 1 } else { waiters.len() as u64 };
        effects.extend(waiters.into_iter().map(|waiter| Effect::Granted(waiter, granted.clone())));
        if entry.request.permits.is_none() {
            self.shared.entry((owner, paths)).or_insert(no);
        }
        effects
    }

    /// Handles the end of a request without a grant.
    pub(crate) fn on_refused(&mut self, refused: server::Refused) -> Vec<Effect> {
        let Some(no) = parse_request_id(&refused.request_id) else { return Vec::new() };
        if self.on_arrival_refused(no, refused.why.as_ref()) {
            return Vec::new();
        }
        let Some(entry) = self.entries.get_mut(&no) else { return Vec::new() };
        let of_permits = entry.request.permits.is_some();
        let error = match refused.why {
            Some(Why::Reason(reason)) => Error::Refused(Refusal::from(reason).of_permits(of_permits)),
            Some(Why::Fault(fault)) if fault.code == "UNAVAILABLE" => {
                self.to_repeat.push(no);
                return Vec::new();
            }
            Some(Why::Fault(fault)) => Error::service(fault.code, fault.detail),
            None => Error::Refused(Refusal::of(Reason::Other).of_permits(of_permits)),
        };
        match (&entry.phase, &error) {
            (Phase::Awaiting(_), _) => self.end_await(no, &error),
            // A retry of a held or releasing request has no effect.
            (Phase::Held | Phase::Releasing, _) => Vec::new(),
            // The request was granted while the client was disconnected, and lost before it could receive the grant:
            // the table requests it once more.
            (_, Error::Refused(refusal)) if refusal.reason == Reason::NotHeld => self.resubmit(no),
            _ => self.fail(no, &error),
        }
    }

    /// Ends a request that never held anything and waits no more.
    fn fail(&mut self, no: RequestNo, error: &Error) -> Vec<Effect> {
        self.clear_holds(no);
        let Some(entry) = self.entries.get_mut(&no) else { return Vec::new() };
        let mut effects: Vec<Effect> = entry.update_status(LockStatus::None).into_iter().collect();
        let waiters = std::mem::take(&mut entry.waiters);
        effects.extend(waiters.into_iter().map(|waiter| Effect::Failed(waiter, error.clone())));
        effects.extend(self.remove(no));
        effects
    }

    fn resubmit(&mut self, no: RequestNo) -> Vec<Effect> {
        self.clear_holds(no);
        let Some(old) = self.entries.get_mut(&no) else { return Vec::new() };
        let waiters = std::mem::take(&mut old.waiters);
        self.last += 1;
        let mut entry = Entry::new(old.request.clone(), 0, old.size);
        entry.shown = old.shown;
        old.request.persistent = false;
        old.phase = Phase::Releasing;
        self.to_say.push_back(no);
        entry.waiters.clone_from(&waiters);
        let key = entry.request.key();
        self.bytes += entry.size;
        self.awaited.add(&entry.request);
        if !entry.request.only_try && entry.request.permits.is_none() {
            self.shared.insert(key, self.last);
        }
        self.entries.insert(self.last, entry);
        self.to_say.push_back(self.last);
        waiters.into_iter().map(|waiter| Effect::Renamed(waiter, self.last)).collect()
    }

    /// Handles the failure, or possible failure, of a message about one request.
    pub(crate) fn on_error(&mut self, request_id: &str, code: &str, detail: &str) -> Vec<Effect> {
        let Some(no) = parse_request_id(request_id) else { return Vec::new() };
        if self.on_arrival_error(no, Error::service(code, detail)) || !self.entries.contains_key(&no) {
            return Vec::new();
        }
        if let Some(effects) = self.on_condition_error(no, code, detail) {
            return effects;
        }
        self.to_repeat.push(no);
        Vec::new()
    }

    /// Handles the loss of the hold with that token. Where no hold has it, those of the path that are older are lost: the
    /// service names the last one that it knew, unless it is one that this client has given up. Without a token, all of
    /// the path are.
    pub(crate) fn on_revoked(&mut self, path: &Path, token: Option<u64>, reason: &LossReason) -> Vec<Effect> {
        let has_it = |(no, entry): (&RequestNo, &Entry)| {
            entry.held_permits(*no).filter(|hold| Some(hold.fencing_token) == token).map(|_| *no)
        };
        if let Some(no) = self.entries.iter().find_map(has_it) {
            let mut effects = vec![
                Effect::Notify(Event::Revoked { path: path.clone(), reason: reason.clone() }),
                Effect::Notify(Event::Lost { path: path.clone(), reason: reason.clone() }),
            ];
            effects.extend(self.lose(no, reason));
            return effects;
        }
        let mut effects = Vec::new();
        let owners = self.owners_who_lost(path, token);
        if !owners.is_empty() {
            effects.push(Effect::Notify(Event::Revoked { path: path.clone(), reason: reason.clone() }));
        }
        for owner in owners {
            let Some(held) = self.held.remove(&(owner, path.clone())) else { continue };
            // The service may say so twice.
            self.released_tokens.extend((self.released_tokens.len() < MAX_RELEASED).then_some(held.token));
            effects.push(Effect::Notify(Event::Lost { path: path.clone(), reason: reason.clone() }));
            for no in held.requests {
                effects.extend(self.lose(no, reason));
            }
        }
        effects
    }

    /// Returns the owners of the holds of a path that the loss of the one with that token concerns.
    fn owners_who_lost(&self, path: &Path, token: Option<u64>) -> Vec<Option<Arc<str>>> {
        let there = || self.held.iter().filter(|((_, held), _)| held == path);
        let with = |is_meant: &dyn Fn(&HeldPath) -> bool| {
            let meant = there().filter(|(_, held)| is_meant(held)).map(|((owner, _), _)| owner.clone());
            meant.collect::<Vec<_>>()
        };
        let Some(token) = token else { return with(&|_| true) };
        let exact = with(&|held| held.token == token);
        if exact.is_empty() && !self.has_released(path, token) { with(&|held| held.token < token) } else { exact }
    }

    /// Returns whether a hold with that token was released, or lost, or is about to be released.
    fn has_released(&self, path: &Path, token: u64) -> bool {
        let releases =
            |entry: &Entry| matches!(entry.phase, Phase::Releasing) && entry.tokens.get(path) == Some(&token);
        self.released_tokens.contains(&token) || self.entries.values().any(releases)
    }

    /// Handles somebody's request to release a hold, which its token names. The same one may arrive again.
    pub(crate) fn on_release_requested(&mut self, request_id: Option<&str>, request: ReleaseRequest) -> Vec<Effect> {
        let asked = match request_id {
            Some(id) => {
                parse_request_id(id).filter(|no| self.has_permits(*no, request.fencing_token)).into_iter().collect()
            }
            None => self.ask_paths(&request),
        };
        let mut is_new = false;
        for no in asked {
            let Some(entry) = self.entries.get(&no) else { continue };
            is_new |= entry.asked.send_if_modified(|latest| {
                let is_new = latest.as_ref() != Some(&request);
                *latest = Some(request.clone());
                is_new
            });
        }
        if is_new { vec![Effect::Notify(Event::ReleaseRequested(request))] } else { Vec::new() }
    }

    fn has_permits(&self, no: RequestNo, token: u64) -> bool {
        self.entries.get(&no).and_then(|entry| entry.held_permits(no)).is_some_and(|hold| hold.fencing_token == token)
    }

    /// Notes the request at the locks that it is about. Returns the requests of this session that claim them.
    fn ask_paths(&mut self, request: &ReleaseRequest) -> Vec<RequestNo> {
        let is_meant = |((_, path), held): &(&OwnedPath, &mut HeldPath)| {
            *path == request.path && held.token == request.fencing_token
        };
        let mut asked = Vec::new();
        for (_, held) in self.held.iter_mut().filter(is_meant) {
            held.asked = Some(request.clone());
            asked.extend(&held.requests);
        }
        asked
    }

    /// Handles the loss of part of a request's holds.
    fn lose(&mut self, no: RequestNo, reason: &LossReason) -> Vec<Effect> {
        let Some(entry) = self.entries.get_mut(&no) else { return Vec::new() };
        entry.loss.send_replace(Some(reason.clone()));
        let is_kept = entry.request.persistent;
        let key = entry.request.key();
        if self.shared.get(&key) == Some(&no) {
            self.shared.remove(&key);
        }
        if is_kept { self.release(no, None) } else { Vec::new() }
    }
}
