//! Targets of sweeps, and how the state appears to others until a sweep is finished.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::end::EndCause;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::{OwnerId, OwnerKey, OwnerName};
use super::queue::QueuePosition;
use super::request::Request;
use super::sessions::NamedRequest;
use super::sweep::Sweep;
use super::tree::NodeId;
use crate::{Owner, Path, Reset, Revision, SessionNumber};

/// What a sweep ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Target {
    /// Everything of one owner: a process, or an owner in the session with that number.
    Owner(Owner, SessionNumber),
    /// Everything of a session.
    Session(SessionNumber),
    /// The holds of a path.
    Path(Path),
    /// Everything of owners that are not in the list and, given a revision, are older than it.
    Reset { live: BTreeSet<String>, before: Option<Revision> },
    /// Everything of a session that is not in its report.
    Unlisted(SessionNumber),
}

impl Target {
    pub(super) fn reset(reset: &Reset) -> Self {
        Self::Reset { live: reset.live_owners.iter().cloned().collect(), before: reset.before_revision }
    }

    pub(super) fn is_path(&self) -> bool {
        matches!(self, Self::Path(_))
    }

    pub(super) fn is_reset(&self) -> bool {
        matches!(self, Self::Reset { .. })
    }

    /// Returns the cause of each hold's end, which determines the event and the notice to its session.
    pub(super) fn end_cause(&self) -> EndCause {
        match self {
            Self::Path(_) => EndCause::Deleted,
            Self::Reset { .. } => EndCause::Reset,
            Self::Owner(..) | Self::Session(_) | Self::Unlisted(_) => EndCause::Released,
        }
    }

    /// Returns whether the target covers a whole session.
    pub(super) fn covers_session(&self, session_id: &str, number: SessionNumber) -> bool {
        match self {
            Self::Reset { live, before } => !live.contains(session_id) && before.is_none_or(|before| number < before),
            _ => false,
        }
    }

    /// Returns whether the target covers an owner, as far as its name tells.
    pub(super) fn covers(&self, name: &OwnerName) -> bool {
        let session = name.session();
        match (self, name) {
            (Self::Owner(Owner::Process(process), _), OwnerName::Process(id)) => process == id.as_str(),
            (Self::Owner(Owner::Session { holder, .. }, number), OwnerName::Session(owner)) => {
                owner.number == *number && owner.holder.as_deref() == holder.as_deref()
            }
            (Self::Session(number) | Self::Unlisted(number), _) => session.is_some_and(|owner| owner.number == *number),
            (Self::Reset { live, .. }, OwnerName::Process(id)) => !live.contains(id.as_str()),
            (Self::Reset { .. }, OwnerName::Session(owner)) => self.covers_session(&owner.session_id, owner.number),
            (Self::Owner(..) | Self::Path(_), _) => false,
        }
    }

    /// Returns whether holds count as over from the beginning of the sweep.
    pub(super) fn takes_effect_at_once(&self) -> bool {
        matches!(self, Self::Owner(..) | Self::Session(_) | Self::Path(_))
    }
}

impl Sweep {
    /// Returns whether the sweep covers an owner. With an age limit, it covers only processes that were found old
    /// enough.
    pub(super) fn covers(&self, ns: &Namespace, owner: OwnerId) -> bool {
        let name = ns.owners.name(owner);
        let is_old = || self.is_old(owner) || name.session().is_some();
        self.target.covers(name) && (!self.has_age_limit() || is_old())
    }
}

impl Namespace {
    /// Returns the owner with that name, in the session with that number.
    pub(super) fn owner_of(&self, owner: &Owner, number: SessionNumber) -> Option<OwnerId> {
        self.owners.find(match owner {
            Owner::Process(process_id) => OwnerKey::Process(process_id),
            Owner::Session { holder, .. } => OwnerKey::Session(number, holder.as_deref()),
        })
    }

