//! One request, and one held path.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use holdfast_proto::v1;
use holdfast_proto::v1::client_message as client;
use tokio::sync::watch;

use super::super::events::Event;
use super::{Effect, Mode, RequestNo, WaiterId, format_request_id, loss_channel};
use crate::error::{Error, LossReason, Result};
use crate::locks::{LockStatus, Woken};
use crate::view::{Path, ReleaseRequest, WaitStatus};

/// The owner: a named holder of the session, or the session itself.
pub(crate) type Owner = Option<Arc<str>>;
/// A path that this owner holds or waits for.
pub(super) type OwnedPath = (Owner, Path);

/// Maximum message overhead besides names.
pub(super) const FRAME_BYTES: usize = 64;
const MAX_CLAIMS: usize = 64;

/// A path and its mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) path: Path,
    pub(crate) mode: Mode,
}

/// A request for locks.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) owner: Owner,
    /// Sorted by path, each once.
    pub(crate) claims: Vec<Claim>,
    pub(crate) transition_ms: u64,
    /// How long after the grant nobody else gets the locks, however the hold ends. Not of permits or members.
    pub(crate) at_least_ms: u64,
    pub(crate) only_try: bool,
    /// Whether it may share the holds and requests of the same owner.
    pub(crate) reentrant: bool,
    /// Whether the lock service view made the request and keeps the lock until it is unlocked.
    pub(crate) persistent: bool,
    /// Set for a request for permits or members: its one claim is the path of the semaphore or the pool. It shares
    /// nothing with others.
    pub(crate) permits: Option<PermitTerms>,
}

/// What a request for permits or members asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PermitTerms {
    pub(crate) wanted: WantedPermits,
    /// From 0 to 9; 9 goes first.
    pub(crate) priority: u8,
}

/// Permits of a semaphore, or members of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WantedPermits {
    Permits {
        weight: u64,
        /// How many there are, if nobody configured the semaphore.
        permits: Option<u64>,
    },
    Members {
        count: u64,
        /// The one that is taken first if it is free.
        prefer: Option<Arc<str>>,
    },
    Member(Arc<str>),
}

impl WantedPermits {
    /// Returns the kind of what has them, as the protocol calls it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Permits { .. } => "semaphore",
            Self::Members { .. } | Self::Member(_) => "pool",
        }
    }

    /// Returns the maximum size that it adds to a list of everything, apart from the members that are granted.
    fn size(&self) -> usize {
        match self {
            Self::Permits { .. } => 0,
            Self::Members { prefer, .. } => prefer.as_deref().map_or(0, str::len),
            Self::Member(name) => name.len(),
        }
    }
}

/// The message of a request for permits or members.
pub(super) enum PermitMessage {
    Acquire(client::AcquirePermits),
    Take(client::Take),
}

impl LockRequest {
    /// Creates a request of one owner. If a path is named twice, the stronger mode applies.
    ///
    /// # Errors
    /// When there is no claim, or there are too many.
    pub(crate) fn new(owner: Owner, claims: impl IntoIterator<Item = Claim>, transition_ms: u64) -> Result<Self> {
        let mut strongest: BTreeMap<Path, Mode> = BTreeMap::new();
        for claim in claims {
            let mode = strongest.entry(claim.path).or_insert(claim.mode);
            *mode = claim.mode.max(*mode);
        }
        if strongest.is_empty() || strongest.len() > MAX_CLAIMS {
            let count = strongest.len();
            return Err(Error::Invalid(format!("a request has 1 to {MAX_CLAIMS} different paths, not {count}")));
        }
        let claims = strongest.into_iter().map(|(path, mode)| Claim { path, mode }).collect();
        let (only_try, reentrant, persistent) = (false, false, false);
        let at_least_ms = 0;
        Ok(Self { owner, claims, transition_ms, at_least_ms, only_try, reentrant, persistent, permits: None })
    }

    /// Creates a request for permits or members.
    pub(crate) fn of_permits(owner: Arc<str>, path: Path, terms: PermitTerms, transition_ms: u64) -> Self {
        Self {
            owner: Some(owner),
            claims: vec![Claim { path, mode: Mode::Write }],
            transition_ms,
            at_least_ms: 0,
            only_try: false,
            reentrant: false,
            persistent: false,
            permits: Some(terms),
        }
    }

    /// Returns each locked path with the owner.
    pub(super) fn owned_paths(&self) -> impl Iterator<Item = OwnedPath> {
        let claims: &[Claim] = if self.permits.is_some() { &[] } else { &self.claims };
        claims.iter().map(|claim| (self.owner.clone(), claim.path.clone()))
    }

