//! Limits the open connections of a listener. At the limit, a new connection evicts another: an unauthenticated one
//! that is idle or busy for long, or else the longest idle one. If all are busy, it evicts one of the account with the
//! most, if that has more than its share. So neither strangers, nor idle connections, nor those of a few tenants keep
//! other clients out.
//!
//! An account has `max_connections` of them: a further one is refused with its first credential, and closed. Answers
//! that a connection has not sent are counted too, and one whose peer reads nothing is cut off.

mod request_bytes;
mod unsent_answers;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult};
use holdfast_backend::{AccountBuffers, AccountConnections, AuthContext, Service};
use holdfast_routing::{ByteBudget, NestedBudget, NestedReservation};
use holdfast_supervise::SharedGroup;
use holdfast_types::{AccountId, limit};
use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use request_bytes::{RequestBudget, RequestBytes};
use unsent_answers::UnsentAnswers;

pub(crate) use unsent_answers::AnswerReservation;
#[cfg(test)]
pub(crate) use unsent_answers::MAX_ANSWER_BYTES;

/// One in this many permits is freed ahead of need, because finding a connection to evict visits all of them.
const EVICTION_DIVISOR: usize = 100;
/// Delay before the next search for a connection to evict, when all were busy.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How long an unauthenticated connection may be busy until it gives way like an idle one, in milliseconds: a call
/// shows its credential at its beginning.
const MAX_STRANGER_BUSY_MS: u64 = 10_000;
/// Busy connections that an account always keeps: while one is replaced, the other works.
const MIN_SHARE: usize = 2;

/// The permits of all connections.
pub(super) struct ConnectionLimiter {
    limit: usize,
    free: Arc<Semaphore>,
    connections: Mutex<HashMap<u64, Arc<ConnectionState>>>,
    /// Those of all ports.
    accounts: AccountConnections,
    next_id: AtomicU64,
    started_at: Instant,
}

/// The state of one connection.
struct ConnectionState {
    /// Calls without a complete response.
    active_calls: AtomicUsize,
    /// When the last of them ended, in milliseconds since the limiter was created.
    idle_since_ms: AtomicU64,
    /// When the first of them began, likewise.
    busy_since_ms: AtomicU64,
    owner: Mutex<ConnectionOwner>,
    /// That of the owner's account. All strangers share one.
    group: SharedGroup,
    eviction: CancellationToken,
    /// Whether the connection ends after the response in progress.
    is_refused: AtomicBool,
    answers: Arc<UnsentAnswers>,
    requests: RequestBudget,
    /// The budgets of the owner.
    buffers: Mutex<AccountBuffers>,
}

/// The owner of a connection, according to its latest valid credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionOwner {
    Unknown,
    Operator,
    Account(AccountId),
}

/// The permit of one connection, released when this and every [`ActivityGuard`] is dropped.
#[derive(Clone)]
pub(super) struct ConnectionPermit {
    inner: Arc<PermitInner>,
}

struct PermitInner {
    limiter: Arc<ConnectionLimiter>,
    id: u64,
    state: Arc<ConnectionState>,
    _permit: OwnedSemaphorePermit,
    /// A stopping process waits for it.
    _task_token: TaskTrackerToken,
}

/// Held by all work on a connection, also when that is no longer HTTP. Until it is dropped, the connection is busy and
/// keeps its permit, and a stopping process waits for it. Every request carries one as an extension. Clones are cheap.
#[derive(Clone)]
pub(crate) struct ActivityGuard {
    inner: Arc<ActivityInner>,
}

struct ActivityInner {
    permit: Arc<PermitInner>,
    /// Those of the call's request.
    request_bytes: Mutex<RequestBytes>,
    /// The budget of the call's answer, if its caller has an account.
    answer_budget: Mutex<Option<ByteBudget>>,
}

