//! Responses to commands and queries.

use serde::{Deserialize, Serialize};

use super::{
    Account, AccountChange, AcquireOutcome, ApiKey, ArrivalView, AskedHolds, AskedView, AuditRecord, AwaitRecord,
    AwaitView, BarrierAnswer, BarrierView, CommandError, ConditionView, Durability, EndedGeneration, Event,
    FencingToken, Jobs, KeepAliveOutcome, LatchView, LockView, LostHold, MemberView, Namespace, NamespaceUsage, Path,
    PermitHolderView, PermitWaitView, PermitsView, PoolView, QueuedRequestView, ReleaseRequest, ReportedPermits,
    Revision, SemaphoreView, SessionNumber, SessionView, StateBytes, TableEpoch, TableState, UsageTotals, WaitView,
    Woken,
};

/// The response to a command or query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// No further data.
    Done,
    /// One account.
    Account(Account),
    /// A page of accounts.
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
    /// The changes after a revision, and up to which revision.
    AccountChanges {
        /// The changes.
        changes: Vec<AccountChange>,
        /// The revision to query from next time.
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
        /// The current state of the claimed locks, in path order.
        locks: Vec<LockView>,
    },
    /// The outcome of a release.
    Released {
        /// Whether a hold or a wait ended.
        released: bool,
        /// The current state of the named locks, in path order; at most [`super::Bounds::max_locks_in_reply`].
        locks: Vec<LockView>,
    },
    /// One lock.
    Lock(LockView),
    /// A page of locks.
    Locks {
        /// The page.
        locks: Vec<LockView>,
        /// More may follow after this path, even if the page is empty.
        next: Option<Path>,
    },
    /// Whether the token is current, and the lock.
    Checked {
        /// True exactly while the hold with that token is held.
        current: bool,
        /// The lock.
        lock: LockView,
    },
    /// The outcome of a cancel.
    Cancelled {
        /// A waiting request left the queue.
        left_queue: bool,
        /// A hold that was granted to the caller that left was released.
        grant_released: bool,
    },
    /// The counts of a reset.
    Reset {
        /// Ended holds, in any phase.
        removed_holds: u64,
        /// Ended waiting requests.
        removed_waiters: u64,
    },
    /// A session was opened or resumed.
    SessionOpened {
        /// The session.
        session: SessionView,
        /// Whether the command asked to resume a session. False for a new session, and for a repeat of its opening.
        resumed: bool,
    },
    /// The sessions that expired; the others were resumed in time or had ended before.
    SessionsExpired {
        /// Their numbers.
        ended: Vec<SessionNumber>,
    },
    /// The result of reconciling the state that a client reported.
    Reconciled {
        /// Reported holds that the session does not have.
        lost: Vec<LostHold>,
        /// Unlisted holds that were ended.
        ended_holds: u64,
        /// Unlisted waiting requests that were ended.
        ended_waits: u64,
    },
    /// The message of a session is old or a duplicate: nothing was done, and the original outcome is not known any
    /// more.
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
        /// The revision to query from next time.
        next_revision: Revision,
        /// Whether more follow.
        more: bool,
    },
    /// How much of its limits a namespace uses.
    Usage {
        /// Holds, in any phase.
        holds: u64,
        /// Waiting requests.
        waiting: u64,
        /// Sessions.
        sessions: u64,
    },
    /// One response per command of the batch, in its order.
    Batch(#[serde(deserialize_with = "super::flat::answers")] Vec<Result<Response, CommandError>>),
    /// When an account's keys were last used: key ids, and wall clocks in milliseconds since 1970.
    KeyUse(Vec<(String, u64)>),
    /// A page of the shard's audit log, newest first.
    AuditRecords {
        /// The page.
        records: Vec<AuditRecord>,
        /// Whether more follow.
        more: bool,
    },
    /// The usage of an account in a locks shard.
    AccountUsage {
        /// Its open namespaces in the shard, in order of name.
        namespaces: Vec<NamespaceUsage>,
        /// The usage of namespaces that are gone.
        ended: UsageTotals,
    },
    /// A page of waiting requests, each with its blockers.
    Queue {
        /// The page.
        waits: Vec<QueuedRequestView>,
        /// Whether more follow.
        more: bool,
    },
    /// Whether the owner holds all of the given claims in these modes, so that acquiring them again would only extend.
    Holds(bool),
    /// The charges of an account's open namespaces in a locks shard, in bytes, in order of name.
    AccountState(Vec<(String, StateBytes)>),
    /// The outcome of each keep-alive, in the order of the query.
    KeptAlive(Vec<KeepAliveOutcome>),
    /// A request of a connected session was granted: its owner has each claim in its mode under this token.
    Granted {
        /// The token.
        fencing_token: FencingToken,
    },
    /// A latch was created, or had been created with the same parameters.
    LatchCreated {
        /// The latch.
        latch: LatchView,
        /// Whether this command created it.
        is_new: bool,
    },
    /// Jobs of a latch were counted.
    CountedDown {
        /// How many of them were new.
        counted: u64,
        /// The latch.
        latch: LatchView,
    },
    /// The outcome of a change of a latch's total.
    LatchTotalSet {
        /// Whether the latch has the requested total.
        success: bool,
        /// The latch.
        latch: LatchView,
    },
    /// One latch.
    Latch(LatchView),
    /// A latch with a page of the jobs that are done.
    LatchJobs {
        /// The latch.
        latch: LatchView,
        /// The page: ids in order, or ranges in order.
        done: Jobs,
        /// Whether more follow.
        more: bool,
    },
    /// A page of latches.
    Latches {
        /// The page.
        latches: Vec<LatchView>,
        /// Whether more follow.
        more: bool,
    },
    /// One semaphore.
    Semaphore(SemaphoreView),
    /// A semaphore with a page of its holders, in order of token.
    SemaphoreHolders {
        /// The semaphore.
        semaphore: SemaphoreView,
        /// The page.
        holders: Vec<PermitHolderView>,
        /// Whether more follow.
        more: bool,
    },
    /// A page of semaphores.
    Semaphores {
        /// The page.
        semaphores: Vec<SemaphoreView>,
        /// Whether more follow.
        more: bool,
    },
    /// The outcome of an acquire of permits. A refusal has no blockers: the holders are beside it.
    PermitsAcquired {
        /// Whether it holds, waits, or neither.
        outcome: AcquireOutcome,
        /// The members that it holds, in order of name; of a semaphore, none.
        members: Vec<String>,
        /// The semaphore or the pool.
        view: PermitsView,
        /// Unless it was granted, the holder of the member that it names and those with most permits, at most
        /// [`MAX_HOLDERS_IN_REFUSAL`](super::MAX_HOLDERS_IN_REFUSAL).
        holders: Vec<PermitHolderView>,
        /// If the request extended a hold: the latest request to release it.
        release_requested: Option<Box<ReleaseRequest>>,
    },
    /// The outcome of a release of permits.
    PermitsReleased {
        /// Whether a hold or a wait ended, or members were returned.
        released: bool,
        /// The semaphore or the pool.
        view: PermitsView,
    },
    /// Whether the token is current, and what it is of.
    PermitsChecked {
        /// True exactly while the hold with that token is held, and has the member that was named.
        current: bool,
        /// The semaphore or the pool.
        view: PermitsView,
    },
    /// A page of requests that wait for permits.
    PermitWaits {
        /// The page.
        waits: Vec<PermitWaitView>,
        /// Whether more follow.
        more: bool,
    },
    /// The reported holds of semaphores and pools that the session does not have.
    PermitsReconciled {
        /// These holds.
        lost: Vec<ReportedPermits>,
        /// Which of the listed holds somebody asked for, as far as they fit into a response.
        asked: Vec<AskedHolds>,
    },
    /// One pool.
    Pool(PoolView),
    /// A pool with a page of its members, in order of name.
    PoolMembers {
        /// The pool.
        pool: PoolView,
        /// The page.
        members: Vec<MemberView>,
        /// Whether more follow.
        more: bool,
    },
    /// A page of pools.
    Pools {
        /// The page.
        pools: Vec<PoolView>,
        /// Whether more follow.
        more: bool,
    },
    /// Owners were asked to release what they hold.
    ReleaseAsked {
        /// The number of holds, those that a repeat found asked included.
        asked: u64,
        /// Whether there were more than [`MAX_ASKED`](super::MAX_ASKED), or more paths than are searched.
        truncated: bool,
        /// The lock, semaphore or pool.
        view: AskedView,
    },
    /// As [`Response::Reconciled`], if somebody asked for listed holds.
    ReconciledAsked {
        /// Reported holds that the session does not have.
        lost: Vec<LostHold>,
        /// Unlisted holds that were ended.
        ended_holds: u64,
        /// Unlisted waiting requests that were ended.
        ended_waits: u64,
        /// Which of the listed holds somebody asked for, as far as they fit into a response.
        asked: Vec<AskedHolds>,
    },
    /// One barrier.
    Barrier(BarrierView),
    /// What a party is told of a generation.
    AtBarrier {
        /// What it is told.
        answer: BarrierAnswer,
        /// The barrier.
        barrier: BarrierView,
    },
    /// A barrier with those who have come.
    BarrierArrivals {
        /// The barrier.
        barrier: BarrierView,
        /// Those who have come in order of arrival, and then those inside, at most
        /// [`MAX_ARRIVALS_IN_REPLY`](super::MAX_ARRIVALS_IN_REPLY).
        arrivals: Vec<ArrivalView>,
        /// The latest generations that ended, the last one first.
        outcomes: Vec<EndedGeneration>,
    },
    /// A page of barriers.
    Barriers {
        /// The page.
        barriers: Vec<BarrierView>,
        /// More may follow after this path, even if the page is empty.
        next: Option<Path>,
    },
    /// The outcome of an await.
    Awaited {
        /// `Enqueued` while it awaits the condition, and while it then waits for the lock; `Granted` once it has the
        /// lock again.
        outcome: AcquireOutcome,
        /// Why it waits for the lock, or has it again; absent while it awaits the condition, and for a hold that it
        /// does not have.
        woken: Option<Woken>,
        /// The lock, if a caller receives the response.
        locks: Vec<LockView>,
    },
    /// The outcome of a signal.
    Signalled {
        /// Whether the owner holds the lock.
        success: bool,
        /// How many were woken.
        signalled: u64,
        /// How many still await the condition.
        awaiting: u64,
        /// The lock, if a caller receives the response.
        locks: Vec<LockView>,
    },
    /// A page of conditions.
    Conditions {
        /// The page.
        conditions: Vec<ConditionView>,
        /// More may follow after this condition of a lock, even if the page is empty.
        next: Option<(Path, String)>,
    },
    /// A page of owners that await conditions.
    Awaits {
        /// The page.
        waits: Vec<AwaitView>,
        /// Whether more follow.
        more: bool,
    },
    /// How to cancel a wait.
    AwaitCaller(AwaitRecord),
    /// As [`Response::Namespace`], if its durability is not [`Durability::Full`].
    DurableNamespace(Namespace, Durability),
    /// As [`Response::Namespaces`], if there is such a namespace.
    DurableNamespaces {
        /// The page.
        namespaces: Vec<(Namespace, Durability)>,
        /// Whether more follow.
        more: bool,
    },
    /// The epoch of the lock tables in the leader's memory, and the latest block of revisions for them.
    TableEpoch(TableEpoch),
    /// As [`Response::SessionOpened`], if the lock table is in the leader's memory.
    TableSessionOpened {
        /// The session.
        session: SessionView,
        /// As in [`Response::SessionOpened`].
        resumed: bool,
        /// The epoch of the namespace's table.
        table_epoch: Revision,
    },
    /// How far a lock table in the leader's memory is.
    TableState(TableState),
}

