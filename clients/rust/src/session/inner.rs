//! State shared by the users of a session and its task.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use holdfast_proto::v1::Durability;
use holdfast_proto::v1::client_message::{LockInfo, Message as Said};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::arrival::ArrivalGuard;
use super::events::EventDispatcher;
use super::lease::SessionLease;
use super::table::{ArrivalRequest, AwaitTerms, Effect, Granted, LockRequest, RequestNo, RequestTable, WaiterId};
use crate::error::{EndReason, Error, LossReason, Result};
use crate::locks::{LockStatus, Woken};
use crate::view::{Path, ReleaseRequest, WaitStatus};

pub(crate) struct SessionInner {
    pub(crate) lease: SessionLease,
    pub(crate) events: EventDispatcher,
    /// A message is ready to be sent.
    pub(super) wake: Notify,
    /// Cancelled to close the session.
    pub(super) close: CancellationToken,
    /// The session has ended, and all callers were notified.
    ended: CancellationToken,
    state: Mutex<SessionState>,
}

#[derive(Default)]
struct SessionState {
    table: RequestTable,
    waiters: HashMap<WaiterId, RequestRecord>,
    last_waiter: WaiterId,
}

/// A caller that waits for a reply.
struct RequestRecord {
    no: RequestNo,
    reply: PendingReply,
}

enum PendingReply {
    Grant { to: oneshot::Sender<Result<GrantGuard>>, progress: Option<mpsc::Sender<WaitStatus>> },
    Status(oneshot::Sender<Result<LockStatus>>),
    Release(oneshot::Sender<()>),
    Signal(oneshot::Sender<Result<u64>>),
}

impl SessionInner {
    /// Creates the state of a session that was opened in a namespace of this durability.
    pub(super) fn new(lease: SessionLease, events: EventDispatcher, durability: Durability) -> Arc<Self> {
        let (wake, close) = (Notify::new(), CancellationToken::new());
        let ended = CancellationToken::new();
        let state = SessionState { table: RequestTable::new(durability), ..SessionState::default() };
        Arc::new(Self { lease, events, wake, close, ended, state: Mutex::new(state) })
    }

    /// Requests locks. Dropping the result cancels the request and leaves nothing behind.
    pub(crate) fn request(
        self: &Arc<Self>,
        request: LockRequest,
        progress: Option<mpsc::Sender<WaitStatus>>,
    ) -> Result<PendingRequest> {
        let (to, reply) = oneshot::channel();
        let waiter = self.submit(request, PendingReply::Grant { to, progress })?;
        Ok(PendingRequest { inner: Arc::clone(self), waiter, reply })
    }

    /// Requests a lock of the lock service view; the first known status is the result.
    pub(crate) fn request_persistent(
        self: &Arc<Self>,
        request: LockRequest,
    ) -> Result<oneshot::Receiver<Result<LockStatus>>> {
        let (to, answer) = oneshot::channel();
        self.submit(request, PendingReply::Status(to))?;
        Ok(answer)
    }

    fn submit(self: &Arc<Self>, request: LockRequest, reply: PendingReply) -> Result<WaiterId> {
        if let Some(reason) = self.lease.end_reason() {
            return Err(Error::SessionEnded(reason));
        }
        self.update(|state| {
            let waiter = state.next_waiter_id();
            match state.table.request(request, waiter) {
                Ok((no, effects)) => {
                    state.waiters.insert(waiter, RequestRecord { no, reply });
                    (Ok(waiter), effects)
                }
                Err(error) => (Err(error), Vec::new()),
            }
        })
    }

    /// Arrives at a barrier. Dropping the result leaves it.
    pub(crate) fn arrive(self: &Arc<Self>, request: ArrivalRequest) -> Result<ArrivalGuard> {
        if let Some(reason) = self.lease.end_reason() {
            return Err(Error::SessionEnded(reason));
        }
        let is_double = request.is_double;
        let (no, meeting) = self.update(|state| (state.table.arrive(request), Vec::new()))?;
        Ok(ArrivalGuard::new(Arc::clone(self), no, is_double, meeting))
    }

    /// Ends an arrival.
    pub(super) fn leave(self: &Arc<Self>, no: RequestNo) {
        self.update(|state| (state.table.leave(no), Vec::new()));
    }

    /// Gives up the lock of a request, whose caller holds it. Dropping the result ends the request.
    fn await_condition(self: &Arc<Self>, no: RequestNo, terms: AwaitTerms) -> Result<PendingRequest> {
        let (to, reply) = oneshot::channel();
        let waiter = self.update(|state| {
            let waiter = state.next_waiter_id();
            match state.table.await_condition(no, terms, waiter) {
                Ok(effects) => {
                    let reply = PendingReply::Grant { to, progress: None };
                    state.waiters.insert(waiter, RequestRecord { no, reply });
                    (Ok(waiter), effects)
                }
                Err(error) => (Err(error), Vec::new()),
            }
        })?;
        Ok(PendingRequest { inner: Arc::clone(self), waiter, reply })
    }