impl ConnectionLimiter {
    /// Allows so many connections, and counts those of accounts in `accounts`.
    pub(super) fn new(limit: usize, accounts: AccountConnections) -> Arc<Self> {
        Arc::new(Self {
            limit,
            free: Arc::new(Semaphore::new(limit)),
            connections: Mutex::default(),
            accounts,
            next_id: AtomicU64::new(0),
            started_at: Instant::now(),
        })
    }

    /// Waits for a permit.
    pub(super) async fn acquire(self: &Arc<Self>, tasks: &TaskTracker) -> ConnectionPermit {
        let permit = loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                break permit;
            }
            self.evict();
            // It would fail only if the semaphore were closed, which never happens.
            if let Ok(Ok(permit)) = timeout(RETRY_INTERVAL, Arc::clone(&self.free).acquire_owned()).await {
                break permit;
            }
        };
        gauge!("holdfast_connections").increment(1.0);
        let state = Arc::new(ConnectionState {
            active_calls: AtomicUsize::new(0),
            idle_since_ms: AtomicU64::new(self.now_ms()),
            busy_since_ms: AtomicU64::new(0),
            owner: Mutex::new(ConnectionOwner::Unknown),
            group: self.accounts.group_of_strangers(),
            eviction: CancellationToken::new(),
            is_refused: AtomicBool::new(false),
            answers: UnsentAnswers::new(),
            requests: RequestBudget::of_stranger(),
            buffers: Mutex::default(),
        });
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.connections.lock().insert(id, Arc::clone(&state));
        let limiter = Arc::clone(self);
        ConnectionPermit {
            inner: Arc::new(PermitInner { limiter, id, state, _permit: permit, _task_token: tasks.token() }),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn evict(&self) {
        let wanted = (self.limit / EVICTION_DIVISOR).max(1);
        let seats: Vec<(u64, Arc<ConnectionState>)> = {
            let seats = self.connections.lock();
            let staying = seats.iter().filter(|(_, seat)| !seat.eviction.is_cancelled());
            staying.map(|(number, seat)| (*number, Arc::clone(seat))).collect()
        };
        let leaving = match longest_idle(&seats, self.now_ms(), wanted) {
            found if found.is_empty() => largest_account(&seats, self.limit, wanted),
            found => found,
        };
        counter!("holdfast_connections_evicted_total").increment(leaving.len() as u64);
        leaving.iter().for_each(|seat| seat.eviction.cancel());
    }
}

/// Returns connections that may give way, in the order of [`ConnectionState::eviction_order`].
fn longest_idle(seats: &[(u64, Arc<ConnectionState>)], now_ms: u64, wanted: usize) -> Vec<Arc<ConnectionState>> {
    let order_of = |(number, seat): &(u64, Arc<ConnectionState>)| Some((seat.eviction_order(now_ms)?, *number));
    let mut idle: Vec<_> = seats.iter().filter_map(|entry| Some((order_of(entry)?, &entry.1))).collect();
    idle.sort_unstable_by_key(|(order, _)| *order);
    idle.into_iter().take(wanted).map(|(_, seat)| Arc::clone(seat)).collect()
}

impl ConnectionState {
    /// Returns the budgets of this owner, if it owns the connection.
    fn buffers_of(&self, owner: ConnectionOwner) -> Option<AccountBuffers> {
        let current = self.owner.lock();
        (*current == owner).then(|| self.buffers.lock().clone())
    }

    /// Returns the place in the order of eviction, unless the connection stays: unauthenticated ones first, idle or
    /// busy for long, and then idle ones; among them those that are so for longest.
    fn eviction_order(&self, now_ms: u64) -> Option<(bool, u64)> {
        let is_known = *self.owner.lock() != ConnectionOwner::Unknown;
        if self.active_calls.load(Ordering::Acquire) == 0 {
            return Some((is_known, self.idle_since_ms.load(Ordering::Relaxed)));
        }
        let since = self.busy_since_ms.load(Ordering::Relaxed);
        let gives_way = !is_known && now_ms.saturating_sub(since) >= MAX_STRANGER_BUSY_MS;
        gives_way.then_some((is_known, since))
    }
}

