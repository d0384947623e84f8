//! Charges in bytes: an upper bound of the memory that items take. Charges are the same on every replica and follow
//! from the state alone. Text counts in bytes of UTF-8.

use holdfast_primitives::ask::asked_charge;
use holdfast_primitives::metadata::{EncodedMetadata, metadata_charge};

use super::conditions::CameFrom;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerName;
use super::request::Request;
use super::sessions::{GrantedRequest, SessionFacts};
use super::waiting::WaitingRequest;
use crate::{Claim, NamespaceRef, OpenSession, Owner, Path, SessionAcquire, SessionTerms, StateBytes};

/// The extra of a path that has descendants or a queue.
pub(super) const NODE_EXTRA: u64 = 576;

/// A path, by the length of its last segment.
pub(super) fn path(segment: usize) -> u64 {
    144 + segment as u64
}

/// A hold without its metadata.
pub(super) fn hold(has_deadline: bool) -> u64 {
    104 + if has_deadline { 48 } else { 0 }
}

/// How long a hold is kept from others.
pub(super) const AT_LEAST: u64 = 224;
/// An owner that holds or waits.
pub(super) fn owner(names: usize) -> u64 {
    112 + names as u64
}

/// What a hold is charged more if it is kept from others for a while.
pub(super) fn at_least(ms: u32) -> u64 {
    if ms == 0 { 0 } else { AT_LEAST }
}

/// A waiting request. Its metadata, and a time for which its holds are kept from others, count once per claim, so that
/// they fit when the request is granted.
pub(super) fn waiting(request_id: Option<&str>, claims: &[Claim], metadata_bytes: usize, at_least_ms: u32) -> u64 {
    let claim = |claim: &Claim| {
        let segments = claim.path.0.len() as u64;
        let text: usize = claim.path.0.iter().map(String::len).sum();
        160 + 200 * (segments + 1)
            + 2 * text as u64
            + 32 * segments
            + metadata_charge(metadata_bytes)
            + at_least(at_least_ms)
    };
    640 + request_id.map_or(0, str::len) as u64 + claims.iter().map(claim).sum::<u64>()
}

/// A granted request of a session, by the length of its id and the number of its claims.
pub(super) fn granted(request_id: usize, claims: u64) -> u64 {
    192 + request_id as u64 + 96 * claims
}

/// A session that may hold something in a lock table of the leader.
pub(super) const TABLE_SESSION: u64 = 192;
/// A claim of it that was ended by force.
pub(super) fn forfeit(path: &Path) -> u64 {
    64 + path.0.iter().map(|segment| 24 + segment.len() as u64).sum::<u64>()
}

/// A session without its metadata.
pub(super) fn session(session_id: &str, process_id: &str) -> u64 {
    768 + (session_id.len() + process_id.len()) as u64
}

/// An event without its claims, by the length of its names.
pub(super) fn event(names: usize) -> u64 {
    48 + names as u64
}

/// A claim of an event without the text of its path, by the number of segments.
pub(super) fn event_claim(segments: usize) -> u64 {
    3 + 3 * segments as u64
}

/// An open namespace without any content.
pub(super) fn namespace(id: &NamespaceRef) -> u64 {
    8_192 + 3 * id.name.len() as u64
}

/// The maximum that a request can add, whatever the state is.
pub(super) fn max_of_acquire(request: &Request<'_>) -> u64 {
    let kept = EncodedMetadata::encoded_len(request.metadata);
    let at_least_ms = at_least_of(request.at_least_ms);
    max_of_claims(request.claims, request.request_id, (kept, at_least_ms), name_bytes(request.owner))
}

/// The maximum that a request of a connected session can add.
pub(super) fn max_of_session_acquire((request, terms): (&SessionAcquire, &SessionTerms), session_id: &str) -> u64 {
    let names = session_id.len() + request.holder.as_ref().map_or(0, String::len);
    let kept = (EncodedMetadata::encoded_len(&terms.metadata), at_least_of(terms.at_least_ms));
    max_of_claims(&request.claims, Some(&request.request_id), kept, names)
}

/// Returns the time that is kept of a requested one, in milliseconds.
pub(super) fn at_least_of(ms: u64) -> u32 {
    u32::try_from(ms).unwrap_or(u32::MAX)
}

