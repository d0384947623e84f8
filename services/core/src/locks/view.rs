//! Views of locks, holders, waiting requests and sessions.

use holdfast_primitives::reply_size::ByteBudget;

use super::detached::filled;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::queue::QueuePosition;
use super::tree::NodeId;
use crate::{Blocker, Claim, HolderView, LockView, Mode, Path, Phase, Revision, WaitView};

impl Namespace {
    /// Returns the view of a lock with as many readers as most responses contain, as far as they fit; `own` is among
    /// them if it is a reader. `revision` is the shard's.
    pub(super) fn view(&self, path: &Path, own: OwnerId, left: &mut ByteBudget, revision: Revision) -> LockView {
        let (view, holders) = self.unfilled_view(path, own, self.bounds.max_readers_in_reply, revision);
        filled(view, holders, left)
    }

    /// Returns the view of a lock for anybody.
    pub(super) fn bounded_view(&self, path: &Path, revision: Revision) -> LockView {
        self.view(path, NO_OWNER, &mut ByteBudget::for_reply(0), revision)
    }

    /// Returns the holder of a path: the writer, or the first reader.
    pub(super) fn current_owner(&self, path: &Path) -> Option<HolderView> {
        let node = self.tree.find(path)?;
        self.tree.get(node).holds.as_slice().first().map(|hold| self.holder_view(node, hold))
    }

    pub(super) fn holder_view(&self, node: NodeId, hold: &Hold) -> HolderView {
        self.holder_ref(node, hold).view()
    }

    /// Returns a waiting request that blocks a claim, with its first conflicting claim.
    pub(super) fn waiting_blocker(&self, position: QueuePosition, claim: &Claim) -> Option<Blocker> {
        let waiting = self.waiting(position);
        let related = |other: &Path| other.is_prefix_of(&claim.path) || claim.path.is_prefix_of(other);
        let conflicts =
            |other: &&Claim| (other.mode == Mode::Write || claim.mode == Mode::Write) && related(&other.path);
        let in_the_way = waiting.claims.iter().find(conflicts)?;
        let owner = self.owners.name(waiting.owner);
        let holder = HolderView {
            owner: owner.to_owner(),
            process_id: owner.process_id().to_owned(),
            mode: in_the_way.mode,
            fencing_token: 0,
            locked_at_ms: waiting.since_ms,
            deadline_ms: waiting.ends_at_ms,
            requested_expires_at_ns: waiting.terms.requested_expires_at_ns,
            phase: Phase::Held,
            metadata: waiting.terms.metadata.get(),
            release_requested: None,
        };
        Some(Blocker { path: in_the_way.path.clone(), waiting: true, holder })
    }

    pub(super) fn wait_view(&self, position: QueuePosition) -> WaitView {
        let waiting = self.waiting(position);
        WaitView {
            wait: position.wait(),
            owner: self.owners.name(waiting.owner).to_owner(),
            request_id: waiting.request_id.as_deref().map(str::to_owned),
            claims: waiting.claims.clone(),
            upgrade: position.is_upgrade(),
            attempt: waiting.attempts.highest(),
            ends_at_ms: waiting.ends_at_ms,
        }
    }
}
