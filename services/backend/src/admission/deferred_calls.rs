//! Calls that wait at a shard, requests of sessions that wait for a lock table in memory, watches, and connections of
//! sessions: they take memory for minutes, and no permits. So they are counted apart, and are never the reason to
//! refuse another kind of call. Connections have a limit of their own.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use holdfast_api::{ApiError, ApiResult};
use holdfast_types::Limits;
use holdfast_types::limit::{self, Limit};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Share, Sharer};

/// What a refused caller does.
const HINT: &str = "end some, or wait at another gateway";
const SESSION_HINT: &str = "end some, or connect to another gateway";

/// Bytes that an account with few held calls may have as well, so that any one of its requests fits: 64 KiB of text,
/// and 24 bytes for each of 8,192 segments.
const MIN_MAX_BYTES: u64 = 256 * 1_024;

/// Questions of one account that are answered at a time, once the leader has replied. Thousands at once would delay the
/// calls of all others in the process.
const MAX_ANSWERING: usize = 64;

/// Counts the held calls of each account. Clones share the counts.
#[derive(Clone, Default)]
pub(crate) struct DeferredCalls {
    counts: Arc<Mutex<HashMap<(Sharer, Kind), Count>>>,
}

/// Waits and watches never refuse a session, which would lose its holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Call,
    Question,
    SessionConnection,
}

struct Count {
    calls: u64,
    bytes: u64,
    /// Has a permit for each call that may be answered now.
    turns: Arc<Semaphore>,
}

impl Default for Count {
    fn default() -> Self {
        Self { calls: 0, bytes: 0, turns: Arc::new(Semaphore::new(MAX_ANSWERING)) }
    }
}

/// A call that is counted until it is dropped.
pub(crate) struct DeferredCall {
    calls: DeferredCalls,
    counted_as: (Sharer, Kind),
    bytes: u64,
}

