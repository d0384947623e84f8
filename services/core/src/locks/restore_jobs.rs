//! Restores unfinished work: sweeps that span several entries, sessions that end, and the requests to evaluate.

use std::sync::Arc;

use holdfast_primitives::ask::{Asks, AsksItem};

use super::bit_set::BitSet;
use super::hold::AtLeast;
use super::owner::OwnerKey;
use super::queue::QueuePosition;
use super::restore::{AttemptsTarget, RESTORE_CONTEXT, RestoreResult, Restorer, ensure, facts_of};
use super::session_end::EndingSession;
use super::sessions::Session;
use super::snapshot_items::{BlockedOnItem, EndingSessionItem};
use super::sweep::{MAX_SWEEPS, Sweep};
use super::waiting::BlockedOn;
use crate::codec::DecodeError;
use crate::{FencingToken, Path, Revision, SessionNumber, WaitId};

impl Restorer {
    pub(super) fn ending_session(&mut self, item: EndingSessionItem<String>) -> RestoreResult {
        let (now, now_ms) = (self.core.common.revision, self.core.common.clock_ms);
        let number = item.session.number;
        ensure(number <= now && item.since_ms <= now_ms, "a session ended in the future")?;
        let (session_id, facts) = facts_of(item.session);
        let ending = EndingSession {
            session_id,
            session: Session::new(facts),
            reason: item.reason,
            since_ms: item.since_ms,
            after_wait: item.after_wait.map(|(wait, upgrade)| QueuePosition::of(WaitId(wait), upgrade)),
            after_path: item.after_path.map(Path),
        };
        let is_open = self.core.sessions.contains_key(&number);
        self.namespace()?.charged.sessions += ending.session.facts.charge(&ending.session_id);
        let is_new = self.namespace()?.ending_sessions.insert(number, ending).is_none();
        ensure(is_new && !is_open, "a session comes twice")
    }

    pub(super) fn sweep(&mut self, began: Revision, sweep: Sweep) -> RestoreResult {
        let (now, now_ms) = (self.core.common.revision, self.core.common.clock_ms);
        ensure(began <= now && sweep.since_ms <= now_ms, "something began in the future")?;
        let namespace = self.namespace()?;
        ensure(!sweep.target.is_reset() || !namespace.is_frozen(), "a namespace is reset twice at once")?;
        let is_new = namespace.sweeps.insert(began, sweep).is_none();
        ensure(is_new && namespace.sweeps.len() <= MAX_SWEEPS, "something began twice, or too much at once")
    }

    pub(super) fn report(&mut self, number: SessionNumber, pending: &[String]) -> RestoreResult {
        let report = Arc::make_mut(self.session_numbered(number)?.report.get_or_insert_default());
        pending.iter().for_each(|request_id| report.add_pending(request_id));
        Ok(())
    }

    pub(super) fn reported_permits(&mut self, number: SessionNumber, tokens: &[FencingToken]) -> RestoreResult {
        let report = self.session_numbered(number)?.report.as_mut();
        let report = Arc::make_mut(report.ok_or(DecodeError::Snapshot("a session reports nothing"))?);
        tokens.iter().for_each(|token| report.list_permits(*token));
        Ok(())
    }

    pub(super) fn reported(&mut self, is_listed: bool, is_claimed: bool) -> RestoreResult {
        let Some(AttemptsTarget::Hold(node, owner)) = self.attempts_target else {
            return Err(DecodeError::Snapshot("nothing is reported"));
        };
        let namespace = self.namespace()?;
        let token = namespace.hold(node, owner).map(|hold| hold.token);
        let report = namespace.session_mut(owner).and_then(|session| session.report.as_mut());
        let (token, report) = token.zip(report).ok_or(DecodeError::Snapshot("a session reports nothing"))?;
        let report = Arc::make_mut(report);
        if is_listed {
            report.list(node, token);
        }
        if is_claimed {
            report.claim(node, token);
        }
        Ok(())
    }

    pub(super) fn hold_marks(&mut self, at_least: Option<AtLeast>, asks: AsksItem) -> RestoreResult {
        let (target, slot) = (self.attempts_target, self.slot);
        let (Some(AttemptsTarget::Hold(node, owner)), Some(slot)) = (target, slot) else {
            return Err(DecodeError::Snapshot("no hold is kept or asked for"));
        };
        let asks = Asks::restored(asks, &mut self.last_ask);
        let is_kept = at_least.is_some_and(|at_least| at_least.is_released);
        let hold = self.namespace()?.hold(node, owner);
        ensure(!is_kept || hold.is_some_and(|hold| !hold.is_held() && !hold.direct), "what is kept is held")?;
        let mut work = self.core.txn_in(slot, &RESTORE_CONTEXT);
        work.change_hold(node, owner, |hold| hold.change_extras(|rare| (rare.at_least, rare.asks) = (at_least, asks)));
        Ok(())
    }

    pub(super) fn wait_at_least(&mut self, at_least_ms: u32) -> RestoreResult {
        let Some(AttemptsTarget::Wait(position)) = self.attempts_target else {
            return Err(DecodeError::Snapshot("nothing waits to be kept"));
        };
        let namespace = self.namespace()?;
        let waiting = namespace.waiting_mut(position);
        let before = waiting.charge();
        waiting.terms.at_least_ms = at_least_ms;
        let after = waiting.charge();
        namespace.charged.waiting = namespace.charged.waiting - before + after;
        Ok(())
    }

    fn session_numbered(&mut self, number: SessionNumber) -> Result<&mut Session, DecodeError> {
        let slot = self.slot;
        let session_id = self.core.sessions.get(&number).filter(|(there, _)| Some(*there) == slot);
        let session_id = session_id.map(|(_, session_id)| Arc::clone(session_id));
        let session = session_id.and_then(|id| self.namespace().ok()?.sessions.get_mut(&id));
        session.ok_or(DecodeError::Snapshot("a report has no session"))
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