    /// Returns the key by which requests can share one entry.
    pub(super) fn key(&self) -> (Owner, Vec<Path>) {
        (self.owner.clone(), self.claims.iter().map(|claim| claim.path.clone()).collect())
    }

    /// Returns true if this request's holds satisfy the other one, which is for the same paths.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.claims.iter().zip(&other.claims).all(|(claim, other)| claim.mode >= other.mode)
    }

    /// Returns the maximum size that it adds to a list of everything.
    pub(super) fn size(&self) -> usize {
        let path = |claim: &Claim| claim.path.0.iter().map(|segment| segment.len() + 3).sum::<usize>() + 24;
        let owner = self.owner.as_deref().map_or(0, str::len);
        let wanted = self.permits.as_ref().map_or(0, |terms| terms.wanted.size());
        FRAME_BYTES + owner + wanted + self.claims.iter().map(path).sum::<usize>()
    }
}

/// The phase of a request.
#[derive(Debug)]
pub(super) enum Phase {
    /// No reply yet.
    Requested,
    /// In the queue.
    Waiting(WaitStatus),
    /// Granted.
    Held,
    /// It gave its lock up to await a condition, or waits for the lock again.
    Awaiting(AwaitTerms),
    /// No longer wanted.
    Releasing,
}

impl Phase {
    /// Returns true until the request is granted or no longer wanted.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self, Self::Requested | Self::Waiting(_) | Self::Awaiting(_))
    }
}

/// What an await asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitTerms {
    pub(crate) condition: Arc<str>,
    /// Without a limit if absent.
    pub(crate) wait_ms: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) request: LockRequest,
    pub(super) phase: Phase,
    /// Callers waiting for the grant.
    pub(super) waiters: Vec<WaiterId>,
    /// Callers waiting for the release.
    pub(super) releasers: Vec<WaiterId>,
    /// Number of callers that hold it.
    pub(super) count: u64,
    /// Whether the service may know the request.
    pub(super) was_said: bool,
    pub(super) tokens: Arc<BTreeMap<Path, u64>>,
    /// The token of the newest claims.
    pub(super) token: u64,
    /// Proves the grant to another gateway; empty where the service needs no proof.
    pub(super) receipt: Vec<u8>,
    /// The last place in the queue, and what proves it.
    pub(super) place: Option<(u64, Vec<u8>)>,
    /// The members of a pool that were granted.
    pub(super) members: Arc<[String]>,
    /// Why it waited for its lock again, of a request that gave it up.
    pub(super) woken: Option<Woken>,
    /// Whether it may have its lock again, after an await of which no such news came.
    pub(super) is_unheard: bool,
    /// How many signals were sent under its lock, or are to be.
    pub(super) signals: u64,
    pub(super) loss: watch::Sender<Option<LossReason>>,
    /// The latest request to release it.
    pub(super) asked: watch::Sender<Option<ReleaseRequest>>,
    /// The last status reported to listeners, for a request of the lock service view.
    pub(super) shown: LockStatus,
    pub(super) size: usize,
}

/// The grant that a waiter receives.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) no: RequestNo,
    /// The token of the newest claims.
    pub(crate) token: u64,
    /// The token of each path.
    pub(crate) tokens: Arc<BTreeMap<Path, u64>>,
    /// The members of a pool.
    pub(crate) members: Arc<[String]>,
    /// Why it waited for a lock that it had given up.
    pub(crate) woken: Option<Woken>,
    /// Receives the reason once the hold is lost.
    pub(crate) loss: watch::Receiver<Option<LossReason>>,
    /// Receives the requests to release it.
    pub(crate) asked: watch::Receiver<Option<ReleaseRequest>>,
}

/// A path held by an owner.
#[derive(Debug)]
pub(super) struct HeldPath {
    pub(super) mode: Mode,
    pub(super) token: u64,
    /// Whether the last list of everything has it under this token.
    pub(super) is_listed: bool,
    /// The latest request to release it.
    pub(super) asked: Option<ReleaseRequest>,
    /// The granted requests that claim it.
    pub(super) requests: Vec<RequestNo>,
}

