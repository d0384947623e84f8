//! Fair admission to the shards: bounds the calls of this process in flight, and chooses the next account.
//!
//! Calls in flight delay later calls: in this process, on the nodes, and on their disks. So their number is bounded,
//! and accounts with queued calls take turns: a busy account waits for its own calls. Beside a light account, the
//! others get fewer concurrent calls, so that its calls take about as long as without them. A call that is queued for
//! too long is rejected without effect, and costs the nodes nothing. A call that ends or keeps a hold goes first and is
//! never rejected.
//!
//! A slow call releases its permit: it waits for something else, such as a leader, that other calls do not need.

mod concurrency_limit;
mod rate_limit;

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, Code};
use holdfast_types::AccountId;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use concurrency_limit::{AccountLoad as Seen, ConcurrencyLimit, MAX_LIGHT_CALLS};

pub(crate) use rate_limit::RateLimits;

/// Queued calls of one account.
const MAX_QUEUED_CALLS: usize = 4_096;
/// The same for calls that later wait at the shard.
const MAX_PATIENT: usize = 16_384;
/// How long a call is queued: after that, a later retry serves the caller better.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// How long a call keeps its permit.
const MAX_PERMIT_TIME: Duration = Duration::from_millis(500);

/// Whether a call can be rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// A new request, or a read.
    Normal,
    /// A call that will wait at the shard, and may as well wait here.
    Patient,
    /// A call that ends or keeps a hold of its owner.
    High,
}

/// The permits of a process.
#[derive(Default)]
pub(crate) struct FairQueue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: HashMap<AccountId, AccountQueue>,
    /// Accounts with queued calls, the next one first.
    round_robin: VecDeque<AccountId>,
    in_flight: usize,
    concurrency: ConcurrencyLimit,
}

#[derive(Default)]
struct AccountQueue {
    in_flight: usize,
    high: VecDeque<oneshot::Sender<Permit>>,
    normal: VecDeque<oneshot::Sender<Permit>>,
    is_scheduled: bool,
    load: Seen,
}

/// A permit, released when it is dropped.
pub(crate) struct Permit {
    queue: Arc<FairQueue>,
    account: AccountId,
    started_at: Instant,
    /// Whether it was for a command, and that completed.
    is_done: bool,
    /// Whether few calls, itself included, were in flight when it began, and none was queued.
    is_unloaded: bool,
    release_reason: ReleaseReason,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReleaseReason {
    /// Its call got a reply, or its caller disconnected.
    Finished,
    /// Its call takes long.
    Slow,
    /// No call received it.
    Undelivered,
}

/// Describes the metrics of admission.
pub(crate) fn describe_metrics() {
    describe_gauge!("holdfast_calls_in_flight", "Calls in flight at the shards.");
    describe_gauge!("holdfast_calls_queued", "Calls that wait for a permit.");
    describe_counter!("holdfast_calls_rejected_total", "Calls that were refused because too many wait.");
}

impl FairQueue {
    /// The permits for work that keeps a processor busy for milliseconds: one at a time, whichever account's. Several at
    /// once would delay every call of the others at each of its steps.
    pub(crate) fn one_at_a_time() -> Self {
        Self { state: Mutex::new(State { concurrency: ConcurrencyLimit::fixed(1), ..State::default() }) }
    }

    /// Waits for a permit of the account.
    ///
    /// # Errors
    /// `UNAVAILABLE` when none is free in time, or too many calls are queued already.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        account: AccountId,
        urgency: Priority,
        deadline: Instant,
    ) -> ApiResult<Permit> {
        let now = Instant::now();
        let waiting = {
            let mut state = self.state.lock();
            state.tick(now);
            let (share, limit) = (state.concurrency.share(), state.concurrency.limit());
            let account_queue = state.queues.entry(account).or_default();
            let nobody_waits = account_queue.high.is_empty() && account_queue.normal.is_empty();
            if nobody_waits && account_queue.has_capacity(share) && state.in_flight < limit {
                return Ok(state.issue(self, account, now));
            }
            state.enqueue(account, urgency).ok_or_else(overloaded)?
        };
        let until = if urgency == Priority::Normal { deadline.min(now + MAX_WAIT) } else { deadline };
        match timeout_at(until, waiting).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(overloaded()),
        }
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
            answered = &mut work => {
                permit.is_done = is_command && answered.is_ok();
                return answered;
            }
            () = is_deferred => permit.is_done = true,
            () = sleep(MAX_PERMIT_TIME) => permit.release_reason = ReleaseReason::Slow,
        }
        drop(permit);
        work.await
    }
}

fn overloaded() -> ApiError {
    counter!("holdfast_calls_rejected_total").increment(1);
    ApiError::new(Code::Unavailable, "too many calls wait at this gateway; nothing was done, try again later")
}

