//! What the users of a session and its task have in common.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use holdfast_proto::v1::client_message::{LockInfo, Message as Said};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::events::Events;
use super::lease::Lease;
use super::table::{Ask, Effect, Granted, RequestNo, Table, Waiter};
use crate::error::{EndReason, Error, LossReason, Result};
use crate::locks::LockStatus;
use crate::view::{Path, Standing};

pub(crate) struct Shared {
    pub(crate) lease: Lease,
    pub(crate) events: Events,
    /// There is something to say.
    pub(super) wake: Notify,
    /// The session is to be closed.
    pub(super) close: CancellationToken,
    /// The session is over, and everybody was told.
    over: CancellationToken,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    table: Table,
    waiters: HashMap<Waiter, Record>,
    last_waiter: Waiter,
}

/// Somebody who waits for an answer.
struct Record {
    no: RequestNo,
    answer: Answer,
}

enum Answer {
    Grant { to: oneshot::Sender<Result<Claimed>>, progress: Option<mpsc::Sender<Standing>> },
    Status(oneshot::Sender<Result<LockStatus>>),
    Release(oneshot::Sender<()>),
}

impl Shared {
    pub(super) fn new(lease: Lease, events: Events) -> Arc<Self> {
        let (wake, close) = (Notify::new(), CancellationToken::new());
        let over = CancellationToken::new();
        Arc::new(Self { lease, events, wake, close, over, state: Mutex::default() })
    }

    /// Asks for locks. Dropping what is returned gives up, and leaves nothing behind.
    pub(crate) fn ask(self: &Arc<Self>, ask: Ask, progress: Option<mpsc::Sender<Standing>>) -> Result<Ticket> {
        let (to, answer) = oneshot::channel();
        let waiter = self.ask_with(ask, Answer::Grant { to, progress })?;
        Ok(Ticket { shared: Arc::clone(self), waiter, answer })
    }

    /// Asks for a lock of the lock service view; the first that is known of it is the answer.
    pub(crate) fn ask_kept(self: &Arc<Self>, ask: Ask) -> Result<oneshot::Receiver<Result<LockStatus>>> {
        let (to, answer) = oneshot::channel();
        self.ask_with(ask, Answer::Status(to))?;
        Ok(answer)
    }

    fn ask_with(self: &Arc<Self>, ask: Ask, answer: Answer) -> Result<Waiter> {
        if let Some(reason) = self.lease.over() {
            return Err(Error::SessionEnded(reason));
        }
        self.update(|state| {
            let waiter = state.next_waiter();
            match state.table.ask(ask, waiter) {
                Ok((no, effects)) => {
                    state.waiters.insert(waiter, Record { no, answer });
                    (Ok(waiter), effects)
                }
                Err(error) => (Err(error), Vec::new()),
            }
        })
    }

    /// Gives back what somebody had.
    fn release(self: &Arc<Self>, no: RequestNo) {
        self.update(|state| ((), state.table.release(no, None)));
    }

    /// As `release`, and says when it is done.
    fn release_and_tell(self: &Arc<Self>, no: RequestNo) -> oneshot::Receiver<()> {
        let (to, done) = oneshot::channel();
        self.update(|state| {
            let waiter = state.next_waiter();
            state.waiters.insert(waiter, Record { no, answer: Answer::Release(to) });
            ((), state.table.release(no, Some(waiter)))
        });
        done
    }

    /// Ends the lock service view's request for a path, and says when it is done.
    pub(crate) fn release_kept(self: &Arc<Self>, path: &Path) -> Option<oneshot::Receiver<()>> {
        let no = self.state.lock().table.kept(path)?.0;
        Some(self.release_and_tell(no))
    }

    /// Ends all requests of the lock service view.
    pub(crate) fn release_all_kept(self: &Arc<Self>) -> Vec<oneshot::Receiver<()>> {
        let all = self.state.lock().table.all_kept();
        all.into_iter().map(|no| self.release_and_tell(no)).collect()
    }

    pub(crate) fn status(&self, path: &Path) -> LockStatus {
        if self.lease.over().is_some() {
            return LockStatus::None;
        }
        self.state.lock().table.kept(path).map_or(LockStatus::None, |(_, status)| status)
    }

    /// How many requests are not over.
    pub(crate) fn request_count(&self) -> usize {
        self.state.lock().table.len()
    }

    pub(super) fn has_to_say(&self) -> bool {
        self.state.lock().table.has_to_say()
    }

    pub(super) fn say(&self) -> Option<Said> {
        self.state.lock().table.say()
    }

    pub(super) fn has_to_repeat(&self) -> bool {
        self.state.lock().table.has_to_repeat()
    }

    pub(super) fn lock_info(&self) -> LockInfo {
        self.state.lock().table.lock_info()
    }

    /// Changes the table on account of something that was heard.
    pub(super) fn heard(self: &Arc<Self>, change: impl FnOnce(&mut Table) -> Vec<Effect>) {
        self.update(|state| ((), change(&mut state.table)));
    }