impl Entry {
    pub(super) fn new(request: LockRequest, waiter: WaiterId, size: usize) -> Self {
        Self {
            request,
            phase: Phase::Requested,
            waiters: vec![waiter],
            releasers: Vec::new(),
            count: 0,
            was_said: false,
            tokens: Arc::default(),
            token: 0,
            receipt: Vec::new(),
            place: None,
            members: Arc::default(),
            woken: None,
            is_unheard: false,
            signals: 0,
            loss: loss_channel(),
            asked: watch::Sender::new(None),
            shown: LockStatus::None,
            size,
        }
    }

    pub(super) fn granted(&self, no: RequestNo) -> Granted {
        let (tokens, members) = (Arc::clone(&self.tokens), Arc::clone(&self.members));
        let (loss, asked) = (self.loss.subscribe(), self.asked.subscribe());
        Granted { no, token: self.token, tokens, members, woken: self.woken, loss, asked }
    }

    /// Returns the hold of permits or members, if it is one that is not lost.
    pub(super) fn held_permits(&self, no: RequestNo) -> Option<client::Thing> {
        let is_held = matches!(self.phase, Phase::Held) && self.loss.borrow().is_none();
        let terms = self.request.permits.as_ref().filter(|_| is_held)?;
        let weight = match &terms.wanted {
            WantedPermits::Permits { weight, .. } => Some(*weight),
            WantedPermits::Members { .. } | WantedPermits::Member(_) => None,
        };
        Some(client::Thing {
            kind: terms.wanted.kind().to_owned(),
            path: self.request.claims.first()?.path.0.clone(),
            request_id: format_request_id(no),
            holder: self.request.owner.as_deref().map(str::to_owned),
            weight,
            fencing_token: self.token,
            // The service knows them, and the list stays small.
            members: Vec::new(),
            generation: None,
        })
    }

    /// Encodes a request for permits or members for the service.
    pub(super) fn to_permit_message(&self, no: RequestNo, terms: &PermitTerms) -> PermitMessage {
        let request_id = format_request_id(no);
        let path = self.request.claims.first().map(|claim| claim.path.0.clone()).unwrap_or_default();
        let (holder, priority) = (self.request.owner.as_deref().map(str::to_owned), terms.priority.into());
        let (transition_ms, r#try) = (self.request.transition_ms, self.request.only_try);
        let (count, member, prefer) = match &terms.wanted {
            WantedPermits::Permits { weight, permits } => {
                let (weight, permits) = (Some(*weight), *permits);
                return PermitMessage::Acquire(client::AcquirePermits {
                    request_id,
                    path,
                    weight,
                    permits,
                    holder,
                    priority,
                    transition_ms,
                    r#try,
                });
            }
            WantedPermits::Members { count, prefer } => (Some(*count), None, prefer.as_deref().map(str::to_owned)),
            WantedPermits::Member(name) => (None, Some(name.to_string()), None),
        };
        PermitMessage::Take(client::Take {
            request_id,
            path,
            count,
            member,
            prefer,
            holder,
            priority,
            transition_ms,
            r#try,
        })
    }

    /// Encodes an await for the service. It names the token that was given up, so that a repeat finds its place.
    pub(super) fn to_await_message(&self, no: RequestNo, terms: &AwaitTerms) -> client::Await {
        client::Await {
            request_id: format_request_id(no),
            condition: terms.condition.to_string(),
            wait_ms: terms.wait_ms,
            fencing_token: Some(self.token),
        }
    }

    /// Encodes the end of a request for the service.
    pub(super) fn to_release_message(&self, no: RequestNo) -> client::Release {
        client::Release { request_id: format_request_id(no), unheard: self.is_unheard }
    }

    /// Encodes a request for locks for the service.
    pub(super) fn to_message(&self, no: RequestNo) -> client::Lock {
        let resource =
            |claim: &Claim| v1::Resource { path: claim.path.0.clone(), mode: v1::Mode::from(claim.mode).into() };
        client::Lock {
            request_id: format_request_id(no),
            resources: self.request.claims.iter().map(resource).collect(),
            holder: self.request.owner.as_deref().map(str::to_owned),
            transition_ms: self.request.transition_ms,
            allow_upgrade: false,
            r#try: self.request.only_try,
            at_least_ms: self.request.at_least_ms,
            metadata: HashMap::new(),
        }
    }

    /// Updates the status; returns the notification for listeners of the lock service view.
    pub(super) fn update_status(&mut self, now: LockStatus) -> Option<Effect> {
        let before = std::mem::replace(&mut self.shown, now);
        let path = self.request.claims.first()?.path.clone();
        (self.request.persistent && before != now).then_some(Effect::Notify(Event::Status { path, before, now }))
    }
}
