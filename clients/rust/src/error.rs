//! Errors, and reasons why a lock request is refused or a hold is lost.

use std::fmt;
use std::time::Duration;

use holdfast_proto::v1;
use tonic_types::{ErrorInfo, StatusExt};

use crate::view::{Blocker, Holder, Path, PermitHolder};

/// The service's code for what it refuses by its content.
const INVALID_ARGUMENT: &str = "INVALID_ARGUMENT";
/// Fields of single calls that the service refuses only for the durability of the namespace. They are flags, which have
/// no bad values. Other fields are refused for other reasons too, and the service does not say for which.
const REFUSED_FLAGS: [&str; 2] = ["force", "keeps_table"];

/// The result type of this library.
///
/// ```
/// async fn print(session: &holdfast_client::Session) -> holdfast_client::Result<()> {
///     let guard = session.mutex("printer").lock().await?;
///     guard.release().await
/// }
/// # let _ = print;
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error type of this library.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// use holdfast_client::Error;
///
/// match client.session("no such namespace").open().await {
///     Err(error @ Error::Service { .. }) => assert_eq!(error.code(), Some("NAMESPACE_NOT_FOUND")),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock request is refused, because of other owners' or the same owner's holds or waiting requests.
    #[error("{subject} not granted: {0}", subject = .0.subject())]
    Refused(Refusal),
    /// The same owner already holds this path on the session, or waits for it. Two futures of one task or thread are
    /// one owner: a lock that let both in would exclude neither. Nested calls use `lock_again`.
    #[error("the same owner already holds {0}, or waits for it")]
    AlreadyHeld(Path),
    /// The same owner has locked it several times with `lock_again`, so that none of the guards may give it up.
    #[error("the same owner holds {0} with other guards, too")]
    Nested(Path),
    /// The caller's own limit ended the wait. The request has left the queue.
    #[error("the request was not granted within {0:?}")]
    TimedOut(Duration),
    /// The hold is lost.
    #[error("the hold was lost: {0}")]
    Lost(LossReason),
    /// The generation at the barrier is broken for all who were in it.
    #[error("generation {generation} at the barrier is broken: somebody left it before all had come")]
    Broken {
        /// The generation.
        generation: u64,
    },
    /// The generation at the barrier ended, or goes on, without this party.
    #[error("generation {generation} at the barrier goes without this party")]
    Missed {
        /// The generation.
        generation: u64,
    },
    /// The session has ended; open another one.
    #[error("the session has ended: {0}")]
    SessionEnded(EndReason),
    /// The service rejected the call with one of its codes, like `NAMESPACE_NOT_FOUND`.
    #[error("{code}: {detail}")]
    Service {
        /// A code from the service's documentation of errors.
        code: String,
        /// A human-readable explanation.
        detail: String,
    },
    /// No gateway could be reached in the time allowed.
    #[error("no gateway can be reached: {0}")]
    Unreachable(String),
    /// The request can't be sent; the text names the problem and the allowed values.
    #[error("{0}")]
    Invalid(String),
    /// The namespace does not have what was asked for, since its durability is `SESSION`: its locks are in the memory
    /// of a leader. It names the field of the protocol (`at_least_ms`, `transition_ms`, `condition`, `force`,
    /// `keeps_table`) or the kind (`semaphore`, `pool`, `barrier`). On a session, nothing was sent.
    #[error("`{0}` is not supported in a namespace whose durability is SESSION")]
    Unsupported(&'static str),
}

impl Error {
    /// Returns the service's code, if the service rejected the call. [`Error::Unsupported`] has the code by which the
    /// service rejects it, also if nothing was sent.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Service { code, .. } => Some(code),
            Self::Unsupported(_) => Some(INVALID_ARGUMENT),
            _ => None,
        }
    }

    /// Returns the refusal, if the lock request was refused.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    pub(crate) fn service(code: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Service { code: code.into(), detail: detail.into() }
    }

    /// Returns true if a retry, here or at another gateway, may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Service { code, .. } => {
                matches!(code.as_str(), "UNAVAILABLE" | "DEADLINE_EXCEEDED" | "INTERNAL" | "RATE_LIMITED")
            }
            _ => false,
        }
    }
}

