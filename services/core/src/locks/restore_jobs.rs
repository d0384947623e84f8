//! Restoring what is under way: what goes on over several entries, and who is to be looked at.

use super::bits::Bits;
use super::owner::OwnerKey;
use super::queue::QueuePosition;
use super::restore::{RestoreResult, Restorer, ensure};
use super::snapshot::WatchItem;
use super::sweep::{MAX_SWEEPS, Sweep};
use super::waiting::BlockedOn;
use crate::codec::DecodeError;
use crate::{Revision, WaitId};

impl Restorer {
    pub(super) fn sweep(&mut self, began: Revision, sweep: Sweep) -> RestoreResult {
        let (now, now_ms) = (self.core.state.revision, self.core.state.clock_ms);
        ensure(began <= now && sweep.since_ms <= now_ms, "something began in the future")?;
        let namespace = self.namespace()?;
        ensure(!sweep.target.is_dead() || !namespace.is_frozen(), "a namespace is reset twice at once")?;
        let is_new = namespace.sweeps.insert(began, sweep).is_none();
        ensure(is_new && namespace.sweeps.len() <= MAX_SWEEPS, "something began twice, or too much at once")
    }

    pub(super) fn behind(&mut self, woken: &[(u64, bool)]) -> RestoreResult {
        let namespace = self.namespace()?;
        namespace.behind = true;
        for (wait, upgrade) in woken {
            let place = QueuePosition::of(WaitId(*wait), *upgrade);
            ensure(namespace.waits.contains_key(&place), "somebody is to be looked at who does not wait")?;
            namespace.blocked_index.schedule(place);
        }
        Ok(())
    }

    /// Whether it is in the way is seen when all is there.
    pub(super) fn watch(&mut self, item: WatchItem) -> RestoreResult {
        let place = self.watching.take().ok_or(DecodeError::Snapshot("nobody watches that"))?;
        let namespace = self.namespace()?;
        let node_of = |claim: u32| namespace.waiting(place).nodes.get(claim as usize).copied();
        let watch = match item {
            WatchItem::Hold { claim, above, token } => {
                let node = node_of(claim).and_then(|node| namespace.tree.upward(node).nth(above as usize));
                node.and_then(|node| Some(BlockedOn::Hold(node, namespace.tree.get(node).holds.of_token(token)?.owner)))
            }
            WatchItem::Below { claim, mode } => node_of(claim).map(|node| BlockedOn::Subtree(node, mode)),
            WatchItem::Wait(wait, upgrade) => Some(BlockedOn::Request(QueuePosition::of(WaitId(wait), upgrade))),
        };
        namespace.set_blocked_on(place, watch.ok_or(DecodeError::Snapshot("what is watched is not there"))?);
        Ok(())
    }

    pub(super) fn old(&mut self, began: Revision, processes: &[String]) -> RestoreResult {
        let namespace = self.namespace()?;
        let mut old = Bits::default();
        for process in processes {
            let owner = namespace.owners.find(OwnerKey::Process(process));
            old.insert(owner.ok_or(DecodeError::Snapshot("who goes has nothing"))?.0 as usize);
        }
        let sweep = namespace.sweeps.get_mut(&began).filter(|sweep| sweep.asks_for_age());
        sweep.ok_or(DecodeError::Snapshot("nothing began for those who go"))?.old.add(&old);
        Ok(())
    }
}
