//! What goes when much is ended at once, and what others see of it until it is gone.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::end::EndCause;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::{OwnerId, OwnerKey, OwnerName};
use super::queue::QueuePosition;
use super::sessions::NamedRequest;
use super::sweep::Sweep;
use super::tree::NodeId;
use crate::{Acquire, FencingToken, LockInfo, Mode, Owner, Path, Reset, Revision, SessionNumber};

/// What goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Target {
    /// All of one owner; of the session of that number, or of a process.
    Owner(Owner, SessionNumber),
    /// All of a session.
    Session(SessionNumber),
    /// The holds of a path.
    Path(Path),
    /// Whatever is of nobody in the list and, when there is a revision, is older than that.
    Reset { live: BTreeSet<String>, before: Option<Revision> },
    /// Of a session, what is neither listed nor pending.
    Unlisted { session: SessionNumber, listed: BTreeSet<(FencingToken, Mode, Path)>, pending: BTreeSet<String> },
}

impl Target {
    pub(super) fn reset(reset: &Reset) -> Self {
        Self::Reset { live: reset.live_owners.iter().cloned().collect(), before: reset.before_revision }
    }

    pub(super) fn unlisted(session: SessionNumber, info: &LockInfo) -> Self {
        let listed = info.held.iter().map(|hold| (hold.fencing_token, hold.mode, hold.path.clone()));
        Self::Unlisted { session, listed: listed.collect(), pending: info.pending.iter().cloned().collect() }
    }

    pub(super) fn is_reset(&self) -> bool {
        matches!(self, Self::Reset { .. })
    }

    /// The event of each hold that goes, and what its session is told.
    pub(super) fn end_cause(&self) -> EndCause {
        match self {
            Self::Path(_) => EndCause::Deleted,
            Self::Reset { .. } => EndCause::Reset,
            Self::Owner(..) | Self::Session(_) | Self::Unlisted { .. } => EndCause::Released,
        }
    }

    /// Whether a session goes as a whole.
    pub(super) fn covers_session(&self, session_id: &str, number: SessionNumber) -> bool {
        match self {
            Self::Reset { live, before } => !live.contains(session_id) && before.is_none_or(|before| number < before),
            _ => false,
        }
    }

    /// Whether what that owner has goes, as far as its name tells.
    pub(super) fn covers(&self, name: &OwnerName) -> bool {
        let session = name.session();
        match (self, name) {
            (Self::Owner(Owner::Process(process), _), OwnerName::Process(id)) => process.as_str() == &**id,
            (Self::Owner(Owner::Session { holder, .. }, number), OwnerName::Session(owner)) => {
                owner.number == *number && owner.holder.as_deref() == holder.as_deref()
            }
            (Self::Session(number) | Self::Unlisted { session: number, .. }, _) => {
                session.is_some_and(|owner| owner.number == *number)
            }
            (Self::Reset { live, .. }, OwnerName::Process(id)) => !live.contains(&**id),
            (Self::Reset { .. }, OwnerName::Session(owner)) => self.covers_session(&owner.session_id, owner.number),
            (Self::Owner(..) | Self::Path(_), _) => false,
        }
    }

    /// Whether holds are over in principle from the beginning on.
    fn takes_effect_at_once(&self) -> bool {
        matches!(self, Self::Owner(..) | Self::Session(_) | Self::Path(_))
    }
}

impl Sweep {
    /// Whether what that owner has goes. A process does only once it was found to be old enough, if that matters.
    fn covers(&self, ns: &Namespace, owner: OwnerId) -> bool {
        let name = ns.owners.name(owner);
        let is_old = || self.is_old(owner) || name.session().is_some();
        self.target.covers(name) && (!self.has_age_limit() || is_old())
    }
}

impl Namespace {
    /// The owner of that name, in the session of that number.
    pub(super) fn owner_of(&self, owner: &Owner, number: SessionNumber) -> Option<OwnerId> {
        self.owners.find(match owner {
            Owner::Process(process_id) => OwnerKey::Process(process_id),
            Owner::Session { holder, .. } => OwnerKey::Session(number, holder.as_deref()),
        })
    }

    /// Nothing is granted here and nobody joins the queue.
    pub(super) fn is_frozen(&self) -> bool {
        self.sweeps.values().any(|sweep| sweep.target.is_reset())
    }

    /// What a request that waits is to go with, so that nothing is granted to it.
    pub(super) fn sweep_of_wait(&self, place: QueuePosition) -> Option<Revision> {
        self.sweeps.iter().find(|(began, sweep)| self.sweep_covers_wait(**began, sweep, place)).map(|(began, _)| *began)
    }

    /// Since when a hold that is to go is over in principle.
    pub(super) fn swept_since_ms(&self, node: NodeId, hold: &Hold) -> Option<u64> {
        let mut marks = self.sweeps.iter().filter(|(_, sweep)| sweep.target.takes_effect_at_once());
        marks.find(|(began, sweep)| self.sweep_covers_hold(**began, sweep, node, hold)).map(|(_, sweep)| sweep.since_ms)
    }

    /// Whether a request that is known by its name, or what it was granted, is to go.
    pub(super) fn is_request_swept(&self, named: NamedRequest) -> bool {
        let goes =
            |node, hold| self.sweeps.iter().any(|(began, sweep)| self.sweep_covers_hold(*began, sweep, node, hold));
        match named {
            _ if self.sweeps.is_empty() => false,
            NamedRequest::Waiting(place) => self.sweep_of_wait(place).is_some(),
            NamedRequest::Granted(granted) => {
                let granted = self.granted_requests.get(granted);
                let mut holds = granted.live.keys().filter_map(|node| Some((*node, self.hold(*node, granted.owner)?)));
                holds.any(|(node, hold)| goes(node, hold))
            }
        }
    }

    /// Whether a new request has to come again since something of its owner or on its paths is being ended.
    pub(super) fn conflicts_with_sweep(&self, request: &Acquire) -> bool {
        self.sweeps.values().any(|sweep| match &sweep.target {
            Target::Owner(owner, _) => *owner == request.owner,
            Target::Session(session) | Target::Unlisted { session, .. } => match &request.owner {
                Owner::Process(_) => false,
                Owner::Session { session_id, .. } => {
                    self.sessions.get(session_id.as_str()).is_some_and(|there| there.facts.number == *session)
                }
            },
            Target::Path(path) => request.claims.iter().any(|claim| claim.path == *path),
            Target::Reset { .. } => false,
        })
    }

    pub(super) fn sweep_covers_wait(&self, began: Revision, sweep: &Sweep, place: QueuePosition) -> bool {
        let Some(waiting) = self.waits.get(&place).filter(|_| place.wait().0 < began) else { return false };
        if !sweep.covers(self, waiting.owner) {
            return false;
        }
        match &sweep.target {
            Target::Unlisted { pending, .. } => !waiting.request_id.as_deref().is_some_and(|id| pending.contains(id)),
            _ => true,
        }
    }

    pub(super) fn sweep_covers_hold(&self, began: Revision, sweep: &Sweep, node: NodeId, hold: &Hold) -> bool {
        if hold.token >= began {
            return false;
        }
        match &sweep.target {
            Target::Path(_) => sweep.node == Some(node),
            Target::Unlisted { listed, pending, .. } => {
                sweep.covers(self, hold.owner)
                    && !hold
                        .requests()
                        .iter()
                        .any(|request| pending.contains(&*self.granted_requests.get(*request).request_id))
                    && !listed.contains(&(hold.token, hold.mode, self.tree.path_of(node)))
            }
            _ => sweep.covers(self, hold.owner),
        }
    }
}
