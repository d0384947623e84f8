//! Commands of a locks shard.

use serde::{Deserialize, Serialize};

use super::{
    AccountId, AskRelease, BarrierCommand, Claim, ConditionCommand, FencingToken, LatchCommand, Metadata, Mode,
    NamespaceMessage, NamespaceRef, Owner, Path, PermitCommand, PermitsReport, RequestId, Revision, Rules,
    SessionCommand, SessionNumber, SessionRequest, TableCommand,
};

/// Commands of a locks shard. All but `Deliver` and `ExpireSessions` are rejected with `NamespaceNotFound` for any but
/// the open incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocksCommand {
    /// A message from the outbox of a namespaces shard. Returns `Done`, also for a repeat.
    Deliver {
        /// The sending shard's id.
        source: String,
        /// Its number in that shard's outbox.
        number: u64,
        /// The message.
        message: NamespaceMessage,
    },
    /// Returns `Acquired`, or `Ignored` for an old message of a session. Errors: `QuotaExceeded`, `SessionNotFound`,
    /// `Superseded`, `RequestIdTaken`.
    Acquire(Acquire),
    /// Returns `Released`, or `Ignored`. Errors: `SessionNotFound`, `Superseded` if it has a message sequence number.
    Release(Release),
    /// Ends all holds of a path in any phase. Returns `Done`.
    Delete {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
    },
    /// A caller left. Returns `Cancelled`.
    Cancel(Cancel),
    /// Ends the holds, waits and sessions of every owner that is not listed. Returns `Reset`.
    Reset(Reset),
    /// Opens or resumes a session. Returns `SessionOpened`. Errors: `SessionNotFound` for a resume of an unknown
    /// session, `IdTaken` for a new session with an id in use, `QuotaExceeded`, `Busy` while the namespace is
    /// reset.
    OpenSession(OpenSession),
    /// Ends a session; its holds are free immediately. Returns `Done`, or `Ignored`. Errors: `SessionNotFound`,
    /// `Superseded`.
    CloseSession {
        /// The namespace.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
        /// Absent for a call that is not part of a connection.
        message: Option<MessageSeq>,
    },
    /// Ends sessions that were without keep-alives for too long; their holds with a transition time enter the
    /// transition first. Returns `SessionsExpired`.
    ExpireSessions {
        /// The numbers of the sessions, not their public ids.
        ids: Vec<SessionNumber>,
        /// The shard revision that the leader knew when it found them expired: sessions that were opened or resumed
        /// later stay.
        known_revision: Revision,
    },
    /// The state that a client reports after a resume, or its last part. Returns `Reconciled`, or `Ignored`. Errors:
    /// `SessionNotFound`, `Superseded`, `Busy`.
    LockInfo(LockInfo),
    /// Several commands, applied like single commands one after the other. A busy connection uses it to send several
    /// messages together, and a leader for cancels. The leader may propose it in parts. Returns `Batch`. Errors:
    /// `Malformed` if one of them is a batch itself; decoding already rejects that.
    Batch(#[serde(deserialize_with = "super::flat::commands")] Vec<LocksCommand>),
    /// The inner acquire, by a call that replaces others. Known from rules 2 on; before, it is rejected with
    /// `Malformed`.
    Reattach(Reattach),
    /// The inner cancel, for several callers. Known from rules 2 on; before, it is rejected with `Malformed`.
    CancelAttempts(CancelAttempts),
    /// Another part of such a report; its pending requests come in the parts before its holds. Nothing ends before the
    /// last part. Returns `Reconciled`, or `Ignored`. Errors: `SessionNotFound`, `Superseded`. Known from rules 2 on;
    /// before, it is rejected with `Malformed`.
    LockInfoPart(LockInfo),
    /// A request of a connected session, which it names by its number. Returns as `Acquire` and `Release`, and `Granted`
    /// or `Done` where the connection knows the rest. Errors: those of the two; `SessionNotFound` also if the namespace
    /// is gone.
    Session(SessionCommand),
    /// For latches. Known from rules 2 on; before, it is rejected with `Malformed`.
    Latch(LatchCommand),
    /// For semaphores and pools. Known from rules 2 on; before, it is rejected with `Malformed`.
    Permit(PermitCommand),
    /// The part of a report with holds of semaphores and pools. Returns `PermitsReconciled`, or `Ignored`. Errors:
    /// `SessionNotFound`, `Superseded`. Known from rules 2 on; before, it is rejected with `Malformed`.
    ReportPermits(PermitsReport),
    /// An acquire whose holds are kept from others for a while. Returns and errors as `Acquire`. Known from rules 2 on;
    /// before, it is rejected with `Malformed`.
    AcquireAtLeast(AcquireAtLeast),
    /// Asks the owners of some holds to release them. Returns `ReleaseAsked`. Errors: `PrimitiveNotFound` for a
    /// semaphore or a pool that does not exist, and `QuotaExceeded` unless it is with force. Known from rules 2 on;
    /// before, it is rejected with `Malformed`.
    AskRelease(AskRelease),
    /// For barriers. Known from rules 2 on; before, it is rejected with `Malformed`.
    Barrier(BarrierCommand),
    /// For conditions. Known from rules 2 on; before, it is rejected with `Malformed`.
    Condition(ConditionCommand),
    /// For lock tables in the leader's memory. Known from rules 2 on; before, it is rejected with `Malformed`.
    Table(TableCommand),
}