impl fmt::Debug for DeferredCall {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("DeferredCall").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl DeferredCalls {
    /// Returns the limits of held calls, each with how much a sharer uses.
    pub(crate) fn used(&self, sharer: Sharer) -> [(&'static Limit, u64); 3] {
        let counts = self.counts.lock();
        let kinds = [
            (&limit::HELD_CALLS, Kind::Call),
            (&limit::HELD_QUESTIONS, Kind::Question),
            (&limit::SESSION_CONNECTIONS, Kind::SessionConnection),
        ];
        kinds.map(|(limit, kind)| (limit, counts.get(&(sharer, kind)).map_or(0, |count| count.calls)))
    }

    /// Counts a wait or a watch.
    ///
    /// # Errors
    /// `RATE_LIMITED` at the account's limit.
    pub(crate) fn acquire(&self, share: Share, bytes: usize) -> ApiResult<DeferredCall> {
        let (counted_as, bytes) = ((share.sharer, Kind::Call), bytes as u64);
        let max = share.max_held_calls;
        let max_bytes = max.saturating_mul(Limits::BYTES_PER_HELD_CALL).max(MIN_MAX_BYTES);
        let mut counts = self.counts.lock();
        let (calls, used) = counts.get(&counted_as).map_or((0, 0), |count| (count.calls, count.bytes));
        if calls >= max {
            return Err(ApiError::limited(&limit::HELD_CALLS, max, HINT));
        }
        if used + bytes > max_bytes {
            return Err(ApiError::limited_to(&limit::HELD_CALLS, limit::HELD_BYTES, max_bytes, HINT));
        }
        let count = counts.entry(counted_as).or_default();
        count.calls += 1;
        count.bytes += bytes;
        Ok(DeferredCall { calls: self.clone(), counted_as, bytes })
    }

    /// Counts a wait for something that is no request of its caller, such as a latch.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED` at the account's limit.
    pub(crate) fn acquire_deferred_query(&self, share: Share) -> ApiResult<DeferredCall> {
        let (counted_as, max) = ((share.sharer, Kind::Question), share.max_held_questions);
        let mut counts = self.counts.lock();
        if counts.get(&counted_as).map_or(0, |count| count.calls) >= max {
            return Err(ApiError::limited(&limit::HELD_QUESTIONS, max, HINT));
        }
        counts.entry(counted_as).or_default().calls += 1;
        Ok(DeferredCall { calls: self.clone(), counted_as, bytes: 0 })
    }

    /// Waits for the turn of a counted question among the questions of its account. Dropping the permit lets the next
    /// question proceed.
    pub(crate) async fn answer_permit(&self, sharer: Sharer) -> Option<OwnedSemaphorePermit> {
        let turns = self.counts.lock().get(&(sharer, Kind::Question)).map(|count| Arc::clone(&count.turns))?;
        turns.acquire_owned().await.ok()
    }

    /// Counts the connection of a session.
    ///
    /// # Errors
    /// `RATE_LIMITED` at the limit.
    pub(crate) fn connect(&self, sharer: Sharer) -> ApiResult<DeferredCall> {
        let counted_as = (sharer, Kind::SessionConnection);
        let mut counts = self.counts.lock();
        let connected = counts.get(&counted_as).map_or(0, |count| count.calls);
        if connected >= limit::MAX_SESSION_CONNECTIONS {
            let max = limit::MAX_SESSION_CONNECTIONS;
            return Err(ApiError::limited(&limit::SESSION_CONNECTIONS, max, SESSION_HINT));
        }
        counts.entry(counted_as).or_default().calls += 1;
        Ok(DeferredCall { calls: self.clone(), counted_as, bytes: 0 })
    }
}

impl Drop for DeferredCall {
    fn drop(&mut self) {
        let mut counts = self.calls.counts.lock();
        if let Some(count) = counts.get_mut(&self.counted_as) {
            count.calls -= 1;
            count.bytes -= self.bytes;
            if count.calls == 0 {
                counts.remove(&self.counted_as);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use holdfast_api::Code;
    use holdfast_types::AccountId;

    use super::*;

    fn share(account: u64) -> Share {
        Share { max_held_calls: 3, ..Share::of(Sharer::Account(AccountId(account))) }
    }

    #[test]
    fn an_account_holds_so_many_calls_and_bytes_and_another_has_its_own() {
        let held = DeferredCalls::default();
        let large = 86_016;
        let mut calls: Vec<DeferredCall> = (0..3).map(|_| held.acquire(share(1), large).unwrap()).collect();
        let refused = held.acquire(share(1), 0).err().unwrap();
        assert_eq!((refused.code, refused.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(refused.ids, [("limit", "max_held_calls".to_owned()), ("max", "3".to_owned())]);
        let used = [(&limit::HELD_CALLS, 3), (&limit::HELD_QUESTIONS, 0), (&limit::SESSION_CONNECTIONS, 0)];
        assert_eq!(held.used(share(1).sharer), used);
        calls.push(held.acquire(share(2), large).unwrap());
        calls.remove(0);
        let refused = held.acquire(share(1), large + 4_097).err().unwrap();
        assert_eq!(refused.ids, [("limit", "max_held_calls".to_owned()), ("max", "262144".to_owned())]);
        calls.push(held.acquire(share(1), large + 4_096).unwrap());
        drop(calls);
        assert!(held.counts.lock().is_empty(), "nothing is kept of accounts that hold nothing");
    }

    #[test]
    fn many_held_calls_have_more_bytes_and_one_has_enough_for_the_largest_request() {
        let held = DeferredCalls::default();
        let with_max = |max_held_calls| Share { max_held_calls, ..share(1) };
        assert!(held.acquire(with_max(1), 262_144).is_ok());
        assert!(held.acquire(with_max(1), 262_145).is_err());
        assert!(held.acquire(with_max(65), 65 * 4_096).is_ok());
        assert!(held.acquire(with_max(65), 65 * 4_096 + 1).is_err());
    }

    #[test]
    fn questions_have_a_limit_of_their_own_and_another_account_has_its_own() {
        let held = DeferredCalls::default();
        let share = Share { max_held_questions: 2, max_held_calls: 0, ..share(1) };
        let asked = [held.acquire_deferred_query(share).unwrap(), held.acquire_deferred_query(share).unwrap()];
        let refused = held.acquire_deferred_query(share).err().unwrap();
        assert_eq!((refused.code, &refused.ids[0].1[..]), (Code::QuotaExceeded, "max_held_questions"));
        assert!(held.acquire(share, 0).is_err(), "other calls have theirs");
        assert_eq!(held.used(share.sharer)[1], (&limit::HELD_QUESTIONS, 2));
        let of_another = Share { max_held_questions: 2, ..self::share(2) };
        assert!(held.acquire_deferred_query(of_another).is_ok(), "another account has its own");
        drop(asked);
        assert!(held.acquire_deferred_query(share).is_ok());
    }

    #[test]
    fn so_many_questions_of_an_account_are_answered_at_a_time_whatever_the_others_do() {
        let held = DeferredCalls::default();
        let of_account = |account| Share { max_held_questions: 200, ..share(account) };
        let asked: Vec<DeferredCall> =
            [1, 1, 2].map(|account| held.acquire_deferred_query(of_account(account)).unwrap()).into_iter().collect();
        let turn = |account| held.answer_permit(share(account).sharer).now_or_never();
        let turns: Vec<_> = (0..MAX_ANSWERING).map(|_| turn(1).flatten().unwrap()).collect();
        assert!(turn(1).is_none(), "all others have to wait");
        assert!(turn(2).flatten().is_some(), "another account has its own turns");
        drop(turns);
        assert!(turn(1).flatten().is_some());
        drop(asked);
        assert!(held.counts.lock().is_empty());
    }

    #[test]
    fn sessions_connect_up_to_a_limit_of_their_own_and_those_of_other_accounts_go_on() {
        let held = DeferredCalls::default();
        let of_account = |account| Sharer::Account(AccountId(account));
        let calls: Vec<DeferredCall> = (0..3).map(|_| held.acquire(share(1), 0).unwrap()).collect();
        let connect = || held.connect(of_account(1));
        let mut connections: Vec<DeferredCall> =
            (0..limit::MAX_SESSION_CONNECTIONS).map(|_| connect().unwrap()).collect();
        let refused = connect().err().unwrap();
        assert_eq!((refused.code, refused.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(refused.ids, [("limit", "session_connections".to_owned()), ("max", "65536".to_owned())]);
        assert!(held.connect(of_account(2)).is_ok());
        connections.pop();
        assert!(connect().is_ok());
        drop((calls, connections));
        assert!(held.counts.lock().is_empty(), "nothing is kept of accounts that hold nothing");
    }
}
