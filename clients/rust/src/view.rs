//! Locks and those who hold them, as the service shows them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use holdfast_proto::v1;

/// The name of a lock: segments in order, of 1 to 128 bytes each and at most 16 of them. A text is a path of one
/// segment, whatever characters it has.
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
    /// The path of these segments, which may be none: then it is the namespace as a whole.
    pub fn of<S: Into<String>>(segments: impl IntoIterator<Item = S>) -> Self {
        Self(segments.into_iter().map(Into::into).collect())
    }

    /// The namespace as a whole: a lock on it keeps everybody out of everything.
    pub fn whole_namespace() -> Self {
        Self(Vec::new())
    }

    /// Its segments, in order.
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// Whether a lock on it concerns the other one, which is the same or lies below.
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

/// How a lock is held.
///
/// ```
/// use holdfast_client::Mode;
///
/// assert!(Mode::Read < Mode::Write, "the stronger one is the greater one");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Together with other readers.
    Read,
    /// Alone.
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

/// Somebody who holds a lock, or waits for it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_api_tests::Standalone::fresh();
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
    /// What its client calls itself.
    pub process_id: String,
    /// Its session, if it has one.
    pub session_id: Option<String>,
    /// The thread of the session.
    pub holder: Option<String>,
    /// How it holds the lock.
    pub mode: Mode,
    /// Of its hold; 0 of one that waits.
    pub fencing_token: u64,
    /// When it was granted, by the service's wall clock, for display.
    pub locked_at: Option<SystemTime>,
    /// How long the hold lasts unless it is extended; nothing for holds that last as long as a session.
    pub remaining: Option<Duration>,
    /// Whether it has run out and only its owner may renew it.
    pub in_transition: bool,
    /// What its owner noted with it.
    pub metadata: BTreeMap<String, String>,
}

impl Holder {
    /// What to call it in a text for people.
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

/// Somebody who is in the way.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_api_tests::Standalone::fresh();
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
    /// What it holds or claims.
    pub path: Path,
    /// Whether it waits itself.
    pub waiting: bool,
    /// Who it is.
    pub holder: Holder,
}

impl From<v1::Blocker> for Blocker {
    fn from(blocker: v1::Blocker) -> Self {
        Self { path: Path(blocker.path), waiting: blocker.waiting, holder: blocker.holder.unwrap_or_default().into() }
    }
}

/// Where a request that waits stands.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_api_tests::Standalone::fresh();
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
    /// How many wait before it, when the service says so.
    pub queue_position: Option<u64>,
    /// Up to 16 of those that are in the way.
    pub blockers: Vec<Blocker>,
}