    /// Sends a signal under the lock of a request; the receiver is told how many it woke.
    fn signal(
        self: &Arc<Self>,
        no: RequestNo,
        condition: Arc<str>,
        all: bool,
    ) -> Result<oneshot::Receiver<Result<u64>>> {
        let (to, counted) = oneshot::channel();
        self.update(|state| {
            let waiter = state.next_waiter_id();
            match state.table.signal(no, condition, all, waiter) {
                Ok(()) => {
                    state.waiters.insert(waiter, RequestRecord { no, reply: PendingReply::Signal(to) });
                    (Ok(()), Vec::new())
                }
                Err(error) => (Err(error), Vec::new()),
            }
        })?;
        Ok(counted)
    }

    /// Releases a caller's hold.
    fn release(self: &Arc<Self>, no: RequestNo) {
        self.update(|state| ((), state.table.release(no, None)));
    }

    /// Like `release`; the receiver completes when the release is done.
    fn release_acknowledged(self: &Arc<Self>, no: RequestNo) -> oneshot::Receiver<()> {
        let (to, done) = oneshot::channel();
        self.update(|state| {
            let waiter = state.next_waiter_id();
            state.waiters.insert(waiter, RequestRecord { no, reply: PendingReply::Release(to) });
            ((), state.table.release(no, Some(waiter)))
        });
        done
    }

    /// Ends the lock service view's request for a path; the receiver completes when that is done.
    pub(crate) fn release_persistent(self: &Arc<Self>, path: &Path) -> Option<oneshot::Receiver<()>> {
        let no = self.state.lock().table.persistent_request(path)?.0;
        Some(self.release_acknowledged(no))
    }

    /// Ends all requests of the lock service view.
    pub(crate) fn release_all_persistent(self: &Arc<Self>) -> Vec<oneshot::Receiver<()>> {
        let all = self.state.lock().table.persistent_requests();
        all.into_iter().map(|no| self.release_acknowledged(no)).collect()
    }

    pub(crate) fn status(&self, path: &Path) -> LockStatus {
        if self.lease.end_reason().is_some() {
            return LockStatus::None;
        }
        self.state.lock().table.persistent_request(path).map_or(LockStatus::None, |(_, status)| status)
    }

    /// Returns the number of requests that have not ended.
    pub(crate) fn request_count(&self) -> usize {
        self.state.lock().table.len()
    }

    pub(super) fn has_outgoing(&self) -> bool {
        self.state.lock().table.has_outgoing()
    }

    pub(super) fn next_message(&self) -> Option<Said> {
        self.state.lock().table.next_message()
    }

    pub(super) fn has_retries(&self) -> bool {
        self.state.lock().table.has_retries()
    }

    pub(super) fn lock_info(&self) -> Vec<LockInfo> {
        self.state.lock().table.lock_info()
    }

    /// Changes the table after a message from the service.
    pub(super) fn update_table(self: &Arc<Self>, change: impl FnOnce(&mut RequestTable) -> Vec<Effect>) {
        self.update(|state| ((), change(&mut state.table)));
    }

    /// Ends the session and notifies all callers. Returns how it ended, which may have been known before.
    pub(super) fn end(self: &Arc<Self>, reason: EndReason) -> EndReason {
        let reason = self.lease.end(reason);
        self.update_table(|table| table.end(&reason));
        self.ended.cancel();
        reason
    }

    /// Completes when all callers were notified that the session has ended.
    pub(super) async fn closed(&self) -> EndReason {
        self.ended.cancelled().await;
        self.lease.wait_ended().await
    }

    fn update<R>(self: &Arc<Self>, change: impl FnOnce(&mut SessionState) -> (R, Vec<Effect>)) -> R {
        let mut unwanted = Vec::new();
        let (result, has_to_say) = {
            let mut state = self.state.lock();
            let (result, effects) = change(&mut state);
            for effect in effects {
                unwanted.extend(self.apply_effect(&mut state, effect));
            }
            (result, state.table.has_outgoing())
        };
        // An unclaimed grant is released when dropped, for which the lock must be free.
        drop(unwanted);
        if has_to_say {
            self.wake.notify_one();
        }
        result
    }

