//! What identifies a hold or a waiting request.

use std::sync::Arc;

use crate::{CommandError, Kind, Owner, Path, Reason, SessionNumber};

/// Whom a hold or a waiting request belongs to: everything of a scope is together in the index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A process.
    Process(Arc<str>),
    /// A session, whatever its holders.
    Session {
        /// Its number.
        number: SessionNumber,
        /// Its id.
        session_id: Arc<str>,
    },
}

/// What a semaphore or a pool is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) kind: Kind,
    pub(super) path: Path,
}

impl Name {
    pub(super) fn new(kind: Kind, path: &Path) -> Self {
        Self { kind, path: path.clone() }
    }
}

/// An owner, a request id, and a semaphore or a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) scope: Scope,
    pub(super) request_id: Arc<str>,
    pub(super) name: Arc<Name>,
    /// The thread of the session, if it is not for the session as a whole.
    pub(super) holder: Option<Arc<str>>,
}

impl Key {
    /// Returns a key below all with that scope and, if given, that request id.
    pub(super) fn first_of(scope: &Scope, request_id: &str) -> Self {
        let name = Arc::new(Name::new(Kind::Lock, &Path::default()));
        Self { scope: scope.clone(), request_id: request_id.into(), name, holder: None }
    }

    pub(super) fn owner(&self) -> Owner {
        match &self.scope {
            Scope::Process(process_id) => Owner::Process(process_id.to_string()),
            Scope::Session { session_id, .. } => {
                Owner::Session { session_id: session_id.to_string(), holder: self.holder.as_deref().map(str::to_owned) }
            }
        }
    }

    /// Returns the number of its session, if it has one.
    pub(super) fn session(&self) -> Option<SessionNumber> {
        if let Scope::Session { number, .. } = self.scope { Some(number) } else { None }
    }
}

/// Whoever requests permits.
#[derive(Clone, Debug)]
pub struct Requester {
    /// Who may hold and wait under one request id.
    pub scope: Scope,
    /// The thread of the session, if it is not for the session as a whole.
    pub holder: Option<Arc<str>>,
    /// The displayed process id.
    pub process_id: Arc<str>,
    /// Whether its message is new. An old one changes nothing.
    pub is_new: bool,
    /// Why it can't get anything new now.
    pub refusal: Option<CommandError>,
    /// What its session has in other tables of this kind.
    pub things_elsewhere: u64,
}

impl Requester {
    pub(super) fn key(&self, name: &Arc<Name>, request_id: &str) -> Key {
        let (scope, holder) = (self.scope.clone(), self.holder.clone());
        Key { scope, request_id: request_id.into(), name: Arc::clone(name), holder }
    }
}

/// How a wait ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitEnd {
    Granted,
    Refused(Reason),
}