impl LocksCommand {
    /// Returns the first rules by which the command can be applied. [`Self::Session`] has none of its own, although
    /// programs of the release before do not know it: none of them can be a member of a group with this one, because
    /// wire and data directory have other versions. Its request may have later ones.
    pub fn min_rules(&self) -> Rules {
        let is_later = |command: &Self| {
            let is_later_message = |message: &NamespaceMessage| {
                matches!(
                    message,
                    NamespaceMessage::Open2 { .. }
                        | NamespaceMessage::PurgeAccount { .. }
                        | NamespaceMessage::Open3 { .. }
                )
            };
            matches!(command, Self::Deliver { message, .. } if is_later_message(message))
                || matches!(
                    command,
                    Self::Reattach(_)
                        | Self::CancelAttempts(_)
                        | Self::LockInfoPart(_)
                        | Self::Latch(_)
                        | Self::Permit(_)
                        | Self::ReportPermits(_)
                        | Self::AcquireAtLeast(_)
                        | Self::AskRelease(_)
                        | Self::Barrier(_)
                        | Self::Condition(_)
                        | Self::Table(_)
                )
                || matches!(command, Self::Session(command) if command.is_later())
        };
        let any_later = match self {
            Self::Batch(commands) => commands.iter().any(is_later),
            command => is_later(command),
        };
        if any_later { Rules::TWO } else { Rules::ONE }
    }

    /// Returns whether an encoded [`Command`](crate::Command) is a report or a part of one, without decoding it.
    pub fn is_report(encoded: &[u8]) -> bool {
        // The version of the encoding, `Command::Locks`, and the variant.
        matches!(encoded, [_, 2, 9 | 13 | 17, ..])
    }

    /// Returns whether an encoded [`Command`](crate::Command) may be for a lock table in the leader's memory, or open a
    /// session for one, without decoding it.
    pub fn may_be_for_table(encoded: &[u8]) -> bool {
        matches!(encoded, [_, 2, 2 | 9 | 10 | 13 | 14 | 19 | 22, ..])
    }

    /// Returns whether an encoded [`Command`](crate::Command) is a report to the leader of a table in its memory, which
    /// is never for the log, without decoding it.
    pub fn is_table_report(encoded: &[u8]) -> bool {
        matches!(encoded, [_, 2, 22, 4, ..])
    }

    /// Returns whether an encoded [`Command`](crate::Command) is a batch, without decoding it.
    pub fn is_batch(encoded: &[u8]) -> bool {
        matches!(encoded, [_, 2, 10, ..])
    }

