//! A transaction on one namespace: everything that a command may change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_primitives::budget::Budget;

use super::effects::EffectBuffer;
use super::event_view::{EventRecord, OwnerView};
use super::expire::{Deadline, FirstDue, WaitEnd};
use super::hold::Hold;
use super::jobs::JobQueue;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::queue::QueuePosition;
use super::sessions::Session;
use super::sweep::FinishedSweeps;
use super::tree::NodeId;
use crate::shard_common::ShardCommon;
use crate::{CommandError, EventKind, FencingToken, MessageSeq, Mode, Path, Revision, Rules, SessionNumber};

/// A namespace together with the parts of its shard that a command may also change.
pub(super) struct NamespaceTxn<'a> {
    pub(super) common: &'a mut ShardCommon,
    pub(super) due: &'a mut BTreeSet<FirstDue>,
    pub(super) jobs: &'a mut JobQueue,
    pub(super) sessions: &'a mut BTreeMap<SessionNumber, (u32, Arc<str>)>,
    pub(super) effects: &'a mut EffectBuffer,
    /// The remaining budget of the slice.
    pub(super) budget: &'a mut Budget,
    /// The sweep that the response to the current command has to wait for.
    pub(super) awaits: &'a mut Option<Revision>,
    /// Finished sweeps.
    pub(super) finished: &'a mut FinishedSweeps,
    pub(super) ns: &'a mut Namespace,
    pub(super) slot: u32,
    /// The wall clock of the entry.
    pub(super) wall_ms: u64,
    /// The rules of the entry.
    pub(super) rules: Rules,
    /// Whether a caller receives the response.
    pub(super) with_views: bool,
    /// The charge of the account's other namespaces.
    pub(super) other_namespaces_bytes: u64,
}

