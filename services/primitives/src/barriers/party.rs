//! Who meets at a barrier.

use std::sync::Arc;

use crate::permits::{PermitItem, Requester, Scope};
use crate::{Owner, Path, Revision, SessionNumber};

/// An owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Party {
    pub(super) scope: Scope,
    /// The thread of the session, if it is not for the session as a whole.
    pub(super) holder: Option<Arc<str>>,
}

/// An owner at a barrier. Everything of a scope is together in the order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ArrivalKey {
    pub(super) party: Party,
    pub(super) path: Arc<Path>,
}

impl Party {
    pub(super) fn of(requester: &Requester) -> Self {
        Self { scope: requester.scope.clone(), holder: requester.holder.clone() }
    }

    pub(super) fn owner(&self) -> Owner {
        match &self.scope {
            Scope::Process(process_id) => Owner::Process(process_id.to_string()),
            Scope::Session { session_id, .. } => {
                Owner::Session { session_id: session_id.to_string(), holder: self.holder.as_deref().map(str::to_owned) }
            }
        }
    }

    /// Returns the number and the id of its session, if it has one.
    pub(super) fn session(&self) -> Option<(SessionNumber, &Arc<str>)> {
        if let Scope::Session { number, session_id } = &self.scope { Some((*number, session_id)) } else { None }
    }

    /// Returns the length of its names.
    pub(super) fn text_bytes(&self) -> u64 {
        let scope = match &self.scope {
            Scope::Process(process_id) => process_id.len(),
            Scope::Session { session_id, .. } => session_id.len(),
        };
        (scope + self.holder.as_deref().map_or(0, str::len)) as u64
    }
}

impl ArrivalKey {
    /// Returns one that no other of the scope precedes.
    pub(super) fn first_of(scope: &Scope) -> Self {
        Self { party: Party { scope: scope.clone(), holder: None }, path: Arc::default() }
    }

    /// Returns the arrival for those who choose what ends. It counts as a hold.
    pub(super) fn item<'a>(&'a self, number: Revision, request_id: Option<&'a str>) -> PermitItem<'a> {
        PermitItem {
            scope: &self.party.scope,
            request_id: request_id.unwrap_or_default(),
            holder: self.party.holder.as_deref(),
            token: Some(number),
            since: number,
        }
    }
}
