//! What is charged, in the model: counted from nothing each time.

use std::collections::BTreeSet;

use holdfast_core::{
    Acquire, Claim, CommandError, Event, Metadata, OpenSession, Owner, Path, Rules, StateBytes, codec,
};

use crate::quota::quota_error;
use crate::state::{Hold, Model, OwnerKey};

/// As encoded, without the version of the encoding.
fn metadata(metadata: &Metadata) -> u64 {
    if metadata.is_empty() { 0 } else { 128 + codec::encode(metadata).len() as u64 - 1 }
}

fn names(owner: &Owner) -> u64 {
    match owner {
        Owner::Process(process_id) => process_id.len() as u64,
        Owner::Session { session_id, holder } => (session_id.len() + holder.as_ref().map_or(0, String::len)) as u64,
    }
}

fn at_least(ms: u64) -> u64 {
    if ms > 0 { 224 } else { 0 }
}

fn waiting(request_id: Option<&str>, claims: &[Claim], given: &Metadata, at_least_ms: u64) -> u64 {
    let claim = |claim: &Claim| {
        let text: usize = claim.path.0.iter().map(String::len).sum();
        160 + 200 * (claim.path.0.len() as u64 + 1)
            + 2 * text as u64
            + 32 * claim.path.0.len() as u64
            + metadata(given)
            + at_least(at_least_ms)
    };
    640 + request_id.map_or(0, str::len) as u64 + claims.iter().map(claim).sum::<u64>()
}

fn granted(request_id: &str, claims: usize) -> u64 {
    192 + request_id.len() as u64 + 96 * claims as u64
}

fn session(open: &OpenSession) -> u64 {
    768 + (open.session_id.len() + open.process_id.len()) as u64 + metadata(&open.metadata)
}

pub(crate) fn event(event: &Event) -> u64 {
    let (id, holder) = match &event.owner {
        Owner::Process(process_id) => (process_id, None),
        Owner::Session { session_id, holder } => (session_id, holder.as_ref()),
    };
    let process_id = if event.process_id == *id { 0 } else { event.process_id.len() };
    let names = id.len() + holder.map_or(0, String::len) + process_id;
    let claim = |claim: &Claim| 3 + claim.path.0.iter().map(|segment| 3 + segment.len() as u64).sum::<u64>();
    48 + names as u64 + event.claims.iter().map(claim).sum::<u64>()
}

fn hold(hold: &Hold) -> u64 {
    let deadline = if hold.deadline_ms.is_some() { 48 } else { 0 };
    104 + deadline + at_least(hold.kept_until_ms) + hold.asked_bytes()
}

impl Model {
    /// Paths of which the tree has a node or a queue: those of holds and of waiting claims.
    fn charged_paths(&self) -> u64 {
        let queued: BTreeSet<&Path> =
            self.waits.iter().flat_map(|wait| &wait.claims).map(|claim| &claim.path).collect();
        let ends = self.holds.iter().map(|hold| &hold.path).chain(queued.iter().copied());
        let (mut paths, mut sides) = (BTreeSet::new(), BTreeSet::new());
        for path in ends {
            for depth in 1..=path.0.len() {
                paths.insert(&path.0[..depth]);
                sides.insert(&path.0[..depth - 1]);
            }
        }
        sides.extend(queued.into_iter().map(|path| &path.0[..]));
        let names: usize = paths.iter().filter_map(|path| path.last()).map(String::len).sum();
        144 * paths.len() as u64 + names as u64 + 576 * sides.len() as u64
    }

    pub(crate) fn state_bytes(&self) -> StateBytes {
        let holding = self.holds.iter().map(|hold| &hold.who);
        let owners: BTreeSet<&OwnerKey> = holding.chain(self.waits.iter().map(|wait| &wait.who)).collect();
        let ends = |number| self.ending_sessions.iter().any(|ending| ending.number == number);
        let open = self.sessions.iter().filter(|session| session.is_open || ends(session.number));
        StateBytes {
            namespace: 8_192 + 3 * self.namespace.name.len() as u64,
            paths: self.charged_paths(),
            owners: owners.iter().map(|who| 112 + names(&who.owner)).sum(),
            holds: self.holds.iter().map(hold).sum(),
            metadata: self.holds.iter().map(|hold| metadata(&hold.terms.metadata)).sum(),
            waiting: {
                let of = |wait: &crate::state::Wait| {
                    let (id, terms) = (wait.request_id.as_deref(), &wait.terms);
                    waiting(id, &wait.claims, &terms.metadata, terms.at_least_ms)
                };
                self.waits.iter().map(of).sum()
            },
            requests: self.granted.iter().map(|it| granted(&it.id, it.claims.len())).sum(),
            sessions: {
                let of = |it: &crate::state::Session| {
                    768 + (it.id.len() + it.process_id.len()) as u64 + metadata(&it.metadata)
                };
                open.map(of).sum()
            },
            events: self.event_bytes(),
            latches: 0,
            semaphores: 0,
            barriers: 0,
            conditions: 0,
        }
    }