fn max_of_claims(
    claims: &[Claim],
    request_id: Option<&str>,
    (metadata_bytes, at_least_ms): (usize, u32),
    names: usize,
) -> u64 {
    let paths = claims.iter().flat_map(|claim| &claim.path.0).map(|segment| path(segment.len()) + NODE_EXTRA);
    let holds = claims.len() as u64 * (hold(true) + at_least(at_least_ms));
    let by_id = request_id.map_or(0, |request_id| granted(request_id.len(), claims.len() as u64));
    let waits = waiting(request_id, claims, metadata_bytes, at_least_ms);
    paths.sum::<u64>() + 2 * NODE_EXTRA + holds + by_id + waits + owner(names)
}

/// The maximum that opening a session can add.
pub(super) fn max_of_opening(open: &OpenSession) -> u64 {
    session(&open.session_id, &open.process_id) + metadata_charge(EncodedMetadata::encoded_len(&open.metadata))
}

/// Returns the length in bytes of the names of an owner.
pub(super) fn name_bytes(owner: &Owner) -> usize {
    match owner {
        Owner::Process(process_id) => process_id.len(),
        Owner::Session { session_id, holder } => session_id.len() + holder.as_ref().map_or(0, String::len),
    }
}

impl OwnerName {
    pub(super) fn charge(&self) -> u64 {
        owner(self.name_bytes())
    }

    /// Returns the length in bytes of its names.
    pub(super) fn name_bytes(&self) -> usize {
        match self {
            Self::Process(process_id) => process_id.len(),
            Self::Session(session) => {
                session.session_id.len() + session.holder.as_ref().map_or(0, |holder| holder.len())
            }
        }
    }
}

impl Hold {
    /// Returns the charges of the hold and of its metadata.
    pub(super) fn charge(&self) -> (u64, u64) {
        let at_least = if self.at_least().is_some() { AT_LEAST } else { 0 };
        let rare = at_least + asked_charge(self.asks()) + self.charge_of_past();
        (hold(self.deadline_ms.is_some()) + rare, metadata_charge(self.metadata_bytes()))
    }
}

impl WaitingRequest {
    pub(super) fn charge(&self) -> u64 {
        let past = self.came_from.as_deref().map_or(0, CameFrom::charge);
        waiting(self.request_id.as_deref(), &self.claims, self.terms.metadata.len(), self.terms.at_least_ms) + past
    }
}

impl GrantedRequest {
    pub(super) fn charge(&self) -> u64 {
        granted(self.request_id.len(), u64::from(self.claimed))
    }
}

impl SessionFacts {
    pub(super) fn charge(&self, session_id: &str) -> u64 {
        session(session_id, &self.process_id) + metadata_charge(self.metadata.len())
    }
}

/// Charges that are counted incrementally. The charges of paths, owners and events are counted in their own tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChargedBytes {
    pub(super) holds: u64,
    pub(super) metadata: u64,
    pub(super) waiting: u64,
    pub(super) requests: u64,
    pub(super) sessions: u64,
}

impl ChargedBytes {
    pub(super) fn add_hold(&mut self, (hold, metadata): (u64, u64)) {
        (self.holds, self.metadata) = (self.holds + hold, self.metadata + metadata);
    }

    pub(super) fn remove_hold(&mut self, (hold, metadata): (u64, u64)) {
        (self.holds, self.metadata) = (self.holds - hold, self.metadata - metadata);
    }
}

impl Namespace {
    /// Returns the charges of the namespace by kind.
    pub(super) fn state_bytes(&self) -> StateBytes {
        let ChargedBytes { holds, metadata, waiting, requests, sessions } = self.charged;
        StateBytes {
            namespace: namespace(&self.id),
            paths: self.tree.charge(),
            owners: self.owners.charge(),
            holds,
            metadata,
            waiting,
            requests,
            sessions: sessions + self.table_log.bytes(),
            events: self.history.bytes(),
            latches: self.latches.bytes().charged,
            semaphores: self.permits.bytes().charged,
            barriers: self.barriers.bytes().charged,
            conditions: self.conditions.bytes().charged,
        }
    }

    /// Counts the charges again from the state.
    pub(super) fn recount_charges(&self) -> ChargedBytes {
        let mut counted = ChargedBytes::default();
        for (_, lock) in self.tree.iter() {
            lock.holds.as_slice().iter().for_each(|hold| counted.add_hold(hold.charge()));
        }
        counted.waiting = self.waits.values().map(|waiting| waiting.charge()).sum();
        counted.requests = self.granted_requests.iter().map(|(_, granted)| granted.charge()).sum();
        let ending = self.ending_sessions.values().map(|ending| (&ending.session_id, &ending.session));
        counted.sessions = self.sessions.iter().chain(ending).map(|(id, session)| session.facts.charge(id)).sum();
        counted
    }
}
