//! Restores unfinished work: sweeps that span several entries, and the requests to evaluate.

use super::bit_set::BitSet;
use super::owner::OwnerKey;
use super::queue::QueuePosition;
use super::restore::{RestoreResult, Restorer, ensure};
use super::snapshot_items::BlockedOnItem;
use super::sweep::{MAX_SWEEPS, Sweep};
use super::waiting::BlockedOn;
use crate::codec::DecodeError;
use crate::{Revision, WaitId};

impl Restorer {
    pub(super) fn sweep(&mut self, began: Revision, sweep: Sweep) -> RestoreResult {
        let (now, now_ms) = (self.core.common.revision, self.core.common.clock_ms);
        ensure(began <= now && sweep.since_ms <= now_ms, "something began in the future")?;
        let namespace = self.namespace()?;
        ensure(!sweep.target.is_reset() || !namespace.is_frozen(), "a namespace is reset twice at once")?;
        let is_new = namespace.sweeps.insert(began, sweep).is_none();
        ensure(is_new && namespace.sweeps.len() <= MAX_SWEEPS, "something began twice, or too much at once")
    }

    pub(super) fn pending_grants(&mut self, woken: &[(u64, bool)]) -> RestoreResult {
        let namespace = self.namespace()?;
        namespace.has_pending_grants = true;
        for (wait, upgrade) in woken {
            let place = QueuePosition::of(WaitId(*wait), *upgrade);
            ensure(namespace.waits.contains_key(&place), "somebody is to be looked at who does not wait")?;
            namespace.blocked_index.schedule(place);
        }
        Ok(())
    }

    /// Whether it blocks the request is checked once the namespace is complete.
    pub(super) fn blocked_on(&mut self, item: BlockedOnItem) -> RestoreResult {
        let place = self.blocked_wait.take().ok_or(DecodeError::Snapshot("nobody watches that"))?;
        let namespace = self.namespace()?;
        let node_of = |claim: u32| namespace.waiting(place).nodes.get(claim as usize).copied();
        let watch = match item {
            BlockedOnItem::Hold { claim, above, token } => {
                let node = node_of(claim).and_then(|node| namespace.tree.self_and_ancestors(node).nth(above as usize));
                node.and_then(|node| Some(BlockedOn::Hold(node, namespace.tree.get(node).holds.of_token(token)?.owner)))
            }
            BlockedOnItem::Subtree { claim, mode } => node_of(claim).map(|node| BlockedOn::Subtree(node, mode)),
            BlockedOnItem::Request(wait, upgrade) => Some(BlockedOn::Request(QueuePosition::of(WaitId(wait), upgrade))),
        };
        namespace.set_blocked_on(place, watch.ok_or(DecodeError::Snapshot("what is watched is not there"))?);
        Ok(())
    }

    pub(super) fn old_processes(&mut self, began: Revision, processes: &[String]) -> RestoreResult {
        let namespace = self.namespace()?;
        let mut old = BitSet::default();
        for process in processes {
            let owner = namespace.owners.find(OwnerKey::Process(process));
            old.insert(owner.ok_or(DecodeError::Snapshot("who goes has nothing"))?.0 as usize);
        }
        let sweep = namespace.sweeps.get_mut(&began).filter(|sweep| sweep.has_age_limit());
        sweep.ok_or(DecodeError::Snapshot("nothing began for those who go"))?.old_processes.union_with(&old);
        Ok(())
    }
}