/// Errors of single calls: the service's code if it sent one.
impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        match status.get_details_error_info() {
            Some(info) if !info.reason.is_empty() => match refused_flag(&info) {
                Some(field) => Self::Unsupported(field),
                None => Self::service(info.reason, status.message()),
            },
            // The call did not reach the service, or an intermediary rejected it.
            _ => Self::Unreachable(format!("{}: {}", status.code(), status.message())),
        }
    }
}

/// Returns the field that the service refused for the durability of the namespace, if that is certain.
fn refused_flag(info: &ErrorInfo) -> Option<&'static str> {
    let field = info.metadata.get("field").filter(|_| info.reason == INVALID_ARGUMENT)?;
    REFUSED_FLAGS.into_iter().find(|flag| field == flag)
}

/// Why a lock request is refused, and which owners block it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use holdfast_client::Reason;
///
/// let _mine = session.mutex("invoices").owned_by("printer").lock().await?;
/// let refused = session.mutex("invoices").owned_by("mailer").try_lock().await.unwrap_err();
/// let refusal = refused.refusal().expect("it is taken");
/// assert_eq!((refusal.reason, refusal.blockers.len(), refusal.cycle.len()), (Reason::Held, 1, 0));
/// assert!(refusal.to_string().contains("(printer) holds invoices"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason of the first failing claim.
    pub reason: Reason,
    /// Up to 16 blockers.
    pub blockers: Vec<Blocker>,
    /// With [`Reason::Deadlock`]: the cycle of waits, the caller's own step last.
    pub cycle: Vec<CycleStep>,
    /// Of a request for permits or members: up to 16 holders, that of the wanted member first, then those with most.
    pub holders: Vec<PermitHolder>,
    /// Whether it was a request for permits.
    of_permits: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        if let Some(blocker) = self.blockers.first() {
            let verb = if blocker.waiting { "waits for" } else { "holds" };
            write!(f, "; {} {verb} {}", blocker.holder.name(), blocker.path)?;
        }
        if let Some(holder) = self.holders.first() {
            write!(f, "; {} has {}", holder.name(), holder.weight)?;
        }
        Ok(())
    }
}

/// A step of a cycle of waits.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use holdfast_client::Reason;
///
/// let (a, b) = (session.mutex("a"), session.mutex("b"));
/// let (first, second) = ("first", "second");
/// let _a = a.clone().owned_by(first).lock().await?;
/// let _b = b.clone().owned_by(second).lock().await?;
/// let (b_of_first, a_of_second) = (b.owned_by(first), a.owned_by(second));
/// // Each waits for what the other has: whoever closes the circle is told.
/// let refused = tokio::select! {
///     answer = b_of_first.lock() => answer.unwrap_err(),
///     answer = a_of_second.lock() => answer.unwrap_err(),
/// };
/// let refusal = refused.refusal().expect("nobody could ever go on");
/// assert_eq!((refusal.reason, refusal.cycle.len()), (Reason::Deadlock, 2));
/// assert!(refusal.cycle.iter().all(|step| step.holder.is_some() && !step.waiting));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleStep {
    /// The process id of the owner or of its session.
    pub process_id: String,
    /// Its session, if it has one.
    pub session_id: Option<String>,
    /// The holder within the session.
    pub holder: Option<String>,
    /// The path of its blocking hold or claim.
    pub path: Path,
    /// Whether it blocks by waiting there earlier, not by holding.
    pub waiting: bool,
}