    pub(crate) fn has_capacity(&self, more: u64) -> bool {
        more == 0 || self.rules == Rules::ONE || self.state_bytes().total() + more <= self.limits.max_state_bytes
    }

    /// Events give way to what is more than may be.
    fn evict_events(&mut self, most: u64) {
        let total = self.state_bytes().total();
        let excess = (total + most).saturating_sub(self.limits.max_state_bytes);
        if self.rules >= Rules::TWO && excess > 0 {
            let kept = self.bounds.min_event_bytes.min(self.event_bytes());
            self.shrink_events_to(self.event_bytes().saturating_sub(excess).max(kept));
        }
    }

    pub(crate) fn enforce_byte_limits(&mut self) {
        self.evict_events(0);
    }

    pub(crate) fn evict_events_for(&mut self, request: &Acquire) {
        let by_id = request.request_id.as_deref();
        let segments = request.claims.iter().flat_map(|claim| &claim.path.0);
        let paths: u64 = segments.map(|segment| 144 + segment.len() as u64 + 576).sum();
        let holds = (152 + at_least(self.at_least_ms)) * request.claims.len() as u64;
        let named = by_id.map_or(0, |id| granted(id, request.claims.len()));
        let most =
            paths + 2 * 576 + holds + named + waiting(by_id, &request.claims, &request.metadata, self.at_least_ms);
        self.evict_events(most + 112 + names(&request.owner));
    }

    pub(crate) fn evict_events_to_open(&mut self, open: &OpenSession) {
        self.evict_events(session(open));
    }

    pub(crate) fn check_capacity_to_open(&self, open: &OpenSession) -> Result<(), CommandError> {
        if self.has_capacity(session(open)) { Ok(()) } else { Err(quota_error("state")) }
    }

    /// Whether a request that can be granted keeps the metadata of the holds that it extends.
    pub(crate) fn check_capacity_to_hold(
        &self,
        request: &Acquire,
        who: &OwnerKey,
        claims: &[Claim],
    ) -> Result<bool, CommandError> {
        let mut after = self.clone();
        let is_session = who.number != 0;
        let mut is_new = false;
        let deadline_ms = request.ttl_ms;
        for claim in claims {
            match after.hold_of_mut(who, &claim.path) {
                Some(own) => {
                    (own.deadline_ms, own.terms.metadata) = (deadline_ms, request.metadata.clone());
                    own.kept_until_ms = own.kept_until_ms.max(self.at_least_ms);
                    if std::mem::take(&mut own.is_kept) {
                        is_new = true;
                        (own.latest_ask, own.forced_at_ms) = (None, None);
                    }
                }
                None => {
                    is_new = true;
                    after.holds.push(Hold {
                        path: claim.path.clone(),
                        who: who.clone(),
                        mode: claim.mode,
                        phase: holdfast_core::Phase::Held,
                        token: 0,
                        locked_at_ms: 0,
                        deadline_ms,
                        terms: self.terms(request),
                        direct: true,
                        attempts: crate::attempts::Attempts::of(0),
                        reader_attempts: None,
                        kept_from_ms: 0,
                        kept_until_ms: self.at_least_ms,
                        is_kept: false,
                        latest_ask: None,
                        forced_at_ms: None,
                    });
                }
            }
        }
        // All that its holds have counts together, and not below nothing.
        let (before, now) = (self.state_bytes(), after.state_bytes());
        let holds = (now.holds + now.metadata).saturating_sub(before.holds + before.metadata);
        let by_id = request.request_id.as_deref().filter(|_| is_session);
        if !is_new && by_id.is_none() {
            return Ok(!self.has_capacity(holds));
        }
        let rest = (now.paths + now.owners) - (before.paths + before.owners);
        let more = holds + rest + by_id.map_or(0, |id| granted(id, claims.len()));
        if self.has_capacity(more) { Ok(false) } else { Err(quota_error("state")) }
    }

    /// With the request in the queue as it would be.
    pub(crate) fn check_capacity_to_wait(&self, before: &Self) -> Result<(), CommandError> {
        let more = self.state_bytes().total() - before.state_bytes().total();
        if before.has_capacity(more) { Ok(()) } else { Err(quota_error("state")) }
    }
}
