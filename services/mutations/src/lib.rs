//! Mutations: faults built into Holdfast on purpose, to prove that the tests find them.
//!
//! Purpose: name the mutations, and tell the code that one changes whether it is enabled. Also panics at points where
//! Holdfast must survive a panic, see [`maybe_panic`], and runs tests with mutations, see [`failure_of_test`].
//!
//! Invariant: without the feature `enabled`, which only the simulation of `tests/sim` can switch on and which is off by
//! default there too, [`is_enabled`] is the constant `false`, [`maybe_panic`] does nothing, and the compiler removes every
//! mutation. With the feature, a process can enable mutations and cannot disable them again.
//!
//! Deliberately unknown here: how a mutation breaks the code. That stands where the code is.

mod panics;
mod test_runs;

pub use panics::{INJECTED_PANIC, PANIC_POINTS, UNSIMULATED_PANIC_POINTS, inject_panic, maybe_panic, pending_panics};
pub use test_runs::{assert_each_breaks_its_test, enable_from_env, failure_of_test};

/// Makes the enumeration, the list of all, and their names of one list.
macro_rules! mutations {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A fault that a test build can enable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutation {
            $($(#[$doc])* $variant,)*
        }

        impl Mutation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// What it is called on a command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

mutations! {
    /// Leases are counted by the wall clock.
    WallClock = "wall-clock",
    /// An append is reported as durable before it is.
    AnswerBeforeSync = "answer-before-sync",
    /// A vote is given before it is durable.
    VoteNotSynced = "vote-not-synced",
    /// A replica votes right after its restart, without waiting for the lease that it granted before to end.
    EarlyVote = "early-vote",
    /// A leader that is restarted leads on without an election.
    RestoredLeadership = "restored-leadership",
    /// A leader answers reads without checking that its lease still runs.
    StaleReads = "stale-reads",
    /// A leader acknowledges keep-alives without checking that its lease still runs.
    KeepAliveByDeposed = "keep-alive-by-deposed",
    /// A leader acknowledges a keep-alive while the entry that ends the session is in flight.
    KeepAliveWhileExpiring = "keep-alive-while-expiring",
    /// Questions are answered as of the running clock instead of the last applied entry.
    RunningClock = "running-clock",
    /// A caller that goes away takes the place in the queue with it, also when another one has taken it over.
    LateCancel = "late-cancel",
    /// A snapshot has no waiting requests.
    QueueLost = "queue-lost",
    /// A restarted replica begins without its snapshot, and with it without its revision.
    TokensReset = "tokens-reset",
    /// Now and then an entry is applied twice where nobody waits for its reply.
    DuplicateApply = "duplicate-apply",
    /// The locks of a namespace outlive its deletion.
    PurgeMissed = "purge-missed",
    /// A survivor that stands again does not look whether it has granted a lease meanwhile.
    RetryUnchecked = "retry-unchecked",
    /// A leader that has voted for another one goes on reading while its acknowledgements are fresh.
    VoteUntied = "vote-untied",
    /// It is known some time after a leadership has ended that it has. No fault where reads are tied to the own vote: it
    /// only shows what happens where they are not.
    LeadershipWithdrawnLate = "leadership-withdrawn-late",
    /// A leader takes its own release's lease for that of its voters.
    LeaseByRelease = "lease-by-release",
    /// A survivor takes over when it alone has found the leader's process gone.
    DeathOneWitness = "death-one-witness",
    /// That an address refuses is taken for the end of whoever leads there now.
    DeathByAddress = "death-by-address",
    /// A caller that goes away takes with it what other callers were told of, when its call is the newest.
    RobbingCancel = "robbing-cancel",
    /// A caller that goes away is not taken notice of unless its call is the newest.
    CancelByHighest = "cancel-by-highest",
    /// A replica leaves an entry out that it can't read, and goes on.
    UnknownCommandSkipped = "unknown-command-skipped",
    /// A task of a leader that panics is gone for good, and nobody learns of it.
    PanicInLeaderTasks = "panic-in-leader-tasks",
    /// So is one that forms entries.
    PanicInProposer = "panic-in-proposer",
    /// An entry that panics half-way counts as applied.
    PanicInApply = "panic-in-apply",
    /// A snapshot has no sessions that are ending.
    JobLost = "job-lost",
    /// A hold whose time is over counts as held until its turn to end.
    DueHeld = "due-held",
    /// What says that a session is ending stays when it has ended.
    MarkOutlivesJob = "mark-outlives-job",
    /// Commands of all accounts wait in one lane.
    OneLane = "one-lane",
    /// The callers of all sections of an entry are answered after its last one.
    ReplyByEntry = "reply-by-entry",
    /// A replica that is elected leads before it has applied the entries of earlier terms.
    LeadUndrained = "lead-undrained",
    /// A shard that is built again applies sections that are in its part of the snapshot already.
    SectionReplayed = "section-replayed",
    /// A snapshot retains the parts of shards that have changed.
    PartBehind = "part-behind",
    /// The partly changed state of a shard that failed becomes its part of a snapshot.
    BrokenPart = "broken-part",
    /// A shard is built again from the state of the first replica that answers.
    RebuildUnchecked = "rebuild-unchecked",
    /// A shard is built again from a part and a log that begins later.
    RebuildGap = "rebuild-gap",
    /// A leader acknowledges keep-alives of a shard that has no state there.
    KeepAliveWhileBroken = "keep-alive-while-broken",
    /// A node starts the groups that its file makes, whichever it had before.
    GroupsRederived = "groups-rederived",
    /// Where the replies to an entry go is found by its index.
    SinkByIndex = "sink-by-index",
    /// Leases are aged by a clock that stands still while the machine does, and nothing notices.
    MonotonicLease = "monotonic-lease",
    /// A job that is reported done twice counts twice.
    LatchDoubleCount = "latch-double-count",
    /// A latch that was created anew takes what is meant for the one before.
    LatchOldId = "latch-old-id",
    /// Of those that wait for a latch only the first is told.
    LatchWakesOne = "latch-wakes-one",
    /// A question about a latch is forgotten when its leader is deposed.
    LatchCompleteLost = "latch-complete-lost",
    /// A request for permits that fits is granted before those that wait.
    SemOvertake = "sem-overtake",
    /// A repeat of a request for permits takes them again.
    SemDouble = "sem-double",
    /// Requests for more permits than there are left stay in the queue.
    SemShrinkStuck = "sem-shrink-stuck",
    /// A hold of permits stays when its time is over.
    SemExpiryKept = "sem-expiry-kept",
    /// The permits of a session stay when it ends.
    SemSessionKept = "sem-session-kept",
    /// A member that is held is given to another as well.
    PoolTwoHolders = "pool-two-holders",
    /// Requests for a member by its name go before those for some members.
    PoolAnyStarves = "pool-any-starves",
    /// A member does not rest.
    PoolCooldownLost = "pool-cooldown-lost",
    /// A polite request to release puts off what an earlier one forces.
    AskForcePutOff = "ask-force-put-off",
    /// A request to release with force ends what it asks for at once, whatever time it gives.
    AskForceEarly = "ask-force-early",
    /// A session is not told that somebody asks for its lock.
    AskUntold = "ask-untold",
    /// A downgrade ends the time for which a hold is kept from others.
    AtLeastCut = "at-least-cut",
    /// Whoever leaves a barrier after its trip is told that it was broken, as if its own patience decided.
    BarrierTwoOutcomes = "barrier-two-outcomes",
    /// The arrivals of a session that has ended still count.
    BarrierGhost = "barrier-ghost",
    /// The generations of a barrier that is made again have numbers that others had before.
    BarrierGenerationReused = "barrier-generation-reused",
    /// A call that awaits a condition only gives the lock up; its repeat awaits.
    CondTwoSteps = "cond-two-steps",
    /// Whoever does not hold a lock signals its conditions.
    CondSignalUnowned = "cond-signal-unowned",
    /// A signal is not handed on when whoever it woke ends without the lock.
    CondSignalSwallowed = "cond-signal-swallowed",
    /// Whoever is woken waits for the lock before those who came meanwhile.
    CondFront = "cond-front",
    /// A repeat of an await gives the lock up again that it got back.
    CondAwaitRepeat = "cond-await-repeat",
    /// A leader grants from its memory while sessions of before its time may hold something.
    SoftIncomplete = "soft-incomplete",
    /// A session that expired holds nothing of a soft table any more, although its transition runs.
    SoftTransitionSkipped = "soft-transition-skipped",
    /// A soft table counts its revisions from the beginning.
    SoftTokenRestart = "soft-token-restart",
    /// A lock of a soft table that is forced open is open in the leader's memory only.
    SoftForfeitLost = "soft-forfeit-lost",
    /// Keep-alives of sessions count before they have reported to the new leader.
    SoftLifeUnreported = "soft-life-unreported",
    /// Of claims that compete for a soft table the one of the first session is entered, whatever its token is.
    SoftFirstClaim = "soft-first-claim",
    /// Requests that wait for locks of a soft table are queued in another order than before.
    SoftQueueShuffled = "soft-queue-shuffled",
    /// A report that comes again after commands of its session counts again.
    SoftUnordered = "soft-unordered",
    /// A report of a connection counts that another one has superseded.
    SoftAnyConnection = "soft-any-connection",
    /// What a resumed client shows of a soft table counts without proof.
    SoftNoReceipt = "soft-no-receipt",
    /// A client is told of a grant of a soft table before its gateway knows of it.
    SoftLedgerLate = "soft-ledger-late",
}

impl Mutation {
    /// The test of `holdfast-replication` that fails with it, for a fault whose harm lies between events that the
    /// simulation does not tell apart yet.
    pub fn unit_test(self) -> Option<&'static str> {
        match self {
            Self::RetryUnchecked => Some("leases::an_order_to_stand_again_that_comes_late_breaks_no_lease"),
            Self::VoteUntied => Some("leases::an_answer_that_comes_after_a_vote_for_another_revives_no_lease"),
            Self::LeadershipWithdrawnLate => Some(
                "leases::a_leader_that_voted_for_another_reads_no_more_however_late_it_is_known_that_it_leads_no_more",
            ),
            Self::LeaseByRelease => Some("leases::a_leader_with_a_longer_lease_than_its_voters_keeps_to_theirs"),
            Self::MonotonicLease => Some("leases::a_leader_whose_machine_was_suspended_answers_nothing_from_memory"),
            Self::DeathOneWitness => Some("fast_failover::one_replica_whose_leaders_address_refuses_breaks_no_lease"),
            Self::DeathByAddress => Some("fast_failover::the_end_of_a_process_is_none_of_the_next_at_its_address"),
            Self::UnknownCommandSkipped => Some("rules::a_command_that_a_replica_can_not_read_stops_it_and_no_other"),
            Self::OneLane => Some("proposing::an_account_that_fills_the_queue_delays_no_other"),
            Self::ReplyByEntry => Some("proposing::a_section_is_answered_whatever_the_others_of_its_entry_take"),
            Self::SinkByIndex => Some("proposing::no_caller_gets_the_reply_to_what_replaced_its_command"),
            Self::LeadUndrained => Some("failover::an_elected_replica_leads_once_it_has_applied_all_of_earlier_terms"),
            Self::RebuildUnchecked => Some("checkpoints::a_state_that_no_majority_has_is_taken_from_nobody"),
            Self::RebuildGap => Some("snapshot::a_history_whose_next_entries_are_purged_meanwhile_is_refused"),
            _ => None,
        }
    }

    /// The test of `holdfast-node` that fails with it, for a fault that shows only while a shard is broken, which takes
    /// a moment in the simulation, or in a data directory, of which the simulation has none.
    pub fn node_test(self) -> Option<&'static str> {
        match self {
            Self::BrokenPart => Some("broken_shards::a_shard_that_broke_is_in_no_snapshot"),
            Self::KeepAliveWhileBroken => Some("broken_shards::a_shard_that_broke_records_no_keep_alive"),
            Self::GroupsRederived => Some("groups::a_node_keeps_to_the_groups_of_its_first_start"),
            Self::SoftLifeUnreported => {
                Some("soft_tables::the_next_leader_grants_nothing_until_all_sessions_of_before_have_ended")
            }
            _ => None,
        }
    }

    /// The test beside the model of `holdfast-core` that fails with it, for a fault that shows only when calls meet in a
    /// way that is rare in the simulation.
    pub fn model_test(self) -> Option<&'static str> {
        match self {
            Self::RobbingCancel | Self::CancelByHighest => Some("ledger::nobody_is_robbed_and_nothing_is_left"),
            Self::JobLost | Self::DueHeld | Self::MarkOutlivesJob => Some("the_engine_does_what_the_naive_model_does"),
            Self::LatchDoubleCount | Self::LatchOldId => Some("latches::latches_do_what_their_model_does"),
            Self::SemOvertake | Self::SemDouble | Self::SemShrinkStuck | Self::SemExpiryKept | Self::SemSessionKept => {
                Some("semaphores::semaphores_do_what_their_model_does")
            }
            Self::PoolTwoHolders | Self::PoolAnyStarves | Self::PoolCooldownLost => {
                Some("pools::pools_do_what_their_model_does")
            }
            Self::AskForcePutOff | Self::AtLeastCut => Some("the_engine_does_what_the_naive_model_does"),
            Self::BarrierTwoOutcomes | Self::BarrierGhost | Self::BarrierGenerationReused => {
                Some("barriers::barriers_do_what_their_model_does")
            }
            Self::CondTwoSteps
            | Self::CondSignalUnowned
            | Self::CondSignalSwallowed
            | Self::CondFront
            | Self::CondAwaitRepeat => Some("conditions::conditions_do_what_their_model_does"),
            Self::SoftIncomplete | Self::SoftTransitionSkipped | Self::SoftTokenRestart | Self::SoftForfeitLost => {
                Some("soft_tables::no_two_sessions_hold_the_same_whoever_leads")
            }
            Self::SoftFirstClaim => Some("soft_rebuilds::of_claims_that_compete_the_highest_token_wins"),
            Self::SoftQueueShuffled => Some("soft_rebuilds::who_waited_longest_is_first"),
            Self::SoftUnordered => Some("soft_rebuilds::what_was_released_stays_so_whatever_comes_again"),
            Self::SoftAnyConnection => Some("soft_rebuilds::only_the_last_connection_reports"),
            _ => None,
        }
    }

    /// The test of `holdfast-backend` that fails with it, for a fault whose harm needs the loss of a leader and a gateway
    /// at one moment, or a client that lies.
    pub fn backend_test(self) -> Option<&'static str> {
        match self {
            Self::SoftNoReceipt => Some("ops::receipt_tests::a_receipt_is_no_proof_of_another_token_or_path"),
            Self::SoftLedgerLate => Some("ops::receipt_tests::what_a_client_shows_is_reported_with_the_same_tokens"),
            _ => None,
        }
    }

    /// For a fault in what becomes of a panic: the point at which there must be one.
    pub fn panic_point(self) -> Option<&'static str> {
        match self {
            Self::PanicInLeaderTasks => Some("expiry"),
            Self::PanicInProposer => Some("proposer"),
            Self::PanicInApply | Self::SectionReplayed => Some("apply"),
            _ => None,
        }
    }

    /// The test of any of these packages that fails with it; `None` if the simulation must find it.
    pub fn test(self) -> Option<&'static str> {
        self.unit_test().or(self.node_test()).or(self.model_test()).or(self.backend_test())
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|mutation| mutation.name() == name)
    }
}