    /// Returns the account whose state may grow by this command, if any. For a batch, check each command.
    pub fn growing_account(&self) -> Option<AccountId> {
        match self {
            Self::Acquire(acquire) | Self::Reattach(Reattach { acquire, .. }) => {
                Some(acquire.namespace.account).filter(|_| acquire.fencing_token.is_none())
            }
            Self::AcquireAtLeast(AcquireAtLeast { acquire, .. }) => {
                Some(acquire.namespace.account).filter(|_| acquire.fencing_token.is_none())
            }
            Self::OpenSession(open) => Some(open.namespace.account).filter(|_| !open.resume),
            Self::Session(command) => Some(command.account)
                .filter(|_| !command.is_release() && !matches!(command.request, SessionRequest::Signal(_))),
            // One with force is never rejected for want of memory.
            Self::AskRelease(ask) => Some(ask.namespace.account).filter(|_| !ask.force),
            Self::Latch(LatchCommand::Create(create)) => Some(create.namespace.account),
            Self::Latch(LatchCommand::CountDown(count)) => Some(count.latch.namespace.account),
            Self::Latch(LatchCommand::SetTotal { latch, .. }) => Some(latch.namespace.account),
            Self::Permit(PermitCommand::Configure(configure)) => Some(configure.namespace.account),
            Self::Permit(PermitCommand::ConfigurePool(configure)) => Some(configure.namespace.account),
            Self::Permit(PermitCommand::ChangePool(change)) => Some(change.namespace.account),
            Self::Permit(PermitCommand::Acquire(acquire)) => {
                Some(acquire.namespace.account).filter(|_| acquire.fencing_token.is_none())
            }
            Self::Barrier(BarrierCommand::Configure(configure)) => Some(configure.namespace.account),
            Self::Barrier(BarrierCommand::Arrive(arrive)) => Some(arrive.namespace.account),
            Self::Condition(ConditionCommand::Await(awaits)) => Some(awaits.namespace.account),
            Self::Table(command) => command.growing_account(),
            _ => None,
        }
    }

    /// Returns the inner acquire, if any, and the attempts that its call replaces.
    pub fn as_acquire(&self) -> Option<(&Acquire, &[u64])> {
        match self {
            Self::Acquire(acquire) => Some((acquire, &[])),
            Self::Reattach(Reattach { acquire, abandoned }) => Some((acquire, abandoned)),
            Self::AcquireAtLeast(AcquireAtLeast { acquire, abandoned, .. }) => Some((acquire, abandoned)),
            _ => None,
        }
    }

    /// Returns how long the holds of the inner acquire are kept from others at least, in milliseconds.
    pub fn at_least_ms(&self) -> u64 {
        match self {
            Self::AcquireAtLeast(AcquireAtLeast { at_least_ms, .. }) => *at_least_ms,
            Self::Session(command) => command.as_acquire().map_or(0, |(_, terms)| terms.at_least_ms),
            _ => 0,
        }
    }

    /// Returns the command of an acquire whose call replaces others, if any: of the plainest variant that says all.
    pub fn acquire(acquire: Acquire, abandoned: Vec<u64>, at_least_ms: u64) -> Self {
        match (abandoned.is_empty(), at_least_ms) {
            (true, 0) => Self::Acquire(acquire),
            (false, 0) => Self::Reattach(Reattach { acquire, abandoned }),
            (_, at_least_ms) => Self::AcquireAtLeast(AcquireAtLeast { acquire, abandoned, at_least_ms }),
        }
    }
}

/// A request for claims, granted all together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The owner.
    pub owner: Owner,
    /// The claims: at least one.
    pub claims: Vec<Claim>,
    /// How long each hold lasts from its grant; absent for holds that live as long as a session.
    pub ttl_ms: Option<u64>,
    /// How long each hold then stays in transition, at most 49 days; higher values count as 49 days.
    pub transition_ms: u64,
    /// Stored with the holds; a repeat replaces it.
    pub metadata: Metadata,
    /// If given, only extends the hold with this token. Such a request never waits and never changes a mode.
    pub fencing_token: Option<FencingToken>,
    /// The expiry that a dlocks client requested, in nanoseconds since 1970, for display.
    pub requested_expires_at_ns: Option<i64>,
    /// Whether it waits if it can't be granted immediately.
    pub wait: Wait,
    /// Whether a hold of the one claimed path may change its mode.
    pub allow_upgrade: bool,
    /// Identifies the request within its session (or, for a process, its wait): a repeat finds its queued request or
    /// its holds by it. Without an id, a waiting request is found by its claims.
    pub request_id: Option<String>,
    /// The call that attaches to the wait, or to the hold once granted. Numbers rise, and no two calls share one; 0 is
    /// for a caller that never leaves. By rules 1, the highest attempt owns the wait; from rules 2 on, all attempts
    /// count whose callers have not left.
    pub attempt: u64,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// How long a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// Not at all. If it already waits, it keeps its position.
    No,
    /// That many milliseconds of the shard clock; 0 is like `No`.
    For(u64),
    /// Until it is granted or its session ends. For sessions only.
    Unlimited,
}

