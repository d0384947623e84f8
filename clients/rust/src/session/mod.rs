//! Sessions: they hold locks as long as they are kept alive, independently of connections.

pub(crate) mod arrival;
mod connection;
mod dispatch;
pub(crate) mod events;
pub(crate) mod inner;
mod keep_alive;
mod lease;
mod moving;
mod run;
pub(crate) mod table;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use backon::{BackoffBuilder, ExponentialBuilder};
use holdfast_proto::v1::client_message as client;
use holdfast_proto::v1::server_message::Opened;
use tokio::time::{Instant, sleep};

use crate::barriers::{Barrier, DoubleBarrier};
use crate::client::Client;
use crate::error::{EndReason, Error, Result};
use crate::leader_hint::MovePlan;
use crate::locks::{Condition, LockService, LockSet, Mutex, Pool, RwLock, Semaphore};
use crate::view::{Mode, Path};
use connection::Connection;
use events::{EventDispatcher, LockListener, SessionHandler};
use inner::SessionInner;
use lease::{SendTime, SessionLease};
use run::SessionDriver;

const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A session in a namespace. Every lock belongs to a session. The client keeps it alive in the background and moves it
/// to another gateway when one fails, and to the gateway at the leader of its namespace
/// ([`ClientBuilder::prefer_leader`](crate::ClientBuilder::prefer_leader)). It closes the session when the last of its
/// clones, locks and guards is dropped.
///
/// It works alike whether the namespace keeps its locks in the log or, if its durability is `SESSION`, in the memory of
/// a leader. What the latter does not have fails with [`Error::Unsupported`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// let session = client.session("demo").open().await?;
/// let guard = session.mutex("invoices").lock().await?;
/// assert!(guard.deadline() <= std::time::Instant::now() + session.ttl());
/// guard.release().await?;
///
/// session.close().await;
/// assert!(session.mutex("invoices").lock().await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Session {
    guard: Arc<SessionGuard>,
}

struct SessionGuard {
    inner: Arc<SessionInner>,
    client: Client,
    session_id: String,
    namespace: String,
    process_id: String,
    ttl: Duration,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.inner.close.cancel();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionGuard { session_id, namespace, process_id, .. } = &*self.guard;
        write!(f, "Session({session_id} of {process_id} in {namespace})")
    }
}

impl Session {
    /// Returns its id, as the service shows it. It begins with `se_`.
    pub fn id(&self) -> &str {
        &self.guard.session_id
    }

    /// Returns its namespace.
    pub fn namespace(&self) -> &str {
        &self.guard.namespace
    }

    /// Returns the process id.
    pub fn process_id(&self) -> &str {
        &self.guard.process_id
    }

    /// Returns how long the session lives after its last keep-alive.
    pub fn ttl(&self) -> Duration {
        self.guard.ttl
    }

    /// Returns until when the session and all its holds are certain to live, if the machine is not suspended or paused
    /// before. Advances with each answered keep-alive.
    pub fn deadline(&self) -> StdInstant {
        self.inner().lease.deadline().into_std()
    }

    /// Returns why the session has ended, if it has. Reads the clocks, so that the result is right even directly after
    /// the process or the machine was suspended.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.inner().lease.end_reason()
    }

    /// Completes when the session has ended.
    pub async fn ended(&self) -> EndReason {
        self.inner().lease.wait_ended().await
    }

    /// Creates a lock that one owner holds at a time.
    pub fn mutex(&self, path: impl Into<Path>) -> Mutex {
        Mutex::new(self.clone(), path.into())
    }

    /// Creates a lock that one writer or many readers hold.
    pub fn rw_lock(&self, path: impl Into<Path>) -> RwLock {
        RwLock::new(self.clone(), path.into())
    }

    /// Creates a set of 1 to 64 locks that are acquired together or not at all.
    pub fn lock_set<P: Into<Path>>(&self, claims: impl IntoIterator<Item = (P, Mode)>) -> LockSet {
        LockSet::new(self.clone(), claims.into_iter().map(|(path, mode)| (path.into(), mode)))
    }

    /// Creates a condition of a lock, to be awaited and signalled by the lock's guards. The empty name is that of a
    /// lock's only condition.
    pub fn condition(&self, name: impl AsRef<str>) -> Condition {
        Condition::new(name.as_ref())
    }

    /// Creates a pool: each of its named members has at most one holder at a time.
    pub fn pool(&self, path: impl Into<Path>) -> Pool {
        Pool::new(self.clone(), path.into())
    }

    /// Creates a semaphore: at most so many permits are in use at a time.
    pub fn semaphore(&self, path: impl Into<Path>) -> Semaphore {
        Semaphore::new(self.clone(), path.into())
    }

    /// Creates a barrier: so many meet and go on together, again and again.
    pub fn barrier(&self, path: impl Into<Path>) -> Barrier {
        Barrier::new(self.clone(), path.into())
    }

    /// Creates a double barrier: those who met also leave together.
    pub fn double_barrier(&self, path: impl Into<Path>) -> DoubleBarrier {
        DoubleBarrier::new(self.clone(), path.into())
    }

    /// Returns locks by name, held by the session as a whole, with listeners instead of guards.
    pub fn lock_service(&self) -> LockService {
        LockService::new(self.clone())
    }

    /// Adds a handler of events from now on.
    pub fn add_handler(&self, handler: impl SessionHandler) {
        self.inner().events.add_handler(Arc::new(handler));
    }

    pub(crate) fn add_listener(&self, listener: Arc<dyn LockListener>) {
        self.inner().events.add_listener(listener);
    }

    /// Returns the number of requests that wait, hold or are being released; 0 if no lock is left.
    pub fn request_count(&self) -> usize {
        self.inner().request_count()
    }

    /// Ends the session with all its holds and requests, in one step, and waits for completion. If no gateway can be
    /// reached for some seconds, the service ends it after its time to live.
    pub async fn close(&self) -> EndReason {
        self.inner().close.cancel();
        self.inner().closed().await
    }

    pub(crate) fn client(&self) -> &Client {
        &self.guard.client
    }

    pub(crate) fn inner(&self) -> &Arc<SessionInner> {
        &self.guard.inner
    }
}

