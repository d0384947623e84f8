//! Locks and their owners, as the service shows them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use holdfast_proto::v1;
use holdfast_proto::v1::server_message::ReleaseRequested;

/// The name of a lock: at most 16 segments in order, of 1 to 128 bytes each. A string is a path of one segment,
/// whatever characters it contains.
///
/// ```
/// use holdfast_client::Path;
///
/// assert_eq!(Path::from("a/b").segments(), ["a/b"]);
/// assert_eq!(Path::of(["user", "ann"]).to_string(), "user/ann");
/// assert!(Path::of(["user"]).is_above(&Path::of(["user", "ann"])));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(pub(crate) Vec<String>);

impl Path {
    /// Creates the path of these segments. Without segments it is the whole namespace.
    pub fn of<S: Into<String>>(segments: impl IntoIterator<Item = S>) -> Self {
        Self(segments.into_iter().map(Into::into).collect())
    }

    /// Returns the path of the whole namespace: a lock on it covers every path in it.
    pub fn whole_namespace() -> Self {
        Self(Vec::new())
    }

    /// Returns its segments, in order.
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// Returns true if a lock on this path covers the other one, which is equal or below.
    pub fn is_above(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }
}

impl From<&str> for Path {
    fn from(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }
}

impl From<String> for Path {
    fn from(name: String) -> Self {
        Self(vec![name])
    }
}

impl From<&Path> for Path {
    fn from(path: &Path) -> Self {
        path.clone()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("the whole namespace") } else { f.write_str(&self.0.join("/")) }
    }
}

/// The mode of a hold.
///
/// ```
/// use holdfast_client::Mode;
///
/// assert!(Mode::Read < Mode::Write, "the stronger one is the greater one");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}

impl From<Mode> for v1::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Read => Self::Read,
            Mode::Write => Self::Write,
        }
    }
}

impl From<v1::Mode> for Mode {
    fn from(mode: v1::Mode) -> Self {
        match mode {
            v1::Mode::Read => Self::Read,
            v1::Mode::Write => Self::Write,
        }
    }
}

/// Somebody's request to release a hold.
///
/// ```
/// use holdfast_client::{ReleaseRequest, SessionHandler};
///
/// struct Shown;
///
/// impl SessionHandler for Shown {
///     fn release_requested(&self, request: &ReleaseRequest) {
///         eprintln!("{} asks for {}: {}", request.by, request.path, request.reason);
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// `lock`, `semaphore` or `pool`.
    pub kind: String,
    /// The path of the hold.
    pub path: Path,
    /// The token of the hold.
    pub fencing_token: u64,
    /// Who asks: the id of an API key.
    pub by: String,
    /// For people.
    pub reason: String,
    /// How long the owner was given, if the request named a time.
    pub within: Option<Duration>,
    /// Whether the hold ends then.
    pub force: bool,
}

impl From<ReleaseRequested> for ReleaseRequest {
    fn from(asked: ReleaseRequested) -> Self {
        Self {
            kind: asked.kind,
            path: Path(asked.path),
            fencing_token: asked.fencing_token,
            by: asked.by,
            reason: asked.reason,
            within: asked.within_ms.map(Duration::from_millis),
            force: asked.force,
        }
    }
}

/// An owner that holds a lock, or waits for it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// let guard = session.mutex("invoices").owned_by("printer").lock().await?;
/// let refused = session.mutex("invoices").owned_by("mailer").try_lock().await.unwrap_err();
/// let holder = &refused.refusal().expect("it is taken").blockers[0].holder;
/// assert_eq!((holder.holder.as_deref(), holder.fencing_token), (Some("printer"), guard.fencing_token()));
/// assert_eq!(holder.name(), format!("{} (printer)", session.process_id()));
/// assert_eq!(holder.remaining, None, "as long as its session");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process id that its client chose.
    pub process_id: String,
    /// Its session, if it has one.
    pub session_id: Option<String>,
    /// The holder within the session.
    pub holder: Option<String>,
    /// The mode of its hold or claim.
    pub mode: Mode,
    /// The token of its hold; 0 for a waiter.
    pub fencing_token: u64,
    /// When it was granted, by the service's wall clock, for display.
    pub locked_at: Option<SystemTime>,
    /// Time until the hold expires unless it is extended; `None` for holds that last as long as a session.
    pub remaining: Option<Duration>,
    /// Whether the hold has expired and only its owner may renew it.
    pub in_transition: bool,
    /// The owner's metadata.
    pub metadata: BTreeMap<String, String>,
}

