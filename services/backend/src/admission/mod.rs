//! Fair admission to the shards: bounds the calls of this process in flight, and chooses the next account.
//!
//! Calls in flight delay later calls: in this process, on the nodes, and on their disks. So their number is bounded,
//! and accounts with queued calls share the permits: a busy account waits for its own calls. Beside a light account,
//! the others get fewer concurrent calls, so that its calls take about as long as without them. A call that is queued
//! for too long is rejected without effect, and costs the nodes nothing. A call that ends or keeps a hold goes first
//! within its account, and is rejected last.
//!
//! A slow call releases its permit: it waits for something else, such as a leader, that other calls do not need. It
//! counts as an open call of its account until it ends. Calls that wait at the shard are counted apart, see
//! [`DeferredCalls`].

mod concurrency_limit;
mod deferred_calls;
mod state;

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult};
use holdfast_types::limit::{self, Limit};
use holdfast_types::{Account, AccountId, Limits};
use metrics::describe_gauge;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use concurrency_limit::ConcurrencyLimit;
use state::{Admitted, State, queue_is_full};

pub(crate) use deferred_calls::{DeferredCall, DeferredCalls};

/// How long a call is queued: after that, a later retry serves the caller better.
const MAX_WAIT: Duration = Duration::from_millis(limit::MAX_QUEUED_MS);
/// How long a call to a shard keeps its permit.
const MAX_PERMIT_TIME: Duration = Duration::from_millis(500);
/// What a rejected caller does.
const RETRY_HINT: &str = "nothing was done, try again later";

/// Whether a call can be rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// A new request, or a read.
    Normal,
    /// A call that will wait at the shard, and may as well wait here; or one of which a connection has one at a time.
    Patient,
    /// A call that ends or keeps a hold of its owner.
    High,
}

/// Who shares the permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sharer {
    /// An account.
    Account(AccountId),
    /// The operator, whichever accounts the calls are about.
    Operator,
    /// Look-ups of credentials, which may be of no account.
    LookUps,
}

/// Who calls, and how much it may have at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) sharer: Sharer,
    /// Calls that are queued or in progress, besides urgent and held ones.
    pub(crate) max_open_calls: u64,
    pub(crate) max_held_calls: u64,
    /// Maximum number of waits for replies that the leader holds back.
    pub(crate) max_held_questions: u64,
}

impl Share {
    /// The share of a sharer without limits of its own.
    pub(crate) fn of(sharer: Sharer) -> Self {
        let Limits { max_open_calls, max_held_calls, max_held_questions, .. } = Limits::default();
        Self { sharer, max_open_calls, max_held_calls, max_held_questions }
    }
}

impl From<&Account> for Share {
    fn from(account: &Account) -> Self {
        let Limits { max_open_calls, max_held_calls, max_held_questions, .. } = account.limits;
        Self { sharer: Sharer::Account(account.id), max_open_calls, max_held_calls, max_held_questions }
    }
}

/// What a call needs a permit for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionRequest {
    pub(crate) share: Share,
    pub(crate) priority: Priority,
    /// Approximate bytes of the call.
    pub(crate) bytes: usize,
}

/// The permits of a process.
pub(crate) struct Admission {
    state: Mutex<State>,
    max_permit_time: Duration,
}

/// A permit. Dropping it ends its call.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    request: AdmissionRequest,
    started_at: Instant,
    /// Whether it was for a command, and that completed.
    is_done: bool,
    /// Whether few calls, itself included, were in flight when it began, and none was queued.
    is_unloaded: bool,
    /// Whether its call counts as one in flight.
    is_in_flight: bool,
    /// Whether its call counts as an open one.
    is_open: bool,
}

/// Why a permit is released.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReleaseReason {
    /// Its call got a reply, or its caller disconnected.
    Finished,
    /// Its call takes long, and stays open.
    Slow,
}

/// Why a call gets no permit. It is reported outside of the lock.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    limit: &'static Limit,
    /// Its value.
    max: u64,
}

impl Refusal {
    fn report(self) -> ApiError {
        rejected(self.limit, self.max)
    }
}

/// A call that waits for a permit.
struct QueuedCall {
    admission: Arc<Admission>,
    request: AdmissionRequest,
    receiver: oneshot::Receiver<Permit>,
    is_admitted: bool,
}

/// Describes the metrics of admission.
pub(crate) fn describe_metrics() {
    describe_gauge!("holdfast_calls_in_flight", "Calls to shards in flight.");
    describe_gauge!("holdfast_calls_queued", "Calls waiting for a permit.");
}