/// Returns the newest connections of the account with the most, if it has more than an equal share of all.
fn largest_account(seats: &[(u64, Arc<ConnectionState>)], limit: usize, wanted: usize) -> Vec<Arc<ConnectionState>> {
    let mut of_accounts: HashMap<AccountId, Vec<&(u64, Arc<ConnectionState>)>> = HashMap::new();
    for entry in seats {
        if let ConnectionOwner::Account(account) = *entry.1.owner.lock() {
            of_accounts.entry(account).or_default().push(entry);
        }
    }
    // The new connection may be of a further account.
    let share = (limit / (of_accounts.len() + 1)).max(MIN_SHARE);
    let Some(mut greatest) = of_accounts.into_values().max_by_key(Vec::len) else { return Vec::new() };
    if greatest.len() <= share {
        return Vec::new();
    }
    greatest.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
    greatest.into_iter().take(wanted).map(|(_, seat)| Arc::clone(seat)).collect()
}

impl ConnectionPermit {
    /// Marks the beginning of a call.
    pub(super) fn start_activity(&self) -> ActivityGuard {
        let state = &self.inner.state;
        if state.active_calls.fetch_add(1, Ordering::AcqRel) == 0 {
            state.busy_since_ms.store(self.inner.limiter.now_ms(), Ordering::Relaxed);
        }
        let permit = Arc::clone(&self.inner);
        let (request_bytes, answer_budget) = (Mutex::default(), Mutex::default());
        ActivityGuard { inner: Arc::new(ActivityInner { permit, request_bytes, answer_budget }) }
    }

    /// Returns the scheduling group of the tasks of the connection.
    pub(super) fn group(&self) -> SharedGroup {
        self.inner.state.group.clone()
    }

    /// Returns when the connection must close: another one needs its permit, or its account has too many.
    pub(super) async fn evicted(&self) {
        self.inner.state.eviction.cancelled().await;
    }

    /// Returns once the peer has taken in nothing of an answer for too long.
    pub(super) async fn stalled(&self) {
        self.inner.state.answers.stalled().await;
    }
}

impl PermitInner {
    /// Counts the connection as one of this owner's, who may have so many.
    fn set_owner(&self, owner: ConnectionOwner, max: u64, buffers: AccountBuffers) -> ApiResult<()> {
        let mut current = self.state.owner.lock();
        if *current == owner {
            return Ok(());
        }
        if owner == ConnectionOwner::Operator {
            self.state.group.set(Arc::default());
        }
        if let ConnectionOwner::Account(account) = owner {
            // Others may share one whose credentials change: a proxy's.
            let group = self.limiter.accounts.add(account, max).inspect_err(|_| {
                self.state.is_refused.fetch_or(*current == ConnectionOwner::Unknown, Ordering::AcqRel);
            })?;
            self.state.group.set(group);
        }
        if let ConnectionOwner::Account(account) = *current {
            self.limiter.accounts.remove(account);
        }
        if *current != ConnectionOwner::Unknown {
            self.state.answers.set_shared();
        }
        self.state.requests.set_account(buffers.requests.clone());
        *self.state.buffers.lock() = buffers;
        *current = owner;
        Ok(())
    }
}

impl ActivityGuard {
    /// Records a valid credential of the connection.
    ///
    /// # Errors
    /// `RATE_LIMITED` if its account has as many other connections as it may. If this is the first credential of the
    /// connection, it ends after the response.
    pub(crate) fn set_owner(&self, service: &Service, caller: &AuthContext) -> ApiResult<()> {
        let account = caller.principal().account().map(|principal| principal.account);
        let owner = account.map_or(ConnectionOwner::Operator, ConnectionOwner::Account);
        let max = caller.limits().map_or(u64::MAX, |limits| limits.max_connections);
        self.count_for(owner, max, || service.account_buffers(caller))
    }