impl State {
    fn issue(&mut self, queue: &Arc<FairQueue>, account: AccountId, now: Instant) -> Permit {
        self.in_flight += 1;
        let account_queue = self.queues.entry(account).or_default();
        account_queue.in_flight += 1;
        account_queue.record_load();
        let is_unloaded = self.in_flight <= MAX_LIGHT_CALLS && self.round_robin.is_empty();
        Permit {
            queue: Arc::clone(queue),
            account,
            started_at: now,
            is_done: false,
            is_unloaded,
            release_reason: ReleaseReason::Finished,
        }
    }

    /// Joins the account's own queue, unless that is full.
    fn enqueue(&mut self, account: AccountId, urgency: Priority) -> Option<oneshot::Receiver<Permit>> {
        let account_queue = self.queues.entry(account).or_default();
        let (permit, waiting) = oneshot::channel();
        match urgency {
            Priority::High => account_queue.high.push_back(permit),
            Priority::Normal | Priority::Patient => {
                let max = if urgency == Priority::Patient { MAX_PATIENT } else { MAX_QUEUED_CALLS };
                if account_queue.normal.len() >= max {
                    // Cancelled calls are removed here at the latest.
                    account_queue.normal.retain(|waiting| !waiting.is_closed());
                }
                if account_queue.normal.len() >= max {
                    return None;
                }
                account_queue.normal.push_back(permit);
            }
        }
        account_queue.record_load();
        if !account_queue.is_scheduled {
            account_queue.is_scheduled = true;
            self.round_robin.push_back(account);
        }
        Some(waiting)
    }

    /// Gives permits to queued calls, one account after the other.
    fn dispatch(&mut self, queue: &Arc<FairQueue>, now: Instant) {
        let mut passed_over = 0;
        while self.in_flight < self.concurrency.limit() && passed_over < self.round_robin.len() {
            let Some(account) = self.round_robin.pop_front() else { return };
            let share = self.concurrency.share();
            let Some(account_queue) = self.queues.get_mut(&account) else { continue };
            if !account_queue.has_capacity(share) {
                self.round_robin.push_back(account);
                passed_over += 1;
                continue;
            }
            let Some(next) = account_queue.next() else {
                account_queue.is_scheduled = false;
                continue;
            };
            self.round_robin.push_back(account);
            passed_over = 0;
            let permit = self.issue(queue, account, now);
            if let Err(mut unwanted) = next.send(permit) {
                // Its caller disconnected just now. It must not release itself: that needs this very state.
                unwanted.release_reason = ReleaseReason::Undelivered;
                self.release(account);
            }
        }
    }

    fn release(&mut self, account: AccountId) {
        self.in_flight -= 1;
        if let Some(account_queue) = self.queues.get_mut(&account) {
            account_queue.in_flight -= 1;
        }
    }

    /// Updates the limits if that is due.
    fn tick(&mut self, now: Instant) {
        if !self.concurrency.is_due(now) {
            return;
        }
        self.queues.retain(|_, account_queue| {
            account_queue.is_scheduled || account_queue.in_flight > 0 || account_queue.load.is_recent()
        });
        self.concurrency.tick(now, self.queues.values_mut().map(|account_queue| &mut account_queue.load));
        for account_queue in self.queues.values_mut() {
            account_queue.record_load();
        }
        self.update_gauges();
    }

    fn update_gauges(&self) {
        if self.concurrency.is_fixed() {
            return;
        }
        let waiting: usize =
            self.queues.values().map(|account_queue| account_queue.high.len() + account_queue.normal.len()).sum();
        gauge!("holdfast_calls_in_flight").set(self.in_flight as f64);
        gauge!("holdfast_calls_queued").set(waiting as f64);
    }
}

impl AccountQueue {
    /// Returns whether another call of it may be in flight. A light account does not wait for the sake of others like
    /// it.
    fn has_capacity(&self, share: usize) -> bool {
        self.in_flight < share || (self.in_flight < MAX_LIGHT_CALLS && self.load.is_light())
    }

    /// Returns the next call whose caller still waits.
    fn next(&mut self) -> Option<oneshot::Sender<Permit>> {
        let waiting = [&mut self.high, &mut self.normal];
        waiting.into_iter().find_map(|queue| std::iter::from_fn(|| queue.pop_front()).find(|next| !next.is_closed()))
    }

    fn record_load(&mut self) {
        self.load.record(self.in_flight + self.high.len() + self.normal.len());
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.release_reason == ReleaseReason::Undelivered {
            return;
        }
        let now = Instant::now();
        let queue = Arc::clone(&self.queue);
        let mut state = queue.state.lock();
        state.release(self.account);
        match self.release_reason {
            ReleaseReason::Slow => state.concurrency.record_slow(),
            _ => state.concurrency.record(now - self.started_at, self.is_done, self.is_unloaded),
        }
        state.tick(now);
        state.dispatch(&queue, now);
        if state.in_flight == 0 {
            // Calls may be rare, and the gauges must be right all the same.
            state.update_gauges();
        }
    }
}

#[cfg(test)]
mod tests;
