//! A connection's knowledge of its session's requests that gave their locks up to await a condition.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_api::Resource;
use holdfast_api::session_message::{Await, Lock};
use holdfast_types::{FencingToken, Metadata, Mode, Path, Wait, WaitId, Woken};
use tokio::time::{Duration, Instant};

/// The state of an await, as the client was notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitState {
    /// Its command has no reply yet.
    Sent,
    /// It awaits the condition.
    Awaiting(WaitId),
    /// It waits for the lock.
    Waiting(WaitId, Woken),
}

#[derive(Debug)]
struct AwaitEntry {
    awaits: Arc<Await>,
    /// The token that it gives up, if it is known.
    token: Option<FencingToken>,
    /// The request that held the lock; unknown for one from before a resume.
    lock: Option<Arc<Lock>>,
    /// When its time to await the condition is over.
    ends_at: Option<Instant>,
    state: AwaitState,
}

/// The awaits of requests, which the limits of the account bound.
#[derive(Debug, Default)]
pub(super) struct AwaitTable {
    entries: HashMap<String, AwaitEntry>,
}

impl AwaitTable {
    /// Adds an await that the client sends. `token` and `lock` are the hold of the request, as far as known. If the
    /// await was answered before, only its time changes.
    pub(super) fn begin(&mut self, awaits: &Arc<Await>, token: Option<FencingToken>, lock: Option<Arc<Lock>>) {
        let ends_at = awaits.wait_ms.and_then(|wait_ms| Instant::now().checked_add(Duration::from_millis(wait_ms)));
        if let Some(entry) = self.entries.get_mut(&awaits.request_id).filter(|it| it.state != AwaitState::Sent) {
            (entry.awaits, entry.ends_at) = (Arc::clone(awaits), ends_at);
            return;
        }
        let (awaits, token) = (Arc::clone(awaits), awaits.fencing_token.or(token));
        let entry = AwaitEntry { token, lock, ends_at, state: AwaitState::Sent, awaits };
        self.entries.insert(entry.awaits.request_id.clone(), entry);
    }

    pub(super) fn state(&self, request_id: &str) -> Option<AwaitState> {
        self.entries.get(request_id).map(|entry| entry.state)
    }

    /// Returns the message of an await, the token that it gives up, and how long it still awaits the condition.
    pub(super) fn sent(&self, request_id: &str) -> Option<(Arc<Await>, Option<FencingToken>, Wait)> {
        let entry = self.entries.get(request_id)?;
        let left = |ends_at: Instant| ends_at.saturating_duration_since(Instant::now()).as_millis();
        let wait = match entry.ends_at {
            Some(ends_at) => Wait::For(u64::try_from(left(ends_at)).unwrap_or(u64::MAX).max(1)),
            None => Wait::Unlimited,
        };
        Some((Arc::clone(&entry.awaits), entry.token, wait))
    }

    /// Returns the names of all awaits that were answered, in order.
    pub(super) fn request_ids(&self) -> Vec<String> {
        let answered = self.entries.iter().filter(|(_, entry)| entry.state != AwaitState::Sent);
        let mut ids: Vec<String> = answered.map(|(request_id, _)| request_id.clone()).collect();
        ids.sort_unstable();
        ids
    }

    /// Records the state of an await, and returns the token that it gave up.
    pub(super) fn set(&mut self, request_id: &str, state: AwaitState) -> Option<FencingToken> {
        let entry = self.entries.get_mut(request_id)?;
        entry.state = state;
        entry.token
    }

    /// Removes an await that has its lock again, and returns the request that holds it.
    pub(super) fn relocked(&mut self, request_id: &str, path: &Path, holder: Option<String>) -> Arc<Lock> {
        let known = self.entries.remove(request_id).and_then(|entry| entry.lock);
        known.unwrap_or_else(|| {
            Arc::new(Lock {
                request_id: request_id.to_owned(),
                resources: vec![Resource { path: path.0.clone(), mode: Mode::Write }],
                holder,
                transition_ms: 0,
                at_least_ms: 0,
                metadata: Metadata::new(),
                allow_upgrade: false,
                only_try: false,
            })
        })
    }

    /// Removes an await that was not executed. An await that was answered before stays.
    pub(super) fn remove_unanswered(&mut self, request_id: &str) {
        if self.state(request_id) == Some(AwaitState::Sent) {
            self.remove(request_id);
        }
    }

    /// Removes an await that ended.
    pub(super) fn remove(&mut self, request_id: &str) {
        self.entries.remove(request_id);
    }

    /// Records the release of everything, and returns the requests that it ends.
    pub(super) fn clear(&mut self) -> Vec<String> {
        std::mem::take(&mut self.entries).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awaits(wait_ms: Option<u64>, fencing_token: Option<FencingToken>) -> Arc<Await> {
        let (request_id, condition) = ("a".to_owned(), "full".to_owned());
        Arc::new(Await { request_id, condition, wait_ms, fencing_token })
    }

    #[tokio::test]
    async fn an_await_is_sent_again_with_the_token_that_it_gave_up_and_the_time_that_is_left() {
        let mut table = AwaitTable::default();
        table.begin(&awaits(None, None), Some(7), None);
        assert_eq!(table.sent("a").map(|(_, token, wait)| (token, wait)), Some((Some(7), Wait::Unlimited)));
        assert!(table.request_ids().is_empty(), "it has no answer yet");
        table.begin(&awaits(Some(60_000), Some(8)), Some(7), None);
        let (_, token, wait) = table.sent("a").unwrap();
        assert!(token == Some(8) && matches!(wait, Wait::For(ms) if (1..=60_000).contains(&ms)), "{wait:?}");
        assert_eq!(table.set("a", AwaitState::Waiting(WaitId(3), Woken::Elapsed)), Some(8));
        assert_eq!(table.request_ids(), ["a"]);
    }

    #[tokio::test]
    async fn a_repeat_keeps_what_is_known_and_one_that_was_not_done_leaves_nothing() {
        let mut table = AwaitTable::default();
        table.begin(&awaits(None, None), Some(7), None);
        table.remove_unanswered("a");
        assert!(table.clear().is_empty(), "it was not done");
        table.begin(&awaits(None, None), Some(7), None);
        table.set("a", AwaitState::Awaiting(WaitId(3)));
        table.begin(&awaits(Some(60_000), None), None, None);
        table.remove_unanswered("a");
        assert_eq!(table.state("a"), Some(AwaitState::Awaiting(WaitId(3))));
        assert!(matches!(table.sent("a"), Some((_, Some(7), Wait::For(_)))));
    }

    #[test]
    fn a_request_that_has_its_lock_again_is_the_one_that_held_it() {
        let mut table = AwaitTable::default();
        let path = Path::flat("x");
        let unknown = table.relocked("a", &path, Some("h".to_owned()));
        assert_eq!((unknown.resources[0].path.clone(), unknown.holder.as_deref()), (vec!["x".to_owned()], Some("h")));
        let known = Arc::new(Lock { transition_ms: 5, ..(*unknown).clone() });
        table.begin(&awaits(None, None), None, Some(known));
        assert_eq!(table.relocked("a", &path, None).transition_ms, 5);
        assert_eq!(table.state("a"), None);
    }
}
