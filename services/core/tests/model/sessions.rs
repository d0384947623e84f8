//! What the model answers to what comes of sessions.

use holdfast_core::{
    CommandError, Effect, EventKind, MessageSeq, OpenSession, Owner, Response, SessionEnd, SessionView,
};

use crate::acquire::CommandResult;
use crate::quota::quota_error;
use crate::state::{Model, OwnerKey, Session};

impl Model {
    pub(crate) fn check_sequence(&mut self, id: &str, message: Option<MessageSeq>) -> Result<bool, CommandError> {
        let session = self.session_mut(id).ok_or_else(|| CommandError::SessionNotFound(id.to_owned()))?;
        match message {
            None => Ok(true),
            Some(message) if message.epoch < session.epoch => Err(CommandError::Superseded { epoch: session.epoch }),
            Some(message) if message.epoch > session.epoch => Err(CommandError::Malformed(String::new())),
            Some(message) if message.seq <= session.seq => Ok(false),
            Some(message) => {
                session.seq = message.seq;
                Ok(true)
            }
        }
    }

    pub(crate) fn open(&mut self, open: &OpenSession) -> CommandResult {
        let id = &open.session_id;
        match (self.session(id).map(|session| session.opening == open.request_id), open.resume) {
            (Some(true), _) => {}
            (Some(false), false) => return Err(CommandError::IdTaken),
            (None, true) => return Err(CommandError::SessionNotFound(id.clone())),
            (Some(false), true) => {
                self.discard_report(id);
                let epoch = self.next_revision();
                let mut after = self.clone();
                after.session_mut(id).expect("it is open").metadata = open.metadata.clone();
                let more = after.state_bytes().sessions.saturating_sub(self.state_bytes().sessions);
                let fits = self.has_capacity(more);
                let session = self.session_mut(id).expect("it is open");
                (session.epoch, session.seq, session.opening) = (epoch, 0, open.request_id);
                (session.process_id, session.ttl_ms) = (open.process_id.clone(), open.ttl_ms);
                if fits {
                    session.metadata = open.metadata.clone();
                }
                self.opened(id);
            }
            (None, false) => {
                if self.is_frozen() {
                    return Err(CommandError::Busy(String::new()));
                }
                let open_now = self.sessions.iter().filter(|session| session.is_open).count() as u64;
                if open_now >= self.limits.max_sessions_per_namespace {
                    return Err(quota_error("sessions"));
                }
                self.check_capacity_to_open(open)?;
                let number = self.next_revision();
                self.sessions.push(Session {
                    id: id.clone(),
                    number,
                    epoch: number,
                    seq: 0,
                    opening: open.request_id,
                    process_id: open.process_id.clone(),
                    ttl_ms: open.ttl_ms,
                    metadata: open.metadata.clone(),
                    opened_at_ms: self.wall_ms,
                    is_open: true,
                    report: None,
                });
                let owner = Owner::Session { session_id: id.clone(), holder: None };
                self.event(EventKind::SessionOpened, &OwnerKey { owner, number }, None, vec![]);
                self.opened(id);
            }
        }
        let session = self.session_view(self.session(id).expect("it is open"));
        Ok(Response::SessionOpened { session, resumed: open.resume })
    }

    fn opened(&mut self, id: &str) {
        let session = self.session(id).expect("it is open");
        let (number, epoch, ttl_ms) = (session.number, session.epoch, session.ttl_ms);
        let (namespace, session_id) = (self.namespace.clone(), id.to_owned());
        self.effects.push(Effect::SessionOpened { namespace, number, session_id, epoch, ttl_ms });
    }

    pub(crate) fn session_view(&self, session: &Session) -> SessionView {
        SessionView {
            session_id: session.id.clone(),
            number: session.number,
            epoch: session.epoch,
            process_id: session.process_id.clone(),
            ttl_ms: session.ttl_ms,
            remaining_ms: session.ttl_ms,
            metadata: session.metadata.clone(),
            opened_at_ms: session.opened_at_ms,
            holds: self.holds.iter().filter(|hold| hold.who.number == session.number).count() as u64,
            waiting: self.waits.iter().filter(|wait| wait.who.number == session.number).count() as u64,
        }
    }

    pub(crate) fn close(&mut self, id: &str, message: Option<MessageSeq>) -> CommandResult {
        if !self.check_sequence(id, message)? {
            return Ok(Response::Ignored);
        }
        self.end_session(id, SessionEnd::Closed);
        self.run_grant_loop();
        Ok(Response::Done)
    }

    pub(crate) fn expire(&mut self, numbers: &[u64], seen: u64) -> Response {
        let mut ended = vec![];
        for number in numbers {
            let session = self.sessions.iter().find(|session| session.is_open && session.number == *number);
            if let Some(id) = session.filter(|session| session.epoch <= seen).map(|session| session.id.clone()) {
                self.end_session(&id, SessionEnd::Expired);
                ended.push(*number);
            }
        }
        self.run_grant_loop();
        Response::SessionsExpired { ended }
    }
}
