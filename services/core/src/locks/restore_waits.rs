//! Restores requests that wait for locks, and owners that await conditions of locks.

use holdfast_primitives::attempts::Attempts;

use super::acquire::distinct_claims;
use super::conditions::AwaitItem;
use super::queue::QueuePosition;
use super::restore::{AttemptsTarget, RESTORE_CONTEXT, RestoreResult, Restorer, ensure, owner_of};
use super::snapshot_items::{OwnerItem, WaitItem};
use super::tree::NodeId;
use super::waiting::{BlockedOn, WaitingRequest, claim_set_of};
use crate::codec::DecodeError;
use crate::{Claim, Mode, Path, WaitId};

impl Restorer {
    pub(super) fn wait(&mut self, item: WaitItem<String>) -> RestoreResult {
        let now = self.core.common.revision;
        let (mut came_from, signals) = self.past.take().unwrap_or_default();
        ensure(came_from.len() <= 1 && signals.is_empty(), "a request came from several holds")?;
        let came_from = came_from.pop();
        let namespace = self.namespace()?;
        let claims: Vec<Claim> = item.claims.into_iter().map(|(path, mode)| Claim { path: Path(path), mode }).collect();
        ensure(
            !claims.is_empty() && distinct_claims(&claims) == claims,
            "a request claims nothing, or something twice",
        )?;
        ensure(item.wait <= now && now < 1 << 53, "a request is from the future")?;
        let position = QueuePosition::of(WaitId(item.wait), item.upgrade);
        ensure(!namespace.waits.contains_key(&position), "a waiting request comes twice")?;
        let is_process = matches!(item.owner, OwnerItem::Process(_));
        ensure(!is_process || item.terms.ttl_ms.is_some(), "a process waits for what would never end")?;
        let owner = owner_of(namespace, item.owner, false)?;
        let nodes: Vec<NodeId> = claims.iter().map(|claim| namespace.tree.ensure_path(&claim.path)).collect();
        if item.upgrade {
            let hold = nodes.first().and_then(|node| namespace.hold(*node, owner));
            ensure(claims.len() == 1 && hold.is_some(), "a request waits to change what is not held")?;
        }
        let is_taken = item.request_id.as_deref().is_some_and(|request_id| namespace.has_request(owner, request_id));
        ensure(!is_taken, "a request comes twice")?;
        if let Some(came_from) = &came_from {
            let is_one = claims.len() == 1 && claims.iter().all(|claim| claim.mode == Mode::Write) && !item.upgrade;
            let stage = claims.first().and_then(|claim| namespace.conditions.stage(&claim.path, came_from.token));
            ensure(is_one && stage.is_none(), "a lock that was given up is waited for twice")?;
        }
        namespace.add_waiting(
            position,
            WaitingRequest {
                owner,
                claim_set: claim_set_of(nodes.iter().copied().zip(claims.iter().map(|claim| claim.mode))),
                claims,
                nodes,
                terms: item.terms,
                request_id: item.request_id.map(Into::into),
                attempts: Attempts::of(item.attempt),
                ends_at_ms: item.ends_at_ms,
                since_ms: item.since_ms,
                blocked_on: BlockedOn::Unknown,
                came_from: came_from.map(Box::new),
            },
        );
        namespace.count_wait();
        let slot = self.slot.ok_or(DecodeError::Snapshot("a request has no namespace"))?;
        self.core.txn_in(slot, &RESTORE_CONTEXT).add_wait_end(position, item.ends_at_ms);
        self.attempts_target = Some(AttemptsTarget::Wait(position));
        self.blocked_wait = Some(position);
        Ok(())
    }

    pub(super) fn awaits(&mut self, item: AwaitItem<String>) -> RestoreResult {
        let now = self.core.common.revision;
        let namespace = self.namespace()?;
        let (owner, wait, mut awaits) = item.into_await(now)?;
        let is_next = namespace.conditions.iter().last().is_none_or(|(last, _)| last < wait);
        ensure(is_next, "awaits are out of order")?;
        awaits.owner = owner_of(namespace, owner, false)?;
        let is_process = namespace.owners.name(awaits.owner).session().is_none();
        let has_limits = awaits.terms.ttl_ms.is_some() && awaits.ends_at_ms.is_some() && awaits.relock_ms.is_some();
        ensure(!is_process || has_limits, "a process awaits what would never end")?;
        ensure(namespace.conditions.stage(&awaits.path, awaits.from_token).is_none(), "a lock was given up twice")?;
        let taken = awaits.request_id.as_deref().filter(|request_id| namespace.has_request(awaits.owner, request_id));
        ensure(taken.is_none(), "a request comes twice")?;
        ensure(!awaits.call.is_some_and(|call| namespace.conditions.is_called_at(call.at)), "two calls were one")?;
        namespace.add_await(wait, awaits);
        namespace.count_wait();
        self.attempts_target = Some(AttemptsTarget::Await(wait));
        Ok(())
    }
}
