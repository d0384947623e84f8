//! One namespace at work: all that a command may change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::effects::Notes;
use super::history::{Written, WrittenClaim};
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::Place;
use super::tree::NodeId;
use crate::shard_state::ShardState;
use crate::{EventKind, FencingToken, MessageStamp, Mode, Owner, Refusal, Revision, Rules, SessionNumber};

/// A namespace with the parts of its shard that a command may change too.
pub(super) struct Work<'a> {
    pub(super) state: &'a mut ShardState,
    pub(super) deadlines: &'a mut BTreeSet<Deadline>,
    pub(super) wait_ends: &'a mut BTreeSet<WaitEnd>,
    pub(super) sessions: &'a mut BTreeMap<SessionNumber, (u32, Arc<str>)>,
    pub(super) notes: &'a mut Notes,
    pub(super) ns: &'a mut Namespace,
    pub(super) slot: u32,
    /// The wall clock of the entry.
    pub(super) wall_ms: u64,
    /// Those of the entry.
    pub(super) rules: Rules,
}

/// The end of a hold's present phase: in order of time, then of grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline {
    pub(super) at_ms: u64,
    pub(super) token: FencingToken,
    pub(super) slot: u32,
    pub(super) node: NodeId,
}

/// The end of a wait: in order of time, then of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitEnd {
    pub(super) at_ms: u64,
    pub(super) wait: u64,
    pub(super) place: Place,
    pub(super) slot: u32,
}

impl Hold {
    pub(super) fn deadline(&self, slot: u32, node: NodeId) -> Option<Deadline> {
        Some(Deadline { at_ms: self.deadline_ms?.get(), token: self.token, slot, node })
    }
}

impl Work<'_> {
    /// Changes a hold that is there, and keeps its deadline in step.
    pub(super) fn change_hold(&mut self, node: NodeId, owner: OwnerId, change: impl FnOnce(&mut Hold)) {
        let slot = self.slot;
        let mut deadlines = (None, None);
        self.ns.tree.change_hold(node, owner, |hold| {
            deadlines.0 = hold.deadline(slot, node);
            change(hold);
            deadlines.1 = hold.deadline(slot, node);
        });
        if let Some(before) = deadlines.0 {
            self.drop_deadline(before);
        }
        if let Some(after) = deadlines.1 {
            let is_new = self.deadlines.insert(after);
            assert!(is_new, "every hold has a deadline of its own");
        }
    }

    pub(super) fn add_deadline(&mut self, deadline: Option<Deadline>) {
        if let Some(deadline) = deadline {
            let is_new = self.deadlines.insert(deadline);
            assert!(is_new, "every hold has a deadline of its own");
        }
    }

    pub(super) fn drop_deadline(&mut self, deadline: Deadline) {
        let was_there = self.deadlines.remove(&deadline);
        assert!(was_there, "the end of every hold's present phase is in the index");
    }

    /// When a wait ends by itself.
    pub(super) fn wait_end(&self, place: Place, ends_at_ms: Option<u64>) -> Option<WaitEnd> {
        Some(WaitEnd { at_ms: ends_at_ms?, wait: place.wait().0, place, slot: self.slot })
    }

    /// Remembers what happened to an owner, and that somebody may want to hear of it.
    pub(super) fn tell(
        &mut self,
        kind: EventKind,
        revision: Revision,
        owner: OwnerId,
        token: FencingToken,
        claims: &[(NodeId, Mode)],
    ) {
        let name = self.ns.owners.name(owner);
        let claims = claims.iter().map(|(node, mode)| WrittenClaim { path: self.ns.tree.segments(*node), mode: *mode });
        let written = Written {
            revision,
            at_ms: self.wall_ms,
            kind,
            owner: name.to_owner(),
            process_id: name.process_id(),
            fencing_token: Some(token),
            claims: claims.collect(),
        };
        self.ns.history.push(&written, self.ns.bounds.remembered_events);
        self.notes.event(&self.ns.id, revision);
    }

    /// Remembers that a session began or ended.
    pub(super) fn tell_of_session(&mut self, kind: EventKind, session_id: &str, process_id: &str) -> Revision {
        let revision = self.state.next_revision();
        let written = Written {
            revision,
            at_ms: self.wall_ms,
            kind,
            owner: Owner::Session { session_id: session_id.to_owned(), holder: None },
            process_id,
            fencing_token: None,
            claims: vec![],
        };
        self.ns.history.push(&written, self.ns.bounds.remembered_events);
        self.notes.event(&self.ns.id, revision);
        revision
    }

    /// Whether a message of a session, or a call that names one, may go on; false when it is an old message.
    pub(super) fn admit(&mut self, session_id: &str, message: Option<MessageStamp>) -> Result<bool, Refusal> {
        let session = self.ns.sessions.get_mut(session_id);
        let session = session.ok_or_else(|| Refusal::SessionNotFound(session_id.to_owned()))?;
        let Some(message) = message else { return Ok(true) };
        session.check_epoch(message.epoch)?;
        if message.seq <= session.facts.seq {
            return Ok(false);
        }
        Arc::make_mut(&mut session.facts).seq = message.seq;
        Ok(true)
    }
}