    /// The session is over: everybody is told. Returns how it ended, which may have been known before.
    pub(super) fn end(self: &Arc<Self>, reason: EndReason) -> EndReason {
        let reason = self.lease.end(reason);
        self.heard(|table| table.end(&reason));
        self.over.cancel();
        reason
    }

    /// Completes when everybody was told that the session is over.
    pub(super) async fn closed(&self) -> EndReason {
        self.over.cancelled().await;
        self.lease.wait_over().await
    }

    fn update<R>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> (R, Vec<Effect>)) -> R {
        let mut unwanted = Vec::new();
        let (result, has_to_say) = {
            let mut state = self.state.lock();
            let (result, effects) = change(&mut state);
            for effect in effects {
                unwanted.extend(self.take_effect(&mut state, effect));
            }
            (result, state.table.has_to_say())
        };
        // What nobody took is released when it is dropped, for which the lock has to be free.
        drop(unwanted);
        if has_to_say {
            self.wake.notify_one();
        }
        result
    }

    /// Returns a grant that nobody takes any more.
    fn take_effect(self: &Arc<Self>, state: &mut State, effect: Effect) -> Option<Claimed> {
        match effect {
            Effect::Tell(event) => self.events.push(event),
            Effect::Renamed(waiter, no) => {
                if let Some(record) = state.waiters.get_mut(&waiter) {
                    record.no = no;
                }
            }
            Effect::Standing(waiter, standing) => match state.waiters.get(&waiter).map(|record| &record.answer) {
                // Whoever does not read its progress misses some of it, and nothing else.
                Some(Answer::Grant { progress: Some(progress), .. }) => drop(progress.try_send(standing)),
                Some(Answer::Status(_)) => answer_status(state, waiter, Ok(LockStatus::Waiting)),
                _ => {}
            },
            Effect::Granted(waiter, granted) => {
                let record = state.waiters.remove(&waiter);
                match record.map(|record| record.answer) {
                    Some(Answer::Grant { to, .. }) => {
                        let claimed = Claimed { shared: Arc::clone(self), granted, is_released: false };
                        return to.send(Ok(claimed)).err().and_then(Result::ok);
                    }
                    Some(Answer::Status(to)) => drop(to.send(Ok(LockStatus::Holding))),
                    _ => {}
                }
            }
            Effect::Failed(waiter, error) => match state.waiters.remove(&waiter).map(|record| record.answer) {
                Some(Answer::Grant { to, .. }) => drop(to.send(Err(error))),
                Some(Answer::Status(to)) => drop(to.send(Err(error))),
                _ => {}
            },
            Effect::Released(waiter) => {
                if let Some(Record { answer: Answer::Release(to), .. }) = state.waiters.remove(&waiter) {
                    // Nobody has to wait for it.
                    let _ = to.send(());
                }
            }
        }
        None
    }
}

fn answer_status(state: &mut State, waiter: Waiter, status: Result<LockStatus>) {
    if let Some(Record { answer: Answer::Status(to), .. }) = state.waiters.remove(&waiter) {
        let _ = to.send(status);
    }
}

impl State {
    fn next_waiter(&mut self) -> Waiter {
        self.last_waiter += 1;
        self.last_waiter
    }
}

/// A request under way. Ready when it is granted or refused; dropped before, it leaves the queue.
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    waiter: Waiter,
    answer: oneshot::Receiver<Result<Claimed>>,
}

impl Ticket {
    /// Asks the service where the request stands; its progress then says so.
    pub(crate) fn ask_again(&self) {
        self.shared.update(|state| {
            if let Some(record) = state.waiters.get(&self.waiter) {
                state.table.ask_again(record.no);
            }
            ((), Vec::new())
        });
    }
}

impl Future for Ticket {
    type Output = Result<Claimed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Whoever is to answer goes only when the session does.
        let gone = || Err(Error::SessionEnded(EndReason::Closed));
        Pin::new(&mut self.answer).poll(context).map(|answer| answer.unwrap_or_else(|_| gone()))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.update(|state| match state.waiters.remove(&self.waiter) {
            Some(record) => ((), state.table.give_up(record.no, self.waiter)),
            // It was answered. A grant that was not taken is dropped with the answer.
            None => ((), Vec::new()),
        });
    }
}

/// Something that is held, until it is dropped.
pub(crate) struct Claimed {
    shared: Arc<Shared>,
    granted: Granted,
    is_released: bool,
}

impl Claimed {
    pub(crate) fn token(&self) -> u64 {
        self.granted.token
    }

    pub(crate) fn tokens(&self) -> &Arc<BTreeMap<Path, u64>> {
        &self.granted.tokens
    }

    pub(crate) fn loss(&self) -> &watch::Receiver<Option<LossReason>> {
        &self.granted.loss
    }

    /// Gives it back, and waits until the service has done it, or the session is over.
    pub(crate) async fn release(mut self) {
        self.is_released = true;
        let done = self.shared.release_and_tell(self.granted.no);
        // It is answered when the session ends, too.
        let _ = done.await;
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if !self.is_released {
            self.shared.release(self.granted.no);
        }
    }
}
