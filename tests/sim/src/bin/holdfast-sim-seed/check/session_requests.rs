//! Requests of connected sessions, in the words of single calls about conditions.

use std::collections::BTreeMap;

use holdfast_core::{
    AwaitCondition, ConditionCommand, Effect, LocksCommand, NamespaceRef, Owner, Path, SessionAcquire, SessionAwait,
    SessionNumber, SessionRequest, SessionSignal, SignalCondition,
};

/// What a command of a connected session is about conditions.
pub(super) enum Meant {
    /// The same as this command.
    Command(Box<LocksCommand>),
    /// The end of what an owner has, of which it has not heard.
    Unheard(NamespaceRef, Owner),
}

impl Meant {
    fn new(command: ConditionCommand) -> Self {
        Self::Command(Box::new(LocksCommand::Condition(command)))
    }
}

/// Sessions, and the locks that their requests are about.
#[derive(Default)]
pub(super) struct SessionRequests {
    sessions: BTreeMap<SessionNumber, (NamespaceRef, String)>,
    /// Of the requests with one claim.
    locks: BTreeMap<(SessionNumber, String), (Owner, Path)>,
}

impl SessionRequests {
    /// Notes the sessions that a step opened.
    pub(super) fn record(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::SessionOpened { namespace, number, session_id, .. } = effect {
                self.sessions.insert(*number, (namespace.clone(), session_id.clone()));
            }
        }
    }

    /// Notes the lock of a request. Returns what the command is about a condition, if it is about one.
    pub(super) fn translate(&mut self, command: &LocksCommand) -> Option<Meant> {
        let LocksCommand::Session(command) = command else { return None };
        let (namespace, session_id) = self.sessions.get(&command.session)?;
        if let Some((SessionAcquire { request_id, holder, claims, .. }, _)) = command.as_acquire() {
            let owner = Owner::Session { session_id: session_id.clone(), holder: holder.clone() };
            let key = (command.session, request_id.clone());
            match claims.as_slice() {
                [claim] => self.locks.insert(key, (owner, claim.path.clone())),
                _ => self.locks.remove(&key),
            };
            return None;
        }
        let lock_of = |request_id: &String| self.locks.get(&(command.session, request_id.clone())).cloned();
        match &command.request {
            SessionRequest::Await(awaits) => {
                let condition = await_of(namespace, lock_of(&awaits.request_id)?, awaits);
                Some(Meant::new(ConditionCommand::Await(condition)))
            }
            SessionRequest::Signal(signal) => {
                let condition = signal_of(namespace, lock_of(&signal.request_id)?, signal);
                Some(Meant::new(ConditionCommand::Signal(condition)))
            }
            SessionRequest::ReleaseUnheard { request_id } => {
                Some(Meant::Unheard(namespace.clone(), lock_of(request_id)?.0))
            }
            _ => None,
        }
    }
}

fn await_of(namespace: &NamespaceRef, (owner, path): (Owner, Path), awaits: &SessionAwait) -> AwaitCondition {
    AwaitCondition {
        namespace: namespace.clone(),
        path,
        owner,
        // The clients here always name it.
        fencing_token: awaits.fencing_token.unwrap_or_default(),
        condition: awaits.condition.clone(),
        wait: awaits.wait,
        relock_ms: None,
        ttl_ms: None,
        transition_ms: None,
        metadata: None,
        attempt: 0,
        abandoned: Vec::new(),
        message: None,
    }
}

fn signal_of(namespace: &NamespaceRef, (owner, path): (Owner, Path), signal: &SessionSignal) -> SignalCondition {
    SignalCondition {
        namespace: namespace.clone(),
        path,
        owner,
        condition: signal.condition.clone(),
        all: signal.all,
        fencing_token: None,
        signal_id: signal.signal_id.clone(),
        message: None,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountId, Claim, Incarnation, MessageSeq, Mode, SessionCommand, Wait};

    use super::*;

    fn command(request: SessionRequest) -> LocksCommand {
        let (account, message) = (AccountId(1), MessageSeq { epoch: 1, seq: 1 });
        LocksCommand::Session(SessionCommand { account, session: 7, message, request })
    }

    #[test]
    fn an_await_of_a_request_is_one_of_its_lock() {
        let namespace = NamespaceRef { account: AccountId(1), name: "alpha".to_owned(), incarnation: Incarnation(1) };
        let mut known = SessionRequests::default();
        known.sessions.insert(7, (namespace.clone(), "se_1".to_owned()));
        let awaits = || {
            let (request_id, condition, fencing_token) = ("r".to_owned(), "c".to_owned(), Some(5));
            SessionAwait { request_id, condition, fencing_token, wait: Wait::Unlimited, is_repeat: false }
        };
        let (path, request_id) = (Path::flat("l"), "r".to_owned());
        assert!(known.translate(&command(SessionRequest::Await(awaits()))).is_none(), "the request is not known");
        let acquire = SessionAcquire {
            holder: None,
            claims: vec![Claim { path: path.clone(), mode: Mode::Write }],
            transition_ms: 0,
            wait: Wait::Unlimited,
            allow_upgrade: false,
            request_id,
        };
        assert!(known.translate(&command(SessionRequest::Acquire(acquire))).is_none());
        let Some(Meant::Command(meant)) = known.translate(&command(SessionRequest::Await(awaits()))) else {
            panic!("it is no command")
        };
        let LocksCommand::Condition(ConditionCommand::Await(meant)) = *meant else {
            panic!("it is no await: {meant:?}")
        };
        let owner = Owner::Session { session_id: "se_1".to_owned(), holder: None };
        assert_eq!((meant.owner, meant.path, meant.fencing_token), (owner, path, 5));
    }
}
