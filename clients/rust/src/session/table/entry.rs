//! One request, and one path that is held.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_proto::v1;
use holdfast_proto::v1::client_message as client;
use tokio::sync::watch;

use super::super::events::Event;
use super::{Effect, Mode, RequestNo, WaiterId, format_request_id, loss_channel};
use crate::error::{Error, LossReason, Result};
use crate::locks::LockStatus;
use crate::view::{Path, WaitStatus};

/// Who asks: a thread of the session by its name, or the session itself.
pub(crate) type Owner = Option<Arc<str>>;

/// What the frame of a message adds to names, at most.
const FRAME_BYTES: usize = 64;
const MAX_CLAIMS: usize = 64;

/// A path, and how it is to be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) path: Path,
    pub(crate) mode: Mode,
}

/// What somebody asks for.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) owner: Owner,
    /// In order of path, each once.
    pub(crate) claims: Vec<Claim>,
    pub(crate) transition_ms: u64,
    pub(crate) only_try: bool,
    /// Whether the lock service view asks, which keeps what it gets until it is told otherwise.
    pub(crate) persistent: bool,
}

impl LockRequest {
    /// Claims of one owner. Of a path that is named twice the stronger mode counts.
    ///
    /// # Errors
    /// When there is no claim, or too many.
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
        Ok(Self { owner, claims, transition_ms, only_try: false, persistent: false })
    }

    /// What requests have in common that can share one.
    pub(super) fn key(&self) -> (Owner, Vec<Path>) {
        (self.owner.clone(), self.claims.iter().map(|claim| claim.path.clone()).collect())
    }

    /// Whether whoever has this has the other one too, which is for the same paths.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.claims.iter().zip(&other.claims).all(|(claim, other)| claim.mode >= other.mode)
    }

    /// How much it adds to a list of everything, at most.
    pub(super) fn size(&self) -> usize {
        let path = |claim: &Claim| claim.path.0.iter().map(|segment| segment.len() + 3).sum::<usize>() + 24;
        let owner = self.owner.as_deref().map_or(0, str::len);
        FRAME_BYTES + owner + self.claims.iter().map(path).sum::<usize>()
    }
}

/// Where a request stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// No answer yet.
    Requested,
    /// In the queue.
    Waiting(WaitStatus),
    /// Granted.
    Held,
    /// Not wanted any more.
    Releasing,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) request: LockRequest,
    pub(super) phase: Phase,
    /// Who waits for the grant.
    pub(super) waiters: Vec<WaiterId>,
    /// Who waits for the release.
    pub(super) releasers: Vec<WaiterId>,
    /// How many have it.
    pub(super) count: u64,
    /// Whether the service may know of it.
    pub(super) was_said: bool,
    pub(super) tokens: Arc<BTreeMap<Path, u64>>,
    /// Of the newest claims.
    pub(super) token: u64,
    pub(super) loss: watch::Sender<Option<LossReason>>,
    /// What listeners were told, of a request of the lock service view.
    pub(super) shown: LockStatus,
    pub(super) size: usize,
}

/// What a waiter is given.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) no: RequestNo,
    /// Of the newest claims.
    pub(crate) token: u64,
    /// Of each path.
    pub(crate) tokens: Arc<BTreeMap<Path, u64>>,
    /// Says why, once the hold is lost.
    pub(crate) loss: watch::Receiver<Option<LossReason>>,
}

/// A path that an owner holds.
#[derive(Debug)]
pub(super) struct HeldPath {
    pub(super) mode: Mode,
    pub(super) token: u64,
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
            loss: loss_channel(),
            shown: LockStatus::None,
            size,
        }
    }

    pub(super) fn granted(&self, no: RequestNo) -> Granted {
        Granted { no, token: self.token, tokens: Arc::clone(&self.tokens), loss: self.loss.subscribe() }
    }

    /// The request as the service is told.
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
        }
    }

    /// What listeners of the lock service view are told of a change.
    pub(super) fn update_status(&mut self, now: LockStatus) -> Option<Effect> {
        let before = std::mem::replace(&mut self.shown, now);
        let path = self.request.claims.first()?.path.clone();
        (self.request.persistent && before != now).then_some(Effect::Notify(Event::Status { path, before, now }))
    }
}
