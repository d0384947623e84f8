//! Awaits and signals of conditions on a connection: their commands, their replies and their updates.

use std::sync::Arc;

use holdfast_api::session_message::{Await, RefusalCause, ServerMessage, Signal};
use holdfast_api::{ApiError, ApiResult, Timestamp, validate};
use holdfast_types::{
    AcquireOutcome, LockView, LocksCommand, Owner, Path, Refused, SessionAwait, SessionRequest, SessionSignal, WaitId,
    Woken,
};

use super::await_table::AwaitState;
use super::channel::CloseReason;
use super::client_command::ClientCommand;
use super::connection::SessionConnection;
use super::message_bytes::signal_bytes;
use crate::view_builder::ViewBuilder;

/// What the reply to an await says.
pub(super) struct AwaitOutcome {
    pub(super) outcome: AcquireOutcome,
    pub(super) woken: Option<Woken>,
    pub(super) locks: Vec<LockView>,
}

impl SessionConnection<'_> {
    /// Returns the command of an await, which counts against its account's rate once.
    pub(super) fn admit_await(&mut self, awaits: &Arc<Await>, tries: u8) -> ApiResult<LocksCommand> {
        let tenant = self.tenant()?;
        validate::request_id(&awaits.request_id)?;
        validate::condition(&awaits.condition)?;
        validate::stream_await_ms(awaits.wait_ms)?;
        // An earlier copy may have been executed.
        let is_repeat = tries > 0 || self.unanswered.contains(&awaits.request_id);
        if !is_repeat {
            let bytes = awaits.request_id.len() + awaits.condition.len();
            self.session.service.inner.rates.admit(tenant.account, bytes as u64)?;
        }
        if tries == 0 {
            let token = self.requests.write_token(&awaits.request_id);
            let lock = self.requests.shared_lock(&awaits.request_id);
            self.awaits.begin(awaits, token, lock);
        }
        let command = self.await_command(&awaits.request_id, is_repeat);
        command.ok_or_else(|| ApiError::internal("an await is not known"))
    }

    /// Returns the command that sends an await, or sends it again: it finds what it gave up by its token.
    pub(super) fn await_command(&self, request_id: &str, is_repeat: bool) -> Option<LocksCommand> {
        let (awaits, fencing_token, wait) = self.awaits.sent(request_id)?;
        let (request_id, condition) = (awaits.request_id.clone(), awaits.condition.clone());
        let awaits = SessionAwait { request_id, condition, fencing_token, wait, is_repeat };
        Some(self.session.request(self.seq + 1, SessionRequest::Await(awaits)))
    }

    /// Returns the command of a signal, which counts against its account's rate once.
    pub(super) fn admit_signal(&self, signal: &Signal, tries: u8) -> ApiResult<LocksCommand> {
        let tenant = self.tenant()?;
        validate::request_id(&signal.request_id)?;
        validate::condition(&signal.condition)?;
        signal.signal_id.as_deref().map_or(Ok(()), |id| validate::name("signal_id", id))?;
        if tries == 0 {
            self.session.service.inner.rates.admit(tenant.account, signal_bytes(signal) as u64)?;
        }
        let Signal { request_id, condition, all, signal_id } = signal.clone();
        let signal = SessionSignal { request_id, condition, all, signal_id };
        Ok(self.session.request(self.seq + 1, SessionRequest::Signal(signal)))
    }

    /// After a change of leader, queries the state of all awaits.
    pub(super) fn queue_await_reconciliation(&mut self) {
        for request_id in self.awaits.request_ids().into_iter().rev() {
            self.queue.push_front(ClientCommand::RequeryAwait(request_id));
        }
    }

    /// Handles the reply to an await. Only a client that asked is notified that nothing has changed.
    pub(super) async fn on_await_outcome(
        &mut self,
        request_id: &str,
        reply: AwaitOutcome,
        clock_ms: u64,
        asked: bool,
    ) -> Result<(), CloseReason> {
        let AwaitOutcome { outcome, woken, locks } = reply;
        let before = self.awaits.state(request_id);
        if before.is_none() {
            return Ok(());
        }
        match (outcome, woken) {
            (AcquireOutcome::Granted { fencing_token }, woken) => {
                let path = locks.into_iter().next().map(|lock| lock.path);
                self.drop_hold(request_id, path.as_ref());
                self.on_relocked(request_id, path.unwrap_or_default(), None, (fencing_token, woken)).await
            }
            (AcquireOutcome::Enqueued(enqueued), None) => {
                let state = AwaitState::Awaiting(enqueued.wait);
                self.drop_hold(request_id, locks.first().map(|lock| &lock.path));
                self.awaits.set(request_id, state);
                if !asked {
                    return Ok(());
                }
                self.send(ServerMessage::Awaiting { request_id: request_id.to_owned() }).await
            }
            (AcquireOutcome::Enqueued(enqueued), Some(woken)) => {
                let state = AwaitState::Waiting(enqueued.wait, woken);
                self.drop_hold(request_id, locks.first().map(|lock| &lock.path));
                self.awaits.set(request_id, state);
                if !asked && before == Some(state) {
                    return Ok(());
                }
                self.send_woken(request_id.to_owned(), woken, Some(enqueued.not_granted), clock_ms).await
            }
            (AcquireOutcome::Refused(refusal), _) => {
                self.awaits.remove(request_id);
                self.send_refused(request_id.to_owned(), *refusal, clock_ms).await
            }
        }
    }

    /// Records that a request gave its lock up.
    fn drop_hold(&mut self, request_id: &str, path: Option<&Path>) {
        if self.awaits.state(request_id) != Some(AwaitState::Sent) {
            return;
        }
        self.requests.released_without_views(request_id);
        let token = self.awaits.set(request_id, AwaitState::Sent);
        if let Some((path, token)) = path.zip(token) {
            self.requests.remove_hold(path, token);
        }
    }

    async fn on_relocked(
        &mut self,
        request_id: &str,
        path: Path,
        holder: Option<String>,
        (fencing_token, woken): (u64, Option<Woken>),
    ) -> Result<(), CloseReason> {
        let lock = self.awaits.relocked(request_id, &path, holder);
        self.requests.granted_anew(&lock, fencing_token);
        let (request_id, members) = (request_id.to_owned(), Vec::new());
        self.send(ServerMessage::Acquired { request_id, fencing_token, members, woken, receipt: None }).await
    }

    /// Handles the reply to a signal. A request that does not hold its lock keeps what it has.
    pub(super) async fn on_signalled(
        &mut self,
        signal: &Signal,
        (success, count): (bool, u64),
    ) -> Result<(), CloseReason> {
        let request_id = signal.request_id.clone();
        if success {
            return self.send(ServerMessage::Signalled { request_id, count }).await;
        }
        let error = ApiError::invalid("request_id", "request_id: the request does not hold its lock");
        self.send(ServerMessage::Error { error, request_id: Some(request_id) }).await
    }

    /// Handles the news that an await waits for its lock.
    pub(super) async fn on_await_woken(
        &mut self,
        request_id: String,
        (from, wait): (WaitId, WaitId),
        (woken, not_granted): (Woken, Option<Box<Refused>>),
        clock_ms: u64,
    ) -> Result<(), CloseReason> {
        if self.awaits.state(&request_id) != Some(AwaitState::Awaiting(from)) {
            return Ok(());
        }
        self.awaits.set(&request_id, AwaitState::Waiting(wait, woken));
        self.send_woken(request_id, woken, not_granted.map(|not_granted| *not_granted), clock_ms).await
    }

    /// Notifies the client that an await waits for its lock, and of its place and its blockers there. These are absent
    /// if what becomes of it follows at once.
    async fn send_woken(
        &mut self,
        request_id: String,
        woken: Woken,
        not_granted: Option<Refused>,
        clock_ms: u64,
    ) -> Result<(), CloseReason> {
        let namespace = self.session.namespace.name.clone();
        let shown = ViewBuilder::new(&namespace, clock_ms, Timestamp::now());
        let shown = not_granted.map(|not_granted| shown.reason(not_granted));
        let (queue_position, blockers) = shown.map(|it| (it.queue_position, it.blockers)).unwrap_or_default();
        let (holders, woken) = (Vec::new(), Some(woken));
        self.send(ServerMessage::Enqueued { request_id, queue_position, blockers, holders, woken, place: None }).await
    }

    /// Handles the end of an await, or of the wait for its lock. Only the present wait of the request counts.
    pub(super) async fn on_await_resolved(
        &mut self,
        request_id: String,
        (wait, owner): (WaitId, Owner),
        reply: AwaitOutcome,
        clock_ms: u64,
    ) -> Result<(), CloseReason> {
        let is_current = match self.awaits.state(&request_id) {
            Some(AwaitState::Awaiting(current) | AwaitState::Waiting(current, _)) => current == wait,
            Some(AwaitState::Sent) | None => false,
        };
        if !is_current {
            return Ok(());
        }
        self.unanswered.remove(&request_id);
        let holder = if let Owner::Session { holder, .. } = owner { holder } else { None };
        match reply.outcome {
            AcquireOutcome::Granted { fencing_token } => {
                let path = reply.locks.into_iter().next().map(|lock| lock.path).unwrap_or_default();
                self.on_relocked(&request_id, path, holder, (fencing_token, reply.woken)).await
            }
            // The client ends it, and is notified of that instead.
            AcquireOutcome::Refused(_) if self.in_flight.as_ref().is_some_and(|it| it.ends(&request_id)) => Ok(()),
            AcquireOutcome::Refused(refusal) => {
                self.awaits.remove(&request_id);
                self.send_refused(request_id, *refusal, clock_ms).await
            }
            AcquireOutcome::Enqueued(_) => Ok(()),
        }
    }

    /// Handles the rejection of a query about an await.
    pub(super) async fn on_await_rejected(&mut self, request_id: &str, error: ApiError) -> Result<(), CloseReason> {
        self.awaits.remove(request_id);
        let (request_id, why) = (request_id.to_owned(), RefusalCause::Fault(error));
        self.send(ServerMessage::Refused { request_id, why }).await
    }
}