    /// Returns whether the namespace is frozen: it grants nothing, and no request joins the queue.
    pub(super) fn is_frozen(&self) -> bool {
        self.sweeps.values().any(|sweep| sweep.target.is_reset())
    }

    /// Returns whether no waiting request is granted for now.
    pub(super) fn holds_grants_back(&self) -> bool {
        self.is_requeueing || self.is_frozen()
    }

    /// Returns the sweep that will end a waiting request, so that the request must not be granted.
    pub(super) fn sweep_of_wait(&self, position: QueuePosition) -> Option<Revision> {
        self.sweeps
            .iter()
            .find(|(began, sweep)| self.sweep_covers_wait(**began, sweep, position))
            .map(|(began, _)| *began)
    }

    /// Returns the sweep because of which a hold counts as over.
    pub(super) fn swept_by(&self, node: NodeId, hold: &Hold) -> Option<&Sweep> {
        let mut marks = self.sweeps.iter().filter(|(_, sweep)| sweep.target.takes_effect_at_once());
        marks.find(|(began, sweep)| self.sweep_covers_hold(**began, sweep, node, hold)).map(|(_, sweep)| sweep)
    }

    /// Returns whether a sweep covers a named request or its holds.
    pub(super) fn is_request_swept(&self, named: NamedRequest) -> bool {
        let goes =
            |node, hold| self.sweeps.iter().any(|(began, sweep)| self.sweep_covers_hold(*began, sweep, node, hold));
        match named {
            _ if self.sweeps.is_empty() => false,
            NamedRequest::Waiting(position) => self.sweep_of_wait(position).is_some(),
            NamedRequest::Awaiting(wait) => self.sweep_of_await(wait).is_some(),
            NamedRequest::Granted(granted) => {
                let granted = self.granted_requests.get(granted);
                let mut holds = granted.live.nodes().filter_map(|node| Some((node, self.hold(node, granted.owner)?)));
                holds.any(|(node, hold)| goes(node, hold))
            }
        }
    }

    /// Returns whether a new request must be retried later, because a sweep is ending state of its owner or on its
    /// paths.
    pub(super) fn conflicts_with_sweep(&self, request: &Request<'_>) -> bool {
        let session_id = match request.owner {
            Owner::Process(_) => None,
            Owner::Session { session_id, .. } => Some(session_id.as_str()),
        };
        let number = || Some(self.sessions.get(session_id?)?.facts.number);
        let has_sweep = self.sweeps.values().any(|sweep| match &sweep.target {
            Target::Owner(owner, _) => owner == request.owner,
            Target::Session(session) => number() == Some(*session),
            Target::Path(path) => request.claims.iter().any(|claim| claim.path == *path),
            Target::Reset { .. } | Target::Unlisted(_) => false,
        });
        has_sweep || session_id.is_some_and(|session_id| self.has_report(session_id))
    }

    pub(super) fn sweep_covers_wait(&self, began: Revision, sweep: &Sweep, position: QueuePosition) -> bool {
        let Some(waiting) = self.waits.get(&position).filter(|_| position.wait().0 < began) else { return false };
        if !sweep.covers(self, waiting.owner) {
            return false;
        }
        match &sweep.target {
            Target::Unlisted(_) => {
                let report = self.report_of(waiting.owner);
                report.is_some_and(|report| !report.is_pending(waiting.request_id.as_deref()))
            }
            _ => true,
        }
    }

    pub(super) fn sweep_covers_hold(&self, began: Revision, sweep: &Sweep, node: NodeId, hold: &Hold) -> bool {
        if hold.token >= began {
            return false;
        }
        match &sweep.target {
            Target::Path(_) => sweep.node == Some(node),
            Target::Unlisted(_) => {
                let report = self.report_of(hold.owner).filter(|_| sweep.covers(self, hold.owner));
                report.is_some_and(|report| !report.keeps(node, hold.token)) && !hold.is_kept()
            }
            Target::Owner(..) | Target::Session(_) if hold.is_kept() => false,
            _ => sweep.covers(self, hold.owner),
        }
    }
}