impl Holder {
    /// Returns its name for display.
    pub fn name(&self) -> String {
        match &self.holder {
            Some(holder) => format!("{} ({holder})", self.process_id),
            None => self.process_id.clone(),
        }
    }
}

impl From<v1::Holder> for Holder {
    fn from(holder: v1::Holder) -> Self {
        Self {
            mode: holder.mode().into(),
            in_transition: holder.phase() == v1::holder::Phase::Transition,
            process_id: holder.process_id,
            session_id: holder.session_id,
            holder: holder.holder,
            fencing_token: holder.fencing_token,
            locked_at: holder.locked_at.and_then(|at| SystemTime::try_from(at).ok()),
            remaining: holder.remaining_ms.map(Duration::from_millis),
            metadata: holder.metadata.into_iter().collect(),
        }
    }
}

/// An owner that holds permits of a semaphore.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// let licences = session.semaphore("licences").permits(2);
/// let permit = licences.clone().owned_by("render").acquire(2).await?;
/// let refused = licences.try_acquire(1).await.unwrap_err();
/// let holder = &refused.refusal().expect("too few are free").holders[0];
/// assert_eq!((holder.weight, holder.fencing_token), (2, permit.fencing_token()));
/// assert_eq!(holder.name(), format!("{} (render)", session.process_id()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitHolder {
    /// The process id that its client chose.
    pub process_id: String,
    /// Its session, if it has one.
    pub session_id: Option<String>,
    /// The holder within the session.
    pub holder: Option<String>,
    /// How many permits it holds.
    pub weight: u64,
    /// The token of its hold.
    pub fencing_token: u64,
    /// When they were granted, by the service's wall clock, for display.
    pub locked_at: Option<SystemTime>,
}

impl PermitHolder {
    /// Returns its name for display.
    pub fn name(&self) -> String {
        match &self.holder {
            Some(holder) => format!("{} ({holder})", self.process_id),
            None => self.process_id.clone(),
        }
    }
}

impl From<v1::PermitHolder> for PermitHolder {
    fn from(holder: v1::PermitHolder) -> Self {
        Self {
            process_id: holder.process_id,
            session_id: holder.session_id,
            holder: holder.holder,
            weight: holder.weight,
            fencing_token: holder.fencing_token,
            locked_at: holder.locked_at.and_then(|at| SystemTime::try_from(at).ok()),
        }
    }
}

/// An owner that blocks a request.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use holdfast_client::Path;
///
/// let _all = session.mutex(Path::of(["user"])).owned_by("cleaner").lock().await?;
/// let refused = session.mutex(Path::of(["user", "ann"])).owned_by("mailer").try_lock().await.unwrap_err();
/// let blocker = &refused.refusal().expect("it is taken").blockers[0];
/// assert_eq!((&blocker.path, blocker.waiting), (&Path::of(["user"]), false));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The path of its hold or claim.
    pub path: Path,
    /// Whether it waits itself.
    pub waiting: bool,
    /// The owner.
    pub holder: Holder,
}

impl From<v1::Blocker> for Blocker {
    fn from(blocker: v1::Blocker) -> Self {
        Self { path: Path(blocker.path), waiting: blocker.waiting, holder: blocker.holder.unwrap_or_default().into() }
    }
}

/// The status of a waiting request.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// let mut guard = Some(session.mutex("invoices").owned_by("printer").lock().await?);
/// let mutex = session.mutex("invoices").owned_by("mailer");
/// mutex
///     .lock_observed(|standing| {
///         assert_eq!((standing.queue_position, standing.blockers.len()), (Some(0), 1));
///         // The printer has done its work.
///         drop(guard.take());
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitStatus {
    /// The number of waiters before it, if the service reports it.
    pub queue_position: Option<u64>,
    /// Up to 16 blockers.
    pub blockers: Vec<Blocker>,
    /// Of a request for permits or members: up to 16 holders, that of the wanted member first, then those with most.
    pub holders: Vec<PermitHolder>,
}
