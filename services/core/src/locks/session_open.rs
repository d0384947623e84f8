//! Opens and resumes sessions.

use std::sync::Arc;

use holdfast_primitives::metadata::{EncodedMetadata, metadata_charge};

use super::owner::{OwnerId, OwnerName};
use super::sessions::{Session, SessionFacts};
use super::txn::NamespaceTxn;
use crate::{CommandError, EventKind, OpenSession, Response};

impl NamespaceTxn<'_> {
    /// Opens a session. Every opening creates a new epoch: messages of other connections are rejected from then on.
    pub(super) fn open_session(&mut self, open: &OpenSession) -> Result<Response, CommandError> {
        let session = self.ns.sessions.get(open.session_id.as_str());
        let is_repeat = session.map(|session| session.facts.opening == open.request_id);
        match (is_repeat, open.resume) {
            (Some(true), _) => {}
            (Some(false), true) => self.resume_session(open),
            (Some(false), false) => return Err(CommandError::IdTaken),
            (None, true) => return Err(CommandError::SessionNotFound(open.session_id.clone())),
            (None, false) => {
                if open.ttl_ms == 0 {
                    return Err(CommandError::Malformed("a session has a time to live".into()));
                }
                if self.ns.is_frozen() {
                    return Err(CommandError::Busy("the namespace is being reset".into()));
                }
                self.check_session_count()?;
                self.check_capacity_for_session(open)?;
                self.begin_session(open);
            }
        }
        let session = self.ns.view_of_session(&open.session_id, &self.ns.sessions[open.session_id.as_str()]);
        Ok(Response::SessionOpened { session, resumed: open.resume })
    }

    fn begin_session(&mut self, open: &OpenSession) {
        let session_id: Arc<str> = open.session_id.as_str().into();
        let number = self.record_session_event(EventKind::SessionOpened, &session_id, &open.process_id);
        let facts = SessionFacts {
            number,
            epoch: number,
            seq: 0,
            opening: open.request_id,
            process_id: open.process_id.as_str().into(),
            ttl_ms: open.ttl_ms,
            metadata: EncodedMetadata::of(&open.metadata),
            opened_at_ms: self.wall_ms,
        };
        self.sessions.insert(number, (self.slot, Arc::clone(&session_id)));
        self.effects.opened(&self.ns.id, &session_id, (number, number, open.ttl_ms));
        self.ns.charged.sessions += facts.charge(&session_id);
        self.ns.sessions.insert(session_id, Session::new(facts));
        let (usage, sessions) = (&mut self.ns.usage, self.ns.sessions.len() as u64);
        usage.sessions_opened = usage.sessions_opened.saturating_add(1);
        usage.peak_sessions = usage.peak_sessions.max(sessions);
    }

    fn resume_session(&mut self, open: &OpenSession) {
        self.discard_report(&open.session_id);
        let epoch = self.common.next_revision();
        let Some((session_id, _)) = self.ns.sessions.get_key_value(open.session_id.as_str()) else { return };
        let session_id = Arc::clone(session_id);
        let metadata = EncodedMetadata::of(&open.metadata);
        let kept = self.ns.sessions[&session_id].facts.metadata.len();
        let fits = self.has_capacity(metadata_charge(metadata.len()).saturating_sub(metadata_charge(kept)));
        let Some(session) = self.ns.sessions.get_mut(&session_id) else { return };
        self.ns.charged.sessions -= session.facts.charge(&session_id);
        let facts = Arc::make_mut(&mut session.facts);
        facts.epoch = epoch;
        facts.seq = 0;
        facts.opening = open.request_id;
        if open.ttl_ms > 0 {
            facts.ttl_ms = open.ttl_ms;
        }
        // Without capacity for the new metadata, the old metadata stays.
        if fits {
            facts.metadata = metadata;
        }
        let is_renamed = *facts.process_id != *open.process_id;
        if is_renamed {
            facts.process_id = open.process_id.as_str().into();
        }
        self.ns.charged.sessions += facts.charge(&session_id);
        let (number, ttl_ms, process_id) = (facts.number, facts.ttl_ms, Arc::clone(&facts.process_id));
        // There may be many, and they know the process already unless it is another one.
        let owners: Vec<OwnerId> = if is_renamed { session.owners.iter().copied().collect() } else { Vec::new() };
        self.ns.spend(owners.len());
        for owner in owners {
            if let OwnerName::Session(name) = self.ns.owners.name_mut(owner) {
                name.process_id = Arc::clone(&process_id);
            }
        }
        self.effects.opened(&self.ns.id, &session_id, (number, epoch, ttl_ms));
    }
}
