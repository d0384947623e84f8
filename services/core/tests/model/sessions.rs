//! What the model answers to what comes of sessions.

use holdfast_core::{
    CommandError, Effect, EventKind, LockInfo, LostHold, MessageSeq, OpenSession, Owner, Path, Reason, ReportedHold,
    Response, SessionEnd, SessionView,
};

use crate::acquire::CommandResult;
use crate::quota::quota_error;
use crate::state::{Granted, Hold, Model, OwnerKey, Session, Wait as Waiting};
use crate::sweeps::Target;

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
                let epoch = self.next_revision();
                let mut after = self.clone();
                after.session_mut(id).expect("it is open").metadata = open.metadata.clone();
                let more = after.state_bytes().sessions.saturating_sub(self.state_bytes().sessions);
                let has_room = self.has_capacity(more);
                let session = self.session_mut(id).expect("it is open");
                (session.epoch, session.seq, session.opening) = (epoch, 0, open.request_id);
                (session.process_id, session.ttl_ms) = (open.process_id.clone(), open.ttl_ms);
                if has_room {
                    session.metadata = open.metadata.clone();
                }
                self.opened(id);
            }
            (None, false) => {
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

    pub(crate) fn lock_info(&mut self, info: &LockInfo) -> CommandResult {
        if !self.check_sequence(&info.session_id, info.message)? {
            let number = self.session(&info.session_id).expect("it is open").number;
            self.await_sweep(&Target::Unlisted(number, info.clone()));
            return Ok(Response::Ignored);
        }
        let number = self.session(&info.session_id).expect("it is open").number;
        let pending = |id: Option<&String>| id.is_some_and(|id| info.pending.contains(id));
        let of_pending = |model: &Self, who: &OwnerKey, path: &Path| {
            let mut granted = model.granted.iter();
            granted.any(|granted| granted.who == *who && granted.live.contains(path) && pending(Some(&granted.id)))
        };
        let mut unlisted: Vec<(Path, u64, OwnerKey)> = self
            .holds
            .iter()
            .filter(|hold| hold.who.number == number && !of_pending(self, &hold.who, &hold.path))
            .filter(|hold| {
                let is_it =
                    |it: &&ReportedHold| (&it.path, it.mode, it.fencing_token) == (&hold.path, hold.mode, hold.token);
                !info.held.iter().any(|it| is_it(&it))
            })
            .map(|hold| (hold.path.clone(), hold.token, hold.who.clone()))
            .collect();
        unlisted.sort();
        let goes = |wait: &Waiting| wait.who.number == number && !pending(wait.request_id.as_ref());
        let things = unlisted.len() + self.waits.iter().filter(|wait| goes(wait)).count();
        let Some(left) = self.ends_left.checked_sub(things) else {
            self.begin_sweep(Target::Unlisted(number, info.clone()))?;
            let lost = self.lost_holds_of(number, info, &self.clone());
            return Ok(Response::Reconciled { lost, ended_holds: 0, ended_waits: 0 });
        };
        self.ends_left = left;
        let mut ended_waits = 0;
        while let Some(index) = self.waits.iter().position(goes) {
            self.end_wait(index, Reason::Ended);
            ended_waits += 1;
        }
        let ended_holds = unlisted.len() as u64;
        unlisted.iter().for_each(|(path, _, who)| self.release_hold(who, path));
        let before = self.clone();
        self.run_grant_loop();
        Ok(Response::Reconciled { lost: self.lost_holds_of(number, info, &before), ended_holds, ended_waits })
    }

    /// What the client did not have before somebody else was let in.
    fn lost_holds_of(&self, number: u64, info: &LockInfo, before: &Self) -> Vec<LostHold> {
        let of_pending = |hold: &Hold| {
            let is_its = |granted: &&Granted| granted.who == hold.who && granted.live.contains(&hold.path);
            before.granted.iter().filter(is_its).any(|granted| info.pending.contains(&granted.id))
        };
        let is_known = |it: &&ReportedHold| {
            before.holds.iter().any(|hold| {
                let is_it = (hold.mode, hold.token) == (it.mode, it.fencing_token);
                hold.who.number == number && hold.path == it.path && (is_it || of_pending(hold))
            })
        };
        let lost = info.held.iter().filter(|it| !is_known(it)).map(|it| LostHold {
            path: it.path.clone(),
            fencing_token: it.fencing_token,
            current_owner: self.holds.iter().find(|hold| hold.path == it.path).map(|hold| self.holder_view(hold)),
        });
        lost.collect()
    }

    /// What a session lost of what its client believes to hold.
    pub(crate) fn lost_holds(&self, number: u64, held: &[ReportedHold]) -> Vec<LostHold> {
        let has = |it: &&ReportedHold| {
            let is_it = |hold: &Hold| (&hold.path, hold.mode, hold.token) == (&it.path, it.mode, it.fencing_token);
            self.holds.iter().any(|hold| hold.who.number == number && is_it(hold))
        };
        let lost = held.iter().filter(|it| !has(it)).map(|it| LostHold {
            path: it.path.clone(),
            fencing_token: it.fencing_token,
            current_owner: self.holds.iter().find(|hold| hold.path == it.path).map(|hold| self.holder_view(hold)),
        });
        lost.collect()
    }
}
