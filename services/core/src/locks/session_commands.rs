//! Requests of connected sessions, which name their session by its number.

use std::sync::Arc;

use super::durability::absent;
use super::owner::NO_OWNER;
use super::request::Request;
use super::sessions::NamedRequest;
use super::txn::NamespaceTxn;
use super::{COMMAND_COST, LocksState};
use crate::{CommandError, EntryContext, Owner, Response, SessionCommand, SessionRequest};

impl LocksState {
    /// Executes a request of a connected session.
    pub(super) fn session_command(
        &mut self,
        context: &EntryContext,
        command: &SessionCommand,
    ) -> Result<Response, CommandError> {
        let (slot, session_id) = self.session_of(command)?;
        let session_id = Arc::clone(session_id);
        let mut work = self.txn_in(slot, context);
        work.ns.spend(COMMAND_COST);
        match &command.request {
            SessionRequest::Acquire(_) | SessionRequest::AcquireWith { .. } => {
                let Some((acquire, terms)) = command.as_acquire() else { return Ok(Response::Ignored) };
                let owner = Owner::Session { session_id: session_id.to_string(), holder: acquire.holder.clone() };
                work.acquire(&Request::of_session((acquire, terms), &owner, command.message), &[])
            }
            SessionRequest::Release { request_id, is_known } => {
                if !work.check_sequence(&session_id, Some(command.message))? {
                    return Ok(Response::Ignored);
                }
                Ok(work.release_by_id(&session_id, request_id, *is_known))
            }
            SessionRequest::ReleaseUnheard { request_id } => {
                if !work.check_sequence(&session_id, Some(command.message))? {
                    return Ok(Response::Ignored);
                }
                let session = work.ns.sessions.get(&*session_id);
                let named = session.and_then(|session| work.ns.request_named(&session.requests, request_id));
                if let Some(NamedRequest::Granted(granted)) = named {
                    work.owe_unheard_of(granted);
                }
                Ok(work.release_by_id(&session_id, request_id, false))
            }
            SessionRequest::Await(awaits) => work.session_await(&session_id, command.message, awaits),
            SessionRequest::Signal(signal) => work.session_signal(&session_id, command.message, signal),
        }
    }

    /// Returns the slot of the namespace of a connected session, and its id. A number that is not used any more stays
    /// in the index for a while, and its slot may have another namespace by then.
    ///
    /// # Errors
    /// `SessionNotFound`, and `Quarantined` if the namespace is in quarantine.
    pub(super) fn session_of(&self, command: &SessionCommand) -> Result<(u32, &Arc<str>), CommandError> {
        let find = || {
            let (slot, session_id) = self.sessions.get(&command.session)?;
            let namespace = self.namespaces.find(*slot)?;
            let session = namespace.sessions.get(session_id)?;
            let is_same = session.facts.number == command.session && namespace.id.account == command.account;
            is_same.then_some((*slot, session_id, namespace))
        };
        match find() {
            None => Err(CommandError::SessionNotFound(command.session.to_string())),
            Some((_, _, namespace)) if self.is_quarantined(&namespace.id) => Err(CommandError::Quarantined),
            Some((slot, session_id, namespace)) => {
                namespace.check_table(absent::ELSEWHERE).map(|()| (slot, session_id))
            }
        }
    }
}

impl NamespaceTxn<'_> {
    /// Releases a request of a session. The holder does not matter: ids are unique in the session.
    fn release_by_id(&mut self, session_id: &str, request_id: &str, is_known: bool) -> Response {
        let session = self.ns.sessions.get(session_id);
        let named = session.and_then(|session| self.ns.request_named(&session.requests, request_id));
        if let Some(NamedRequest::Granted(granted)) = named.filter(|_| is_known)
            && self.release_completely(granted)
        {
            self.run_grant_loop();
            return Response::Done;
        }
        let owner = Owner::Session { session_id: session_id.to_owned(), holder: None };
        let (released, paths) = self.release_request(&owner, request_id);
        self.run_grant_loop();
        let locks = self.views(&paths.iter().collect::<Vec<_>>(), NO_OWNER, false);
        Response::Released { released, locks }
    }
}