/// Returns the error for a call that a limit of this gateway rejects.
fn rejected(limit: &'static Limit, max: u64) -> ApiError {
    ApiError::limited(limit, max, RETRY_HINT)
}

impl Default for Admission {
    fn default() -> Self {
        Self { state: Mutex::default(), max_permit_time: MAX_PERMIT_TIME }
    }
}

impl Admission {
    /// Has `limit` permits, however long the calls take, whichever accounts'. A call keeps its permit for at most
    /// `max_permit_time`.
    pub(crate) fn fixed(limit: usize, max_permit_time: Duration) -> Self {
        Self { state: Mutex::new(State::new(ConcurrencyLimit::fixed(limit))), max_permit_time }
    }

    /// Returns the limits of calls, each with how much a sharer uses.
    pub(crate) fn used(&self, sharer: Sharer) -> [(&'static Limit, u64); 4] {
        self.state.lock().used(sharer)
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// `UNAVAILABLE` when none is free in time, or too many calls are queued already; `RATE_LIMITED` when the account
    /// has too many open calls.
    pub(crate) async fn acquire(self: &Arc<Self>, request: AdmissionRequest, deadline: Instant) -> ApiResult<Permit> {
        let now = Instant::now();
        let admitted = self.state.lock().admit(self, request, now);
        let receiver = match admitted.map_err(Refusal::report)? {
            Admitted::AtOnce(permit) => return Ok(permit),
            Admitted::Queued(receiver) => receiver,
        };
        let mut queued = QueuedCall { admission: Arc::clone(self), request, receiver, is_admitted: false };
        let until = if request.priority == Priority::Normal { deadline.min(now + MAX_WAIT) } else { deadline };
        queued.admitted(until).await
    }

    /// Runs a call under its permit. Releases the permit early when the call takes long, or when it waits at the shard.
    pub(crate) async fn run<T>(
        mut permit: Permit,
        is_command: bool,
        deferred: Option<CancellationToken>,
        work: impl Future<Output = ApiResult<T>>,
    ) -> ApiResult<T> {
        let mut work = pin!(work);
        let is_deferred = async {
            match &deferred {
                Some(deferred) => deferred.cancelled().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            answered = permit.run(&mut work) => {
                permit.is_done = is_command && answered.is_ok();
                return answered;
            }
            () = is_deferred => permit.is_done = true,
        }
        drop(permit);
        work.await
    }
}

impl QueuedCall {
    /// Waits for the permit. Fails if there is none in time, or if the call made room for one of another account.
    async fn admitted(&mut self, until: Instant) -> ApiResult<Permit> {
        match timeout_at(until, &mut self.receiver).await {
            Ok(Ok(permit)) => {
                self.is_admitted = true;
                Ok(permit)
            }
            Ok(Err(_)) => Err(queue_is_full(self.request.priority).report()),
            Err(_) => Err(rejected(&limit::QUEUED_TIME, limit::MAX_QUEUED_MS)),
        }
    }
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        if self.is_admitted {
            return;
        }
        let mut state = self.admission.state.lock();
        // Permits are sent under the lock, so none is sent after this look.
        let undelivered = self.receiver.try_recv();
        self.receiver.close();
        if let Err(error) = &undelivered {
            state.leave(&self.request, *error == TryRecvError::Empty);
        }
        drop(state);
        // It releases itself, which needs the state.
        drop(undelivered);
    }
}

impl Permit {
    /// Runs something under the permit, and releases that early when it takes long. The call stays open.
    pub(crate) async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep(self.admission.max_permit_time) => {}
        }
        self.release(ReleaseReason::Slow);
        work.await
    }

    /// Returns whether it still keeps others from theirs.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.is_in_flight
    }

    /// Releases what the reason ends.
    fn release(&mut self, reason: ReleaseReason) {
        let now = Instant::now();
        let admission = Arc::clone(&self.admission);
        let mut state = admission.state.lock();
        if std::mem::take(&mut self.is_in_flight) {
            state.release(self.request.share.sharer);
            match reason {
                ReleaseReason::Slow => state.concurrency.record_slow(),
                ReleaseReason::Finished => {
                    state.concurrency.record(now - self.started_at, self.is_done, self.is_unloaded);
                }
            }
        }
        if reason == ReleaseReason::Finished && std::mem::take(&mut self.is_open) {
            state.close(&self.request);
        }
        state.tick(now);
        state.dispatch(&admission, now);
        state.update_gauges_if_idle();
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Permit").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_in_flight || self.is_open {
            self.release(ReleaseReason::Finished);
        }
    }
}

#[cfg(test)]
mod tests;