/// The reason for a refusal.
///
/// ```
/// use holdfast_client::Reason;
///
/// assert_eq!(Reason::Deadlock.code(), "DEADLOCK");
/// assert_eq!(Reason::Deadlock.to_string(), "waiting would close a cycle of waits");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The same owner holds the path in the other mode.
    Upgrade,
    /// Another owner holds the same path.
    Held,
    /// Another owner holds a path above it.
    Ancestor,
    /// Another owner holds a path below it.
    Descendant,
    /// All blocking holds have expired and are in transition.
    Transition,
    /// Only waiting requests block it.
    Queued,
    /// Waiting would close a cycle of waits.
    Deadlock,
    /// The wait timed out.
    TimedOut,
    /// The hold does not exist.
    NotHeld,
    /// A reset, the end of the session or the deletion of the namespace ended the wait.
    Ended,
    /// Too few permits are free.
    Exhausted,
    /// The request needs more permits or members than there are.
    TooLarge,
    /// The pool has no such member, or it leaves.
    NoMember,
    /// A reason unknown to this version.
    Other,
}

impl Reason {
    /// Returns the code in the service's documentation, like `HELD`.
    pub fn code(self) -> &'static str {
        match self {
            Self::Upgrade => "UPGRADE",
            Self::Held => "HELD",
            Self::Ancestor => "ANCESTOR",
            Self::Descendant => "DESCENDANT",
            Self::Transition => "TRANSITION",
            Self::Queued => "QUEUED",
            Self::Deadlock => "DEADLOCK",
            Self::TimedOut => "TIMED_OUT",
            Self::NotHeld => "NOT_HELD",
            Self::Ended => "ENDED",
            Self::Exhausted => "EXHAUSTED",
            Self::TooLarge => "TOO_LARGE",
            Self::NoMember => "NO_MEMBER",
            Self::Other => "OTHER",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Upgrade => "its owner holds it in the other mode",
            Self::Held => "another owner holds it",
            Self::Ancestor => "another owner holds a path above it",
            Self::Descendant => "another owner holds a path below it",
            Self::Transition => "the earlier holds are in transition",
            Self::Queued => "others wait for it",
            Self::Deadlock => "waiting would close a cycle of waits",
            Self::TimedOut => "the wait ended first",
            Self::NotHeld => "the hold is gone",
            Self::Ended => "the wait was cut short",
            Self::Exhausted => "too few permits are free",
            Self::TooLarge => "there are fewer permits",
            Self::NoMember => "the pool has no such member",
            Self::Other => "for a reason that this version does not know",
        })
    }
}

/// Why a hold was lost.
///
/// ```
/// use holdfast_client::{EndReason, LossReason};
///
/// /// Whether it is somebody's doing, and not that of the network.
/// fn is_on_purpose(reason: &LossReason) -> bool {
///     matches!(reason, LossReason::Deleted | LossReason::Reset | LossReason::Released)
/// }
///
/// assert!(is_on_purpose(&LossReason::Deleted));
/// assert!(!is_on_purpose(&LossReason::SessionEnded(EndReason::Unreachable)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The service reported that the session has expired.
    Expired,
    /// The lock was forced open, which deleted the hold.
    Deleted,
    /// A reset of the namespace removed it.
    Reset,
    /// The service does not know the hold; the owner named here, if any, holds the lock.
    Duplicate(Option<Box<Holder>>),
    /// The session has ended.
    SessionEnded(EndReason),
    /// It was released: by its guard, or by an `unlock` elsewhere.
    Released,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("it expired"),
            Self::Deleted => f.write_str("the lock was forced open"),
            Self::Reset => f.write_str("a reset removed it"),
            Self::Duplicate(Some(owner)) => write!(f, "{} holds it", owner.name()),
            Self::Duplicate(None) => f.write_str("the service does not know of it"),
            Self::SessionEnded(reason) => write!(f, "its session has ended: {reason}"),
            Self::Released => f.write_str("it was released"),
        }
    }
}