/// The epoch and sequence number of a session message. Messages of a lower epoch are rejected; messages with a number
/// not above the last one of the epoch are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageSeq {
    /// The epoch that the open returned.
    pub epoch: u64,
    /// Rises with each message of the epoch; from 1.
    pub seq: u64,
}

/// Ends holds and waits of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The owner.
    pub owner: Owner,
    /// What to release.
    pub what: ReleaseTarget,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// What to release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReleaseTarget {
    /// The owner's holds of these paths, whatever requests claim them.
    Paths {
        /// The paths.
        paths: Vec<Path>,
        /// If given, only the hold with this token.
        fencing_token: Option<FencingToken>,
    },
    /// A request by its id, waiting or granted. Ends each hold that no other unreleased request claims. The holder of a
    /// session owner does not matter: ids are unique in the session.
    Request {
        /// The request id.
        request_id: String,
    },
    /// All holds and waits of the owner; for a session without a holder, those of all its holders. The session stays.
    All,
}

/// A waiting caller left: cancels its queued request or, if it was granted before, rolls back the grant. By rules 1,
/// this has no effect unless the attempt is still the highest; from rules 2 on, it has none while another attempt
/// counts. It also has no effect on a hold that was extended by a call without an attempt, or by more calls than are
/// tracked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The owner that waited.
    pub owner: Owner,
    /// As in the request.
    pub request_id: Option<String>,
    /// As in the request.
    pub claims: Vec<Claim>,
    /// As in the request.
    pub attempt: u64,
}

/// An acquire whose call replaces others: they left for good, or this call may be their retry. Their attempts no longer
/// count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reattach {
    /// The acquire.
    pub acquire: Acquire,
    /// The attempts that left.
    pub abandoned: Vec<u64>,
}

/// An acquire whose holds, once they end, are kept from other owners until so long after their grant. Neither a
/// deletion nor a reset is held up by that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcquireAtLeast {
    /// The acquire.
    pub acquire: Acquire,
    /// The attempts that left, as in [`Reattach`]; may be empty.
    pub abandoned: Vec<u64>,
    /// How long, in milliseconds; at most 49 days, higher values count as 49 days. A repeat neither restarts nor
    /// shortens it; a hold without such a time gets it from a call that extends it.
    pub at_least_ms: u64,
}

/// Cancels for several callers of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAttempts {
    /// The cancel of one caller.
    pub cancel: Cancel,
    /// The attempts of the other callers.
    pub abandoned: Vec<u64>,
}

/// Ends the holds, waits and sessions of owners that are not listed, in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// Process ids and session ids; a session's own process id does not protect it.
    pub live_owners: Vec<String>,
    /// Only owners older than this: a session is as old as its first opening, a process as the oldest of its current
    /// holds and waits.
    pub before_revision: Option<Revision>,
}

/// Opens or resumes a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// Begins with `se_`; drawn by the gateway for a new session.
    pub session_id: String,
    /// Whether to resume an existing session.
    pub resume: bool,
    /// Identifies this opening: a repeat returns the first response, and supersedes no connection.
    pub request_id: RequestId,
    /// Displayed with its holds; a resume replaces it.
    pub process_id: String,
    /// How long the session lives after the last keep-alive; a resume replaces it.
    pub ttl_ms: u64,
    /// As given by the caller; a resume replaces it.
    pub metadata: Metadata,
}

/// The state that a client reports after a resume. Holds and waits that it does not list end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockInfo {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The session.
    pub session_id: String,
    /// The sequence number of this message in its session.
    pub message: Option<MessageSeq>,
    /// The holds that the client reports.
    pub held: Vec<ReportedHold>,
    /// The ids of its requests without a response. Their waits and holds stay; the client sends these messages again
    /// after this one.
    pub pending: Vec<String>,
}

/// A hold that a client reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedHold {
    /// The path.
    pub path: Path,
    /// The mode.
    pub mode: Mode,
    /// The token that the client received.
    pub fencing_token: FencingToken,
}