impl Response {
    /// Sets the final counts once the work that the command began is finished.
    pub fn set_counts(&mut self, ended_holds: u64, ended_waits: u64) {
        match self {
            Self::Reset { removed_holds, removed_waiters } => {
                (*removed_holds, *removed_waiters) = (ended_holds, ended_waits);
            }
            Self::Reconciled { ended_holds: holds, ended_waits: waits, .. }
            | Self::ReconciledAsked { ended_holds: holds, ended_waits: waits, .. } => {
                (*holds, *waits) = (ended_holds, ended_waits);
            }
            _ => {}
        }
    }

    /// Returns the result of reconciling the state that a client reported.
    pub fn reconciled(lost: Vec<LostHold>, ended: (u64, u64), asked: Vec<AskedHolds>) -> Self {
        let (ended_holds, ended_waits) = ended;
        if asked.is_empty() {
            return Self::Reconciled { lost, ended_holds, ended_waits };
        }
        Self::ReconciledAsked { lost, ended_holds, ended_waits, asked }
    }
}

/// The reply to a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The response, or an error.
    pub outcome: Result<Response, CommandError>,
    /// The shard clock of the outcome in milliseconds: the running clock for queries. `remaining_ms` is a deadline
    /// minus this.
    pub clock_ms: u64,
    /// The number that the reply must wait for, if any. In a locks shard, the work that began at this revision must
    /// finish; elsewhere, the message with this number must leave the shard's outbox.
    pub awaits: Option<u64>,
}

impl Reply {
    /// Sets the final counts once the work that the reply awaits is finished.
    pub fn set_counts(&mut self, ended_holds: u64, ended_waits: u64) {
        self.awaits = None;
        if let Ok(response) = &mut self.outcome {
            response.set_counts(ended_holds, ended_waits);
        }
    }

    /// Returns whether an encoded reply awaits nothing, without decoding it: the awaited number comes last, and no
    /// encoded number ends in 0.
    pub fn awaits_nothing(encoded: &[u8]) -> bool {
        encoded.last() == Some(&0)
    }
}

/// The progress of work that a command began and a reply awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// In progress.
    Running,
    /// Finished.
    Done {
        /// Ended holds, in any phase.
        ended_holds: u64,
        /// Ended waiting requests.
        ended_waits: u64,
    },
    /// Never began here, or finished long ago.
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
