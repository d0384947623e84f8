//! What a new leader takes over of the state, in pages, so that the state's lock is released in between. It is valid only
//! while the state does not change.

use holdfast_core::shard::ShardState;
use holdfast_core::{AccountId, Incarnation, Rules, SessionNumber};
use tokio::time::Instant;

use super::LeaderState;

/// Sessions, namespaces and waits in a page. A page may be longer by the waits of one namespace.
const MAX_PAGE: usize = 1_024;

/// The leader state of a leadership that is to begin.
pub(crate) struct Takeover {
    state: LeaderState,
    began_at: Instant,
    /// Where the next page begins.
    session: Option<SessionNumber>,
    has_sessions: bool,
    namespace: Option<(AccountId, Incarnation)>,
    is_done: bool,
}

impl Takeover {
    pub(crate) fn new(term: u64, rules: Rules) -> Self {
        let began_at = Instant::now();
        let state = LeaderState::empty(term, rules, began_at);
        Self { state, began_at, session: None, has_sessions: false, namespace: None, is_done: false }
    }

    /// Returns the term of the leadership.
    pub(crate) fn term(&self) -> u64 {
        self.state.term
    }

    /// Takes the next page over. Returns true if it was the last one.
    pub(crate) fn take_page(&mut self, core: &ShardState) -> bool {
        let mut left = MAX_PAGE;
        if !self.has_sessions {
            for (number, account, ttl_ms) in core.session_times(self.session) {
                if left == 0 {
                    return false;
                }
                left -= 1;
                self.state.heartbeats.opened(number, account, ttl_ms, self.began_at);
                self.session = Some(number);
            }
            self.has_sessions = true;
        }
        for (namespace, waits) in core.adopted_waits(self.namespace) {
            left = left.saturating_sub(1 + waits.len());
            let now = Instant::now();
            waits.into_iter().for_each(|wait| self.state.waits.adopt(wait, now));
            self.namespace = Some(namespace);
            if left == 0 {
                return false;
            }
        }
        self.is_done = true;
        true
    }

    /// Returns true if everything is taken over.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the leader state of a leadership that begins now: the time that it took counts for no session or wait.
    pub(crate) fn finish(mut self, rules: Rules) -> LeaderState {
        self.state.set_rules(rules);
        let now = Instant::now();
        self.state.heartbeats.suspend(now);
        self.state.waits.begin(now);
        self.state
    }
}
