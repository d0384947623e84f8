//! Short ways to say what waits, and to see who is granted.

use holdfast_core::{
    Acquire, AcquireOutcome, Cancel, Claim, Command, CommandError, Effect, Enqueued, FencingToken, LocksCommand, Mode,
    OpenSession, Owner, Path, Query, Reason, Release, ReleaseTarget, Response, SessionView, Wait,
};

use crate::support::{Shard, lock_request, metadata, orders, process, request_id};

/// A path of segments between slashes; the empty text is the root.
pub(crate) fn at(text: &str) -> Path {
    Path(text.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect())
}

pub(crate) fn read(text: &str) -> Claim {
    Claim { path: at(text), mode: Mode::Read }
}

pub(crate) fn write(text: &str) -> Claim {
    Claim { path: at(text), mode: Mode::Write }
}

/// A request of a process for a minute, that does not wait.
pub(crate) fn try_request(owner: &str, claims: &[Claim]) -> Acquire {
    Acquire { claims: claims.to_vec(), ttl_ms: Some(60_000), ..lock_request(owner, Mode::Read) }
}

/// As `try_request`, waiting for ten seconds.
pub(crate) fn wait_request(owner: &str, claims: &[Claim]) -> Acquire {
    Acquire { wait: Wait::For(10_000), ..try_request(owner, claims) }
}

pub(crate) fn session_owner(session_id: &str) -> Owner {
    Owner::Session { session_id: session_id.to_owned(), holder: None }
}

/// A request of a session that waits as long as it takes.
pub(crate) fn session_wait_request(session_id: &str, name: &str, claims: &[Claim]) -> Acquire {
    Acquire {
        owner: session_owner(session_id),
        ttl_ms: None,
        wait: Wait::Unlimited,
        request_id: Some(name.to_owned()),
        ..try_request("", claims)
    }
}

/// The command that opens or resumes a session for ten seconds; `call` names it.
pub(crate) fn open_command(id: &str, resume: bool, call: u64) -> OpenSession {
    OpenSession {
        namespace: orders(),
        session_id: id.to_owned(),
        resume,
        request_id: request_id(call),
        process_id: format!("host of {id}"),
        ttl_ms: 10_000,
        metadata: metadata(&[]),
    }
}

/// That a caller of `request` went away.
pub(crate) fn cancel_command(request: &Acquire) -> LocksCommand {
    LocksCommand::Cancel(Cancel {
        namespace: orders(),
        owner: request.owner.clone(),
        request_id: request.request_id.clone(),
        claims: request.claims.clone(),
        attempt: request.attempt,
    })
}

fn name(owner: &Owner) -> String {
    match owner {
        Owner::Process(process_id) => process_id.clone(),
        Owner::Session { session_id, .. } => session_id.clone(),
    }
}

impl Shard {
    pub(crate) fn run(&mut self, command: LocksCommand) -> Result<Response, CommandError> {
        self.apply(&Command::Locks(command)).outcome
    }

    pub(crate) fn outcome(&mut self, request: Acquire) -> AcquireOutcome {
        match self.try_acquire(request) {
            Ok(Response::Acquired { outcome, .. }) => outcome,
            other => panic!("not an answer to an acquire: {other:?}"),
        }
    }

    pub(crate) fn enqueued(&mut self, request: Acquire) -> Enqueued {
        match self.outcome(request) {
            AcquireOutcome::Enqueued(enqueued) => *enqueued,
            other => panic!("it should wait: {other:?}"),
        }
    }

    /// It has to wait, for that reason.
    pub(crate) fn queued(&mut self, request: Acquire, reason: Reason) {
        assert_eq!(self.enqueued(request).not_granted.reason, reason);
    }

    /// Ends the holds of these paths.
    pub(crate) fn release_paths(&mut self, owner: &str, paths: &[&str]) {
        let paths = paths.iter().map(|path| at(path)).collect();
        self.try_release(process(owner), ReleaseTarget::Paths { paths, fencing_token: None });
    }

    pub(crate) fn try_release(&mut self, owner: Owner, what: ReleaseTarget) -> bool {
        match self.run(LocksCommand::Release(Release { namespace: orders(), owner, what, message: None })) {
            Ok(Response::Released { released, .. }) => released,
            other => panic!("not an answer to a release: {other:?}"),
        }
    }

    pub(crate) fn open_session(&mut self, session_id: &str) -> SessionView {
        self.open_session_as(session_id, false, 1).expect("it is new")
    }

    /// Opens or resumes a session; `call` names it.
    pub(crate) fn open_session_as(&mut self, id: &str, resume: bool, call: u64) -> Result<SessionView, CommandError> {
        let open = open_command(id, resume, call);
        match self.run(LocksCommand::OpenSession(open))? {
            Response::SessionOpened { session, .. } => Ok(session),
            other => panic!("not an answer to an open: {other:?}"),
        }
    }

    /// Who was granted by the last entry without asking in it, in order.
    pub(crate) fn granted_owners(&mut self) -> Vec<String> {
        let settled = self.resolved_waits().into_iter();
        settled.filter(|(_, outcome)| outcome.is_ok()).map(|(owner, _)| owner).collect()
    }

    /// Whose wait was over after the last entry, and how.
    pub(crate) fn resolved_waits(&mut self) -> Vec<(String, Result<FencingToken, Reason>)> {
        let settled = |effect| match effect {
            Effect::WaitResolved { owner, outcome: AcquireOutcome::Granted { fencing_token }, .. } => {
                Some((name(&owner), Ok(fencing_token)))
            }
            Effect::WaitResolved { owner, outcome: AcquireOutcome::Refused(why), .. } => {
                Some((name(&owner), Err(why.reason)))
            }
            _ => None,
        };
        self.core.take_effects().into_iter().filter_map(settled).collect()
    }

    /// Who waits, in the order in which they began to.
    pub(crate) fn waiting_owners(&self) -> Vec<String> {
        match self.query(&Query::Waits { namespace: orders(), after: None, limit: 1_000 }) {
            Ok(Response::Waits { waits, .. }) => waits.iter().map(|wait| name(&wait.owner)).collect(),
            other => panic!("not waits: {other:?}"),
        }
    }

    /// Who holds a path, in order of arrival.
    pub(crate) fn holders(&self, text: &str) -> Vec<String> {
        match self.query(&Query::Lock { namespace: orders(), path: at(text) }) {
            Ok(Response::Lock(lock)) => {
                let holders = lock.write_lock_holder.iter().chain(&lock.read_lock_holders);
                holders.map(|holder| name(&holder.owner)).collect()
            }
            other => panic!("not a lock: {other:?}"),
        }
    }
}