    /// Counts the connection as one of this owner's, who may have so many, and the answer of the call in the owner's
    /// budget: others may share the connection.
    fn count_for(
        &self,
        owner: ConnectionOwner,
        max: u64,
        find_buffers: impl FnOnce() -> AccountBuffers,
    ) -> ApiResult<()> {
        let permit = &self.inner.permit;
        // Almost always it is the owner of the call before.
        let buffers = match permit.state.buffers_of(owner) {
            Some(buffers) => buffers,
            None => {
                let buffers = find_buffers();
                permit.set_owner(owner, max, buffers.clone())?;
                buffers
            }
        };
        *self.inner.answer_budget.lock() = buffers.answers;
        Ok(())
    }

    /// Counts bytes of the request until the call ends.
    ///
    /// # Errors
    /// If there is no room for them: the budget to reserve them from, for [`Self::add_request`].
    pub(crate) fn count_request(&self, bytes: usize) -> Result<(), NestedBudget> {
        self.inner.request_bytes.lock().try_reserve(&self.inner.permit.state.requests, bytes)
    }

    /// Counts bytes of the request that were reserved, until the call ends.
    pub(crate) fn add_request(&self, reserved: NestedReservation, bytes: usize) {
        self.inner.request_bytes.lock().add(reserved, bytes);
    }

    /// Returns the bytes of the request that were read.
    pub(crate) fn request_bytes(&self) -> usize {
        self.inner.request_bytes.lock().read()
    }

    /// Counts the bytes of an answer that is not sent.
    ///
    /// # Errors
    /// `RATE_LIMITED` if the connection or the caller's account has too many of them.
    pub(crate) fn reserve(&self, bytes: usize) -> ApiResult<AnswerReservation> {
        let of_account = self.inner.answer_budget.lock().clone();
        self.inner.permit.state.answers.reserve(bytes, of_account.as_ref())
    }

    /// Lets the connection end after the response in progress, unless a caller with a valid credential uses it.
    pub(crate) fn refuse_stranger(&self) {
        let state = &self.inner.permit.state;
        state.is_refused.fetch_or(*state.owner.lock() == ConnectionOwner::Unknown, Ordering::AcqRel);
    }

    /// As [`Self::refuse_stranger`], if so many credentials from the address were refused that this one was not checked.
    pub(crate) fn refuse_unchecked(activity: Option<&Self>, error: &ApiError) {
        let is_unchecked = error.limit().is_some_and(|limit| limit.name == limit::REFUSED_CREDENTIALS.name);
        activity.filter(|_| is_unchecked).into_iter().for_each(Self::refuse_stranger);
    }

    /// Lets the connection end after the response in progress, unless callers of several accounts share it.
    pub(crate) fn mark_refused(&self) {
        self.inner.permit.state.is_refused.fetch_or(!self.is_shared(), Ordering::AcqRel);
    }

    /// Returns whether callers of several accounts share the connection: it is a proxy's.
    pub(crate) fn is_shared(&self) -> bool {
        self.inner.permit.state.answers.is_shared()
    }

    /// Returns whether the connection is to end after the response in progress.
    pub(crate) fn is_refused(&self) -> bool {
        self.inner.permit.state.is_refused.load(Ordering::Acquire)
    }

    /// Returns when the connection must close. Whoever uses it for anything but HTTP must close it then.
    pub(crate) async fn evicted(&self) {
        self.inner.permit.state.eviction.cancelled().await;
    }

    /// Ends the connection soon: calls in progress have a moment.
    pub(crate) fn end_connection(&self) {
        self.inner.permit.state.eviction.cancel();
    }
}

impl Drop for ActivityInner {
    fn drop(&mut self) {
        let seat = &self.permit.state;
        seat.idle_since_ms.store(self.permit.limiter.now_ms(), Ordering::Relaxed);
        seat.active_calls.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for PermitInner {
    fn drop(&mut self) {
        self.limiter.connections.lock().remove(&self.id);
        if let ConnectionOwner::Account(account) = *self.state.owner.lock() {
            self.limiter.accounts.remove(account);
        }
        gauge!("holdfast_connections").decrement(1.0);
    }
}

#[cfg(test)]
mod tests;