    /// Applies an effect. Returns a grant that no caller claims.
    fn apply_effect(self: &Arc<Self>, state: &mut SessionState, effect: Effect) -> Option<GrantGuard> {
        match effect {
            Effect::Notify(event) => self.events.push(event),
            Effect::Renamed(waiter, no) => {
                if let Some(record) = state.waiters.get_mut(&waiter) {
                    record.no = no;
                }
            }
            Effect::Queued(waiter, standing) => match state.waiters.get(&waiter).map(|record| &record.reply) {
                // A caller that does not read its progress misses some of it, and nothing else.
                Some(PendingReply::Grant { progress: Some(progress), .. }) => drop(progress.try_send(standing)),
                Some(PendingReply::Status(_)) => reply_status(state, waiter, Ok(LockStatus::Waiting)),
                _ => {}
            },
            Effect::Granted(waiter, granted) => {
                let record = state.waiters.remove(&waiter);
                match record.map(|record| record.reply) {
                    Some(PendingReply::Grant { to, .. }) => {
                        let claimed = GrantGuard { inner: Arc::clone(self), granted, is_released: false };
                        return to.send(Ok(claimed)).err().and_then(Result::ok);
                    }
                    Some(PendingReply::Status(to)) => drop(to.send(Ok(LockStatus::Holding))),
                    _ => {}
                }
            }
            Effect::Failed(waiter, error) => match state.waiters.remove(&waiter).map(|record| record.reply) {
                Some(PendingReply::Grant { to, .. }) => drop(to.send(Err(error))),
                Some(PendingReply::Status(to)) => drop(to.send(Err(error))),
                Some(PendingReply::Signal(to)) => drop(to.send(Err(error))),
                _ => {}
            },
            Effect::Signalled(waiter, count) => {
                if let Some(RequestRecord { reply: PendingReply::Signal(to), .. }) = state.waiters.remove(&waiter) {
                    // The caller need not wait for it.
                    let _ = to.send(Ok(count));
                }
            }
            Effect::Released(waiter) => {
                if let Some(RequestRecord { reply: PendingReply::Release(to), .. }) = state.waiters.remove(&waiter) {
                    // The caller need not wait for it.
                    let _ = to.send(());
                }
            }
        }
        None
    }
}

fn reply_status(state: &mut SessionState, waiter: WaiterId, status: Result<LockStatus>) {
    if let Some(RequestRecord { reply: PendingReply::Status(to), .. }) = state.waiters.remove(&waiter) {
        let _ = to.send(status);
    }
}

impl SessionState {
    fn next_waiter_id(&mut self) -> WaiterId {
        self.last_waiter += 1;
        self.last_waiter
    }
}

/// A request in flight. Completes when it is granted or refused; dropping it earlier cancels the request.
pub(crate) struct PendingRequest {
    inner: Arc<SessionInner>,
    waiter: WaiterId,
    reply: oneshot::Receiver<Result<GrantGuard>>,
}

impl PendingRequest {
    /// Queries the request's status; the progress channel receives it.
    pub(crate) fn refresh_status(&self) {
        self.inner.update(|state| {
            if let Some(record) = state.waiters.get(&self.waiter) {
                state.table.refresh_status(record.no);
            }
            ((), Vec::new())
        });
    }
}

impl Future for PendingRequest {
    type Output = Result<GrantGuard>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // The sender is dropped only with the session.
        let gone = || Err(Error::SessionEnded(EndReason::Closed));
        Pin::new(&mut self.reply).poll(context).map(|answer| answer.unwrap_or_else(|_| gone()))
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.inner.update(|state| match state.waiters.remove(&self.waiter) {
            Some(record) => ((), state.table.cancel(record.no, self.waiter)),
            // The request has its reply. An unclaimed grant is dropped with the reply.
            None => ((), Vec::new()),
        });
    }
}

/// A hold, until it is dropped.
pub(crate) struct GrantGuard {
    inner: Arc<SessionInner>,
    granted: Granted,
    is_released: bool,
}

impl GrantGuard {
    pub(crate) fn token(&self) -> u64 {
        self.granted.token
    }

    pub(crate) fn tokens(&self) -> &Arc<BTreeMap<Path, u64>> {
        &self.granted.tokens
    }

    pub(crate) fn members(&self) -> &[String] {
        &self.granted.members
    }

    pub(crate) fn loss(&self) -> &watch::Receiver<Option<LossReason>> {
        &self.granted.loss
    }

    pub(crate) fn release_requests(&self) -> &watch::Receiver<Option<ReleaseRequest>> {
        &self.granted.asked
    }

    pub(crate) fn woken(&self) -> Option<Woken> {
        self.granted.woken
    }

    /// Gives the lock up to await a condition. If that is not possible, the hold is released.
    pub(crate) fn await_condition(mut self, condition: &Arc<str>, wait_ms: Option<u64>) -> Result<PendingRequest> {
        let terms = AwaitTerms { condition: Arc::clone(condition), wait_ms };
        let request = self.inner.await_condition(self.granted.no, terms)?;
        self.is_released = true;
        Ok(request)
    }

    /// Signals a condition of the lock.
    pub(crate) fn signal(&self, condition: &Arc<str>, all: bool) -> Result<oneshot::Receiver<Result<u64>>> {
        self.inner.signal(self.granted.no, Arc::clone(condition), all)
    }

    /// Releases the hold, and waits for the service's confirmation or the end of the session.
    pub(crate) async fn release(mut self) {
        self.is_released = true;
        let done = self.inner.release_acknowledged(self.granted.no);
        // It also completes when the session ends.
        let _ = done.await;
    }
}

impl Drop for GrantGuard {
    fn drop(&mut self) {
        if !self.is_released {
            self.inner.release(self.granted.no);
        }
    }
}
