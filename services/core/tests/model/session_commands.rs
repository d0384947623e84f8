//! What the model answers to requests of connected sessions: as to the commands that name the session, but shorter.

use holdfast_core::{
    Acquire, AcquireOutcome, Claim, CommandError, MessageSeq, Owner, Path, Release, ReleaseTarget, Response,
    SessionAcquire, SessionCommand, SessionRequest,
};

use crate::acquire::{CommandResult, distinct_claims};
use crate::random::namespace;
use crate::state::{Granted, Hold, Model};

impl Model {
    /// The id of a session by its number.
    fn session_numbered(&self, command: &SessionCommand) -> Option<String> {
        let mut open = self.sessions.iter().filter(|session| session.is_open && session.number == command.session);
        open.next().filter(|_| command.account == namespace().account).map(|session| session.id.clone())
    }

    /// The acquire that names the session, if the command acquires.
    pub(crate) fn named_acquire(&self, command: &SessionCommand) -> Option<Acquire> {
        let (request, terms) = command.as_acquire()?;
        let SessionAcquire { holder, claims, transition_ms, wait, allow_upgrade, request_id } = request.clone();
        Some(Acquire {
            namespace: namespace(),
            owner: Owner::Session { session_id: self.session_numbered(command)?, holder },
            claims,
            ttl_ms: None,
            transition_ms,
            metadata: terms.metadata.clone(),
            fencing_token: None,
            requested_expires_at_ns: None,
            wait,
            allow_upgrade,
            request_id: Some(request_id),
            attempt: 0,
            message: Some(command.message),
        })
    }

    pub(crate) fn session_command(&mut self, command: &SessionCommand) -> CommandResult {
        let Some(session_id) = self.session_numbered(command) else {
            return Err(CommandError::SessionNotFound(command.session.to_string()));
        };
        match &command.request {
            SessionRequest::Acquire(_) | SessionRequest::AcquireWith { .. } => {
                let acquire = self.named_acquire(command).expect("it acquires");
                self.session_acquire(&acquire)
            }
            SessionRequest::Release { request_id, is_known } => {
                self.session_release(session_id, request_id, *is_known, command.message)
            }
            SessionRequest::Await(_) | SessionRequest::Signal(_) | SessionRequest::ReleaseUnheard { .. } => {
                unreachable!("conditions have a model of their own")
            }
        }
    }

    fn session_acquire(&mut self, acquire: &Acquire) -> CommandResult {
        self.evict_events_for(acquire);
        let before = self.revision;
        let answer = self.acquire(acquire, &[])?;
        let Response::Acquired { outcome: AcquireOutcome::Granted { fencing_token }, .. } = answer else {
            return Ok(answer);
        };
        let who = self.owner_key(&acquire.owner);
        let is_new = |claim: &Claim| {
            self.hold_of(&who, &claim.path).is_some_and(|own| (own.token, own.mode) == (fencing_token, claim.mode))
        };
        let is_plain = fencing_token > before && distinct_claims(&acquire.claims).iter().all(is_new);
        Ok(if is_plain { Response::Granted { fencing_token } } else { answer })
    }

    fn session_release(
        &mut self,
        session_id: String,
        request_id: &str,
        is_known: bool,
        message: MessageSeq,
    ) -> CommandResult {
        let number = self.session(&session_id).map(|session| session.number);
        let is_its = |it: &&Granted| it.id == request_id && Some(it.who.number) == number;
        let frees = self.granted.iter().find(is_its).is_some_and(|it| self.frees_all(it));
        let owner = Owner::Session { session_id, holder: None };
        let what = ReleaseTarget::Request { request_id: request_id.to_owned() };
        let answer = self.release(&Release { namespace: namespace(), owner, what, message: Some(message) })?;
        let is_short = is_known && frees && matches!(answer, Response::Released { released: true, .. });
        Ok(if is_short { Response::Done } else { answer })
    }

    /// All claims of the request are held, and its end leaves no hold at their paths.
    fn frees_all(&self, granted: &Granted) -> bool {
        let others = |path: &Path| {
            let claims = self.granted.iter().filter(|other| other.who == granted.who && other.live.contains(path));
            claims.count() > 1
        };
        let is_only = |path: &Path| {
            let mut holds = self.holds.iter().filter(|hold| hold.path == *path);
            let is_its = |hold: &Hold| hold.who == granted.who && !hold.direct && hold.kept_until_ms <= self.clock_ms;
            holds.all(is_its) && !others(path)
        };
        granted.live.len() == granted.claims.len() && granted.live.iter().all(is_only)
    }
}