impl NamespaceTxn<'_> {
    /// Changes an existing hold and, if it then ends at another time, its deadline.
    pub(super) fn change_hold(&mut self, node: NodeId, owner: OwnerId, change: impl FnOnce(&mut Hold)) {
        let mut deadlines = (None, None);
        let mut charges = ((0, 0), (0, 0));
        self.ns.tree.change_hold(node, owner, |hold| {
            (deadlines.0, charges.0) = (hold.deadline(node), hold.charge());
            change(hold);
            (deadlines.1, charges.1) = (hold.deadline(node), hold.charge());
        });
        self.ns.charged.add_hold(charges.1);
        self.ns.charged.remove_hold(charges.0);
        // One command may change a thousand holds, and leave the deadlines of all.
        if deadlines.0 == deadlines.1 {
            return;
        }
        if let Some(before) = deadlines.0 {
            self.remove_deadline(before);
        }
        self.add_deadline(deadlines.1);
    }

    pub(super) fn add_deadline(&mut self, deadline: Option<Deadline>) {
        if let Some(deadline) = deadline {
            let is_new = self.ns.due.holds.add(deadline);
            assert!(is_new, "every hold has a deadline of its own");
            self.update_first_due();
        }
    }

    pub(super) fn remove_deadline(&mut self, deadline: Deadline) {
        let was_there = self.ns.due.holds.take(deadline);
        assert!(was_there, "the end of every hold's present phase is in the index");
        self.update_first_due();
    }

    /// Adds the end of a wait, if the wait is limited.
    pub(super) fn add_wait_end(&mut self, position: QueuePosition, ends_at_ms: Option<u64>) {
        if let Some(at_ms) = ends_at_ms {
            self.ns.due.waits.insert(WaitEnd { at_ms, wait: position.wait().0, position });
            self.update_first_due();
        }
    }

    pub(super) fn remove_wait_end(&mut self, position: QueuePosition, ends_at_ms: Option<u64>) {
        if let Some(at_ms) = ends_at_ms {
            self.ns.due.waits.remove(&WaitEnd { at_ms, wait: position.wait().0, position });
            self.update_first_due();
        }
    }

    /// Updates the shard's index of first deadlines.
    pub(super) fn update_first_due(&mut self) {
        let first = self.ns.earliest_due(self.slot);
        let before = std::mem::replace(&mut self.ns.first_due, first);
        if before == first {
            return;
        }
        if let Some(before) = before {
            self.due.remove(&before);
        }
        self.due.extend(first);
    }

    /// Returns a limit introduced by rules 2; before them there is none.
    pub(super) fn since_rules_two(&self, max: u64) -> u64 {
        if self.rules >= Rules::TWO { max } else { u64::MAX }
    }

    /// Records an event of an owner, and the effect that notifies readers of events.
    pub(super) fn record_event(
        &mut self,
        kind: EventKind,
        revision: Revision,
        owner: OwnerId,
        token: FencingToken,
        claims: &[(NodeId, Mode)],
    ) {
        let max_bytes = self.since_rules_two(self.ns.limits.max_event_bytes);
        let name = self.ns.owners.name(owner);
        let event = EventRecord {
            revision,
            at_ms: self.wall_ms,
            kind,
            owner_id: owner,
            owner: name.view(),
            process_id: name.process_id(),
            fencing_token: Some(token),
        };
        let claims = claims.iter().map(|(node, mode)| (self.ns.tree.path(*node), *mode));
        self.ns.history.push(&event, claims, self.ns.bounds.retained_events, max_bytes);
        self.effects.event(&self.ns.id, revision);
    }

    /// Records an event of a condition, and the effect that notifies readers of events. The claims are the path of the
    /// lock and, unless it is empty, the name of the condition.
    pub(super) fn record_condition_event(
        &mut self,
        (kind, revision): (EventKind, Revision),
        owner: OwnerId,
        token: FencingToken,
        (path, condition): (&Path, &str),
    ) {
        let name = self.ns.owners.name(owner);
        let event = EventRecord {
            revision,
            at_ms: self.wall_ms,
            kind,
            owner_id: owner,
            owner: name.view(),
            process_id: name.process_id(),
            fencing_token: Some(token),
        };
        let named = Path::flat(condition);
        let paths: Vec<&Path> = std::iter::once(path).chain((!condition.is_empty()).then_some(&named)).collect();
        let claims = paths.into_iter().map(|path| (path, Mode::Write));
        self.ns.history.push(&event, claims, self.ns.bounds.retained_events, self.ns.limits.max_event_bytes);
        self.effects.event(&self.ns.id, revision);
    }

    /// Records the start or end of a session, unless the log has the event.
    pub(super) fn record_session_event(&mut self, kind: EventKind, session_id: &str, process_id: &str) -> Revision {
        let max_bytes = self.since_rules_two(self.ns.limits.max_event_bytes);
        let revision = self.common.next_revision();
        if self.ns.copied_to.is_some() {
            return revision;
        }
        let event = EventRecord {
            revision,
            at_ms: self.wall_ms,
            kind,
            owner_id: NO_OWNER,
            owner: OwnerView::Session { session_id, holder: None },
            process_id,
            fencing_token: None,
        };
        let claims: [(&Path, Mode); 0] = [];
        self.ns.history.push(&event, claims.into_iter(), self.ns.bounds.retained_events, max_bytes);
        self.effects.event(&self.ns.id, revision);
        revision
    }

    /// Checks the epoch and sequence of a session message. Returns false for an old message. A call without a message
    /// passes if the session exists.
    pub(super) fn check_sequence(
        &mut self,
        session_id: &str,
        message: Option<MessageSeq>,
    ) -> Result<bool, CommandError> {
        let session = self.session_for(session_id)?;
        let is_next = session.is_next(message)?;
        if let Some(message) = message.filter(|_| is_next) {
            Arc::make_mut(&mut session.facts).seq = message.seq;
        }
        Ok(is_next)
    }

    /// Returns an open session.
    pub(super) fn session_for(&mut self, session_id: &str) -> Result<&mut Session, CommandError> {
        let session = self.ns.sessions.get_mut(session_id);
        session.ok_or_else(|| CommandError::SessionNotFound(session_id.to_owned()))
    }
}
