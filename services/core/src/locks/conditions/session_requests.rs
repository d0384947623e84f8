//! Commands for conditions, including the commands of connected sessions, which name a lock by the request that holds
//! it.

use holdfast_primitives::reply_size::{reason_only, refused};

use super::await_lock::AwaitRequest;
use super::signal::SignalRequest;
use crate::locks::owner::OwnerId;
use crate::locks::sessions::NamedRequest;
use crate::locks::txn::NamespaceTxn;
use crate::{
    CommandError, ConditionCommand, FencingToken, MessageSeq, Mode, Owner, Path, Reason, Response, SessionAwait,
    SessionSignal,
};

/// The lock of a request.
struct RequestedLock {
    owner: Owner,
    path: Path,
    /// The token of the hold or, if the hold was given up, its former token.
    token: FencingToken,
    /// The token that the owner gave up for the present hold last, if it came from an await.
    came_from: Option<FencingToken>,
}

impl NamespaceTxn<'_> {
    /// Executes a command for conditions.
    pub(in crate::locks) fn condition(&mut self, command: &ConditionCommand) -> Result<Response, CommandError> {
        match command {
            ConditionCommand::Await(awaits) => {
                let is_new = self.is_new_message(&awaits.owner, awaits.message)?;
                self.await_condition(&awaits.into(), is_new)
            }
            ConditionCommand::Signal(signal) => {
                if !self.is_new_message(&signal.owner, signal.message)? {
                    return Ok(Response::Ignored);
                }
                self.signal(&signal.into())
            }
            ConditionCommand::Cancel(cancel) => Ok(self.cancel_await(cancel)),
        }
    }

    fn is_new_message(&mut self, owner: &Owner, message: Option<MessageSeq>) -> Result<bool, CommandError> {
        match owner {
            Owner::Session { session_id, .. } => self.check_sequence(session_id, message),
            Owner::Process(_) => Ok(true),
        }
    }

    /// Executes an await of a connected session.
    pub(in crate::locks) fn session_await(
        &mut self,
        session_id: &str,
        message: MessageSeq,
        awaits: &SessionAwait,
    ) -> Result<Response, CommandError> {
        let is_new = self.check_sequence(session_id, Some(message))?;
        let Some(lock) = self.lock_of_request(session_id, &awaits.request_id)? else {
            let outcome = refused(reason_only(Reason::NotHeld));
            return Ok(Response::Awaited { outcome, woken: None, locks: Vec::new() });
        };
        // A hold that came from an await may be what an earlier copy got. To give it up again would lose its signal.
        let repeated = lock.came_from.filter(|_| awaits.is_repeat);
        let request = AwaitRequest {
            owner: &lock.owner,
            path: &lock.path,
            token: awaits.fencing_token.or(repeated).unwrap_or(lock.token),
            condition: &awaits.condition,
            wait: awaits.wait,
            relock_ms: None,
            ttl_ms: None,
            transition_ms: None,
            metadata: None,
            attempt: 0,
            left: &[],
        };
        self.await_condition(&request, is_new)
    }

    /// Executes a signal of a connected session.
    pub(in crate::locks) fn session_signal(
        &mut self,
        session_id: &str,
        message: MessageSeq,
        signal: &SessionSignal,
    ) -> Result<Response, CommandError> {
        if !self.check_sequence(session_id, Some(message))? {
            return Ok(Response::Ignored);
        }
        let Some(lock) = self.lock_of_request(session_id, &signal.request_id)? else {
            return Ok(Response::Signalled { success: false, signalled: 0, awaiting: 0, locks: Vec::new() });
        };
        self.signal(&SignalRequest {
            owner: &lock.owner,
            path: &lock.path,
            condition: &signal.condition,
            all: signal.all,
            token: None,
            signal_id: signal.signal_id.as_deref(),
        })
    }

    /// Returns the lock of a request that holds it, gave it up or waits for it again; `None` for any other.
    fn lock_of_request(&self, session_id: &str, request_id: &str) -> Result<Option<RequestedLock>, CommandError> {
        let claims_more =
            || Err(CommandError::InvalidArgument("the request has other claims than one to write".into()));
        let session = self.ns.sessions.get(session_id);
        let Some(named) = session.and_then(|session| self.ns.request_named(&session.requests, request_id)) else {
            return Ok(None);
        };
        let owner = |owner: OwnerId| self.ns.owners.name(owner).to_owner();
        Ok(match named {
            NamedRequest::Awaiting(wait) => self.ns.conditions.get(wait).map(|awaits| RequestedLock {
                owner: owner(awaits.owner),
                path: Path::clone(&awaits.path),
                token: awaits.from_token,
                came_from: None,
            }),
            NamedRequest::Waiting(position) => {
                let waiting = self.ns.waiting(position);
                let came_from = waiting.came_from.as_deref().zip(waiting.claims.first());
                came_from.map(|(came_from, claim)| RequestedLock {
                    owner: owner(waiting.owner),
                    path: claim.path.clone(),
                    token: came_from.token,
                    came_from: None,
                })
            }
            NamedRequest::Granted(granted) => {
                let granted = self.ns.granted_requests.get(granted);
                let mut live = granted.live.iter();
                let (Some((node, Mode::Write)), 1) = (live.next(), granted.claimed) else { return claims_more() };
                self.ns.hold(node, granted.owner).map(|hold| RequestedLock {
                    owner: owner(granted.owner),
                    path: self.ns.tree.path_of(node),
                    token: hold.token,
                    came_from: hold.came_from().last().map(|it| it.token),
                })
            }
        })
    }
}