/// Whether each mutation is enabled, in the order of [`Mutation::ALL`].
#[cfg(feature = "enabled")]
static ENABLED: [std::sync::atomic::AtomicBool; Mutation::ALL.len()] =
    [const { std::sync::atomic::AtomicBool::new(false) }; Mutation::ALL.len()];

/// Enables a mutation in this process, for good. False when it is enabled already, or when this build has none.
pub fn enable(mutation: Mutation) -> bool {
    #[cfg(feature = "enabled")]
    return !ENABLED[mutation as usize].swap(true, std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(feature = "enabled"))]
    {
        let _ = mutation;
        false
    }
}

/// Whether that mutation is enabled.
#[inline]
pub fn is_enabled(mutation: Mutation) -> bool {
    #[cfg(feature = "enabled")]
    return ENABLED[mutation as usize].load(std::sync::atomic::Ordering::Relaxed);
    #[cfg(not(feature = "enabled"))]
    {
        let _ = mutation;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_found_by_its_name() {
        for &mutation in Mutation::ALL {
            assert_eq!(Mutation::from_name(mutation.name()), Some(mutation));
        }
        assert_eq!(Mutation::from_name("none"), None);
    }

    #[test]
    fn every_fault_has_a_flag_of_its_own() {
        assert!(Mutation::ALL.iter().enumerate().all(|(index, mutation)| *mutation as usize == index));
    }

    #[cfg(not(feature = "enabled"))]
    #[test]
    fn a_build_without_the_feature_has_no_mutations() {
        for &fault in Mutation::ALL {
            assert!(!enable(fault) && !is_enabled(fault));
        }
    }
}
