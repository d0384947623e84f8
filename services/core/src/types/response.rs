//! Answers to commands and queries.

use serde::{Deserialize, Serialize};

use super::{
    Account, AccountChange, AcquireOutcome, ApiKey, AuditRecord, CommandError, Event, LockView, LostHold, Namespace,
    NamespaceUsage, QueuedRequestView, Revision, SessionNumber, SessionView, StateBytes, UsageTotals, WaitView,
};

/// What a command or query answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// Nothing to tell.
    Done,
    /// One account.
    Account(Account),
    /// A page of accounts; `more` when there is another page.
    Accounts {
        /// The page.
        accounts: Vec<Account>,
        /// Whether more follow.
        more: bool,
    },
    /// One key.
    ApiKey(ApiKey),
    /// All keys of an account.
    ApiKeys(Vec<ApiKey>),
    /// What changed since, and up to where.
    AccountChanges {
        /// The changes.
        changes: Vec<AccountChange>,
        /// Ask again after this.
        now: Revision,
    },
    /// One namespace.
    Namespace(Namespace),
    /// A page of namespaces.
    Namespaces {
        /// The page.
        namespaces: Vec<Namespace>,
        /// Whether more follow.
        more: bool,
    },
    /// The outcome of an acquire.
    Acquired {
        /// Whether it holds, waits, or neither.
        outcome: AcquireOutcome,
        /// The locks claimed, as they now are, in order of path.
        locks: Vec<LockView>,
    },
    /// The outcome of a release.
    Released {
        /// Whether a hold or a wait ended.
        released: bool,
        /// The locks named, as they now are, in order of path; at most [`super::Bounds::max_locks_in_reply`].
        locks: Vec<LockView>,
    },
    /// One lock.
    Lock(LockView),
    /// A page of locks.
    Locks {
        /// The page.
        locks: Vec<LockView>,
        /// Whether more follow.
        more: bool,
    },
    /// Whether the token is current, and the lock.
    Checked {
        /// True exactly while the hold of that token is held.
        current: bool,
        /// The lock.
        lock: LockView,
    },
    /// What a cancel came to.
    Cancelled {
        /// A waiting request left the queue.
        left_queue: bool,
        /// A hold that was granted to the caller that is gone was given back.
        grant_released: bool,
    },
    /// What a reset removed.
    Reset {
        /// Holds, in any state.
        removed_holds: u64,
        /// Waiting requests.
        removed_waiters: u64,
    },
    /// A session was opened or resumed.
    SessionOpened {
        /// The session.
        session: SessionView,
        /// Whether it was there before.
        resumed: bool,
    },
    /// Which of the sessions named were expired; the others were resumed in time or had ended before.
    SessionsExpired {
        /// Their numbers.
        ended: Vec<SessionNumber>,
    },
    /// What became of what the client believed.
    Reconciled {
        /// What it believed to hold and does not.
        lost: Vec<LostHold>,
        /// Holds that it did not list, now ended.
        ended_holds: u64,
        /// Waiting requests that it did not list, now ended.
        ended_waits: u64,
    },
    /// An older message of a session, or a copy: nothing was done, and nothing is left to tell what it once came to.
    Ignored,
    /// One session.
    Session(SessionView),
    /// A page of sessions.
    Sessions {
        /// The page.
        sessions: Vec<SessionView>,
        /// Whether more follow.
        more: bool,
    },
    /// A page of waiting requests.
    Waits {
        /// The page.
        waits: Vec<WaitView>,
        /// Whether more follow.
        more: bool,
    },
    /// A page of events, in order of revision.
    Events {
        /// The page.
        events: Vec<Event>,
        /// Ask again from here.
        next_revision: Revision,
        /// Whether more follow.
        more: bool,
    },
    /// How much of its limits a namespace uses.
    Usage {
        /// Holds, in any state.
        holds: u64,
        /// Waiting requests.
        waiting: u64,
        /// Sessions.
        sessions: u64,
    },
    /// One for each command of the list, in its order.
    Batch(#[serde(deserialize_with = "super::flat::answers")] Vec<Result<Response, CommandError>>),
    /// When an account's keys were last used: key ids, and wall clocks in milliseconds since 1970.
    KeyUse(Vec<(String, u64)>),
    /// A page of the shard's audit log, the latest first.
    AuditRecords {
        /// The page.
        records: Vec<AuditRecord>,
        /// Whether more follow.
        more: bool,
    },
    /// What an account uses of a locks shard.
    AccountUsage {
        /// Its open namespaces there, in order of name.
        namespaces: Vec<NamespaceUsage>,
        /// Of those that are gone.
        ended: UsageTotals,
    },
    /// A page of waiting requests, each with what it waits for.
    Queue {
        /// The page.
        waits: Vec<QueuedRequestView>,
        /// Whether more follow.
        more: bool,
    },
    /// Whether the owner holds all that was named, in these modes, so that acquiring it again would only extend.
    Holds(bool),
    /// What an account's open namespaces in a locks shard are charged with by the bytes kept of them, in order of name.
    AccountState(Vec<(String, StateBytes)>),
}

/// What goes back to whoever asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The answer, or why there is none.
    pub outcome: Result<Response, CommandError>,
    /// The shard clock that the outcome is of, in milliseconds: the running clock for queries. `remaining_ms` is a
    /// deadline minus this.
    pub clock_ms: u64,
    /// The answer may be given once the message of this number has left the shard's outbox; in a locks shard, once what
    /// began at this revision is done.
    pub awaits: Option<u64>,
}

impl Reply {
    /// Puts in what had ended once all that the reply awaits was done.
    pub fn set_counts(&mut self, ended_holds: u64, ended_waits: u64) {
        self.awaits = None;
        match &mut self.outcome {
            Ok(Response::Reset { removed_holds, removed_waiters }) => {
                (*removed_holds, *removed_waiters) = (ended_holds, ended_waits);
            }
            Ok(Response::Reconciled { ended_holds: holds, ended_waits: waits, .. }) => {
                (*holds, *waits) = (ended_holds, ended_waits);
            }
            _ => {}
        }
    }

    /// Whether an encoded reply awaits nothing, without reading it: what it awaits comes last, and no number ends in 0.
    pub fn awaits_nothing(encoded: &[u8]) -> bool {
        encoded.last() == Some(&0)
    }
}

/// How far it is with what a command began and a reply awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It goes on.
    Running,
    /// It is done.
    Done {
        /// Holds, in any state.
        ended_holds: u64,
        /// Waiting requests.
        ended_waits: u64,
    },
    /// It never began here, or was done long ago.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reply_awaits_is_seen_at_its_end() {
        for awaits in [None, Some(1), Some(127), Some(128), Some(1 << 14), Some(300), Some(u64::MAX)] {
            let reply = Reply { outcome: Ok(Response::Done), clock_ms: 0, awaits };
            assert_eq!(Reply::awaits_nothing(&crate::codec::encode(&reply)), awaits.is_none(), "{awaits:?}");
        }
    }
}