/// Why a session ended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use holdfast_client::EndReason;
///
/// assert_eq!(session.close().await, EndReason::Closed);
/// assert_eq!(session.end_reason(), Some(EndReason::Closed));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The session was closed.
    Closed,
    /// The service ended it for lack of keep-alives.
    Expired,
    /// Its keep-alives were not answered in time, by this machine's clocks, or the wall clock was set, as after a pause
    /// of the machine: the service may end it at any moment.
    Unreachable,
    /// A reset of the namespace removed it.
    Reset,
    /// Its namespace was deleted.
    NamespaceDeleted,
    /// Another connection resumed it.
    Superseded,
    /// The service denies access to this client, with this code and text.
    Denied(String),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it was closed"),
            Self::Expired => f.write_str("it expired"),
            Self::Unreachable => f.write_str("it could not be kept alive in time"),
            Self::Reset => f.write_str("a reset removed it"),
            Self::NamespaceDeleted => f.write_str("its namespace was deleted"),
            Self::Superseded => f.write_str("another connection took it over"),
            Self::Denied(why) => write!(f, "the service no longer admits this client: {why}"),
        }
    }
}

impl From<v1::Refusal> for Refusal {
    fn from(refusal: v1::Refusal) -> Self {
        use v1::refusal::Code;
        let reason = match refusal.code() {
            Code::Upgrade => Reason::Upgrade,
            Code::Held => Reason::Held,
            Code::Ancestor => Reason::Ancestor,
            Code::Descendant => Reason::Descendant,
            Code::Transition => Reason::Transition,
            Code::Queued => Reason::Queued,
            Code::Deadlock => Reason::Deadlock,
            Code::TimedOut => Reason::TimedOut,
            Code::NotHeld => Reason::NotHeld,
            Code::Ended => Reason::Ended,
            Code::Exhausted => Reason::Exhausted,
            Code::TooLarge => Reason::TooLarge,
            Code::NoMember => Reason::NoMember,
            Code::Unspecified => Reason::Other,
        };
        let step = |step: v1::CycleStep| CycleStep {
            process_id: step.process_id,
            session_id: step.session_id,
            holder: step.holder,
            path: Path(step.path),
            waiting: step.waiting,
        };
        Self {
            reason,
            blockers: refusal.blockers.into_iter().map(Blocker::from).collect(),
            cycle: refusal.cycle.into_iter().map(step).collect(),
            holders: refusal.holders.into_iter().map(PermitHolder::from).collect(),
            of_permits: false,
        }
    }
}

impl Refusal {
    /// Creates a refusal that is known without a call to the service.
    pub(crate) fn of(reason: Reason) -> Self {
        Self { reason, blockers: Vec::new(), cycle: Vec::new(), holders: Vec::new(), of_permits: false }
    }

    /// Sets whether it was a request for permits.
    pub(crate) fn of_permits(self, of_permits: bool) -> Self {
        Self { of_permits, ..self }
    }

    /// Returns what was not granted, for texts.
    fn subject(&self) -> &'static str {
        if self.of_permits { "the permits were" } else { "the lock was" }
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn a_flag_of_a_single_call_is_refused_for_the_durability_and_other_fields_are_not() {
        let error = |code: &str, field: &str| {
            let ids = std::collections::HashMap::from([("field".to_owned(), field.to_owned())]);
            let details = ErrorDetails::with_error_info(code, "holdfast", ids);
            Error::from(tonic::Status::with_error_details(tonic::Code::InvalidArgument, "why", details))
        };
        let forced = error(INVALID_ARGUMENT, "force");
        assert_eq!((&forced, forced.code()), (&Error::Unsupported("force"), Some(INVALID_ARGUMENT)));
        assert!(!forced.is_transient());
        assert_eq!(error(INVALID_ARGUMENT, "ttl_ms"), Error::service(INVALID_ARGUMENT, "why"));
        assert_eq!(error("UNAVAILABLE", "force"), Error::service("UNAVAILABLE", "why"));
    }
}