/// Settings of a new session.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// use std::time::Duration;
///
/// let session = client
///     .session("demo")
///     .process_id("report-writer")
///     .ttl(Duration::from_secs(10))
///     .metadata("version", "7")
///     .open_within(Duration::from_secs(5))
///     .open()
///     .await?;
/// assert!(session.id().starts_with("se_"));
/// assert_eq!((session.process_id(), session.ttl()), ("report-writer", Duration::from_secs(10)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SessionBuilder {
    client: Client,
    open: client::Open,
    ttl: Duration,
    open_within: Duration,
    handlers: Vec<Arc<dyn SessionHandler>>,
}

impl fmt::Debug for SessionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionBuilder({:?} for {:?})", self.open, self.ttl)
    }
}

impl SessionBuilder {
    pub(crate) fn new(client: Client, namespace: String) -> Self {
        let process_id = format!("process-{}", std::process::id());
        let open = client::Open { namespace, process_id, keeps_table: true, ..Default::default() };
        Self { client, open, ttl: DEFAULT_TTL, open_within: DEFAULT_OPEN_TIMEOUT, handlers: Vec::new() }
    }

    /// Sets the name of this process for displays of lock holders: 1 to 128 bytes. Defaults to `process-` and the
    /// process number.
    pub fn process_id(mut self, process_id: impl Into<String>) -> Self {
        self.open.process_id = process_id.into();
        self
    }

    /// Sets how long the session lives after its last keep-alive, 1 s to 10 min; defaults to 30 s. A shorter time frees
    /// the locks of a dead process sooner; a longer time survives longer outages.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Adds metadata that is shown with the session.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.open.metadata.insert(key.into(), value.into());
        self
    }

    /// Sets how long [`SessionBuilder::open`] tries; defaults to 10 s.
    pub fn open_within(mut self, within: Duration) -> Self {
        self.open_within = within;
        self
    }

    /// Adds a handler of all events from the start.
    pub fn handler(mut self, handler: impl SessionHandler) -> Self {
        self.handlers.push(Arc::new(handler));
        self
    }

    /// Opens the session at the first gateway that accepts it.
    ///
    /// # Errors
    /// The service's error, or [`Error::Unreachable`] when no gateway responded in time.
    pub async fn open(mut self) -> Result<Session> {
        self.open.ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let (connection, opened, asked_at, gateway) = self.open_any().await?;
        let ttl = Duration::from_millis(opened.ttl_ms);
        let lease = SessionLease::new(asked_at, ttl, self.client.clocks().clone());
        let inner = SessionInner::new(lease, EventDispatcher::start(self.handlers), opened.durability());
        let handle = SessionGuard {
            inner: Arc::clone(&inner),
            client: self.client.clone(),
            session_id: opened.session_id.clone(),
            namespace: self.open.namespace.clone(),
            process_id: self.open.process_id.clone(),
            ttl,
        };
        let open = client::Open { session_id: Some(opened.session_id), ..self.open };
        let runner = SessionDriver {
            inner,
            client: self.client,
            open,
            ttl,
            gateway,
            in_jeopardy: false,
            may_supersede_until: None,
            move_plan: MovePlan::new(Instant::now()),
            moving: None,
        };
        tokio::spawn(runner.run(connection, asked_at));
        Ok(Session { guard: Arc::new(handle) })
    }

    async fn open_any(&self) -> Result<(Connection, Opened, SendTime, usize)> {
        let deadline = Instant::now() + self.open_within;
        let pauses = ExponentialBuilder::default().with_min_delay(BACKOFF.0).with_max_delay(BACKOFF.1);
        let mut pauses = pauses.without_max_times().with_jitter().build();
        let gateways = self.client.gateway_count();
        // Random, so that a service's clients do not all use its first gateway.
        let mut gateway = rand::random_range(0..gateways);
        loop {
            let mut error = None;
            for _ in 0..gateways {
                let left = deadline.saturating_duration_since(Instant::now());
                // Leaves time for the other gateways.
                let within = (self.open_within / 2).min(left);
                let attempt = Connection::open(&self.client, self.client.gateway(gateway), self.open.clone(), within);
                match attempt.await {
                    Ok((connection, opened, asked_at)) => return Ok((connection, opened, asked_at, gateway)),
                    Err(failed) if !failed.error.is_transient() => return Err(failed.error),
                    Err(failed) => error = Some(failed.error),
                }
                gateway += 1;
            }
            let pause = pauses.next().unwrap_or(BACKOFF.1);
            if Instant::now() + pause >= deadline {
                let none = || Error::Unreachable("none was tried".to_owned());
                return Err(error.unwrap_or_else(none));
            }
            sleep(pause).await;
        }
    }
}
