//! Sessions: what holds locks, for as long as it is kept alive, whatever happens to connections.

mod connection;
mod dispatch;
pub(crate) mod events;
pub(crate) mod inner;
mod keep_alive;
mod lease;
mod run;
pub(crate) mod table;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use backon::{BackoffBuilder, ExponentialBuilder};
use holdfast_proto::v1::client_message as client;
use holdfast_proto::v1::server_message::Opened;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::error::{EndReason, Error, Result};
use crate::locks::{LockService, LockSet, Mutex, RwLock};
use crate::view::{Mode, Path};
use connection::Connection;
use events::{EventDispatcher, LockListener, SessionHandler};
use inner::SessionInner;
use lease::SessionLease;
use run::SessionDriver;

const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A session in a namespace. All locks are taken on one. It is kept alive in the background, moves to another gateway
/// when one is gone, and is closed when the last of its clones, locks and guards is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_api_tests::Standalone::fresh();
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
    /// Its id, as the service shows it. It begins with `se_`.
    pub fn id(&self) -> &str {
        &self.guard.session_id
    }

    /// The namespace that it is in.
    pub fn namespace(&self) -> &str {
        &self.guard.namespace
    }

    /// What its process is called.
    pub fn process_id(&self) -> &str {
        &self.guard.process_id
    }

    /// How long it lives after it was last heard of.
    pub fn ttl(&self) -> Duration {
        self.guard.ttl
    }

    /// Until when it is certain to live, and with it all that it holds. Moves on with each sign of life that a gateway
    /// answers.
    pub fn deadline(&self) -> StdInstant {
        self.inner().lease.deadline().into_std()
    }

    /// Why it is over, if it is. The clock is looked at, so that this is also right directly after a pause of the
    /// process.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.inner().lease.end_reason()
    }

    /// Completes when the session is over.
    pub async fn ended(&self) -> EndReason {
        self.inner().lease.wait_ended().await
    }

    /// A lock that one owner at a time holds.
    pub fn mutex(&self, path: impl Into<Path>) -> Mutex {
        Mutex::new(self.clone(), path.into())
    }

    /// A lock that one writer or many readers hold.
    pub fn rw_lock(&self, path: impl Into<Path>) -> RwLock {
        RwLock::new(self.clone(), path.into())
    }

    /// Several locks that are taken together or not at all: 1 to 64.
    pub fn lock_set<P: Into<Path>>(&self, claims: impl IntoIterator<Item = (P, Mode)>) -> LockSet {
        LockSet::new(self.clone(), claims.into_iter().map(|(path, mode)| (path.into(), mode)))
    }

    /// Locks by name, held by the session as a whole, with listeners instead of guards.
    pub fn lock_service(&self) -> LockService {
        LockService::new(self.clone())
    }

    /// Adds somebody who is told what happens from now on.
    pub fn add_handler(&self, handler: impl SessionHandler) {
        self.inner().events.add_handler(Arc::new(handler));
    }

    pub(crate) fn add_listener(&self, listener: Arc<dyn LockListener>) {
        self.inner().events.add_listener(listener);
    }

    /// Requests that wait, hold or are being released. 0 says that nothing is left of any lock.
    pub fn request_count(&self) -> usize {
        self.inner().request_count()
    }

    /// Ends the session and all that it holds and awaits, in one step, and waits until that is done. When no gateway
    /// can be reached for some seconds the service ends it after its time to live.
    pub async fn close(&self) -> EndReason {
        self.inner().close.cancel();
        self.inner().closed().await
    }

    pub(crate) fn inner(&self) -> &Arc<SessionInner> {
        &self.guard.inner
    }
}

/// Settings of a session that is to be opened.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_api_tests::Standalone::fresh();
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
        let open = client::Open { namespace, process_id, metadata: HashMap::new(), ..Default::default() };
        Self { client, open, ttl: DEFAULT_TTL, open_within: DEFAULT_OPEN_TIMEOUT, handlers: Vec::new() }
    }

    /// What this process is called where others see who holds a lock: 1 to 128 bytes. `process-` and its number when it
    /// is not set.
    pub fn process_id(mut self, process_id: impl Into<String>) -> Self {
        self.open.process_id = process_id.into();
        self
    }

    /// How long the session lives after it was last heard of, 1 s to 10 min, 30 s when it is not set. The shorter, the
    /// sooner others get what a dead process held; the longer, the longer an outage that it survives.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Notes something that is shown with the session.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.open.metadata.insert(key.into(), value.into());
        self
    }

    /// How long [`SessionBuilder::open`] tries, 10 s when it is not set.
    pub fn open_within(mut self, within: Duration) -> Self {
        self.open_within = within;
        self
    }

    /// Adds somebody who is told what happens, from the beginning.
    pub fn handler(mut self, handler: impl SessionHandler) -> Self {
        self.handlers.push(Arc::new(handler));
        self
    }

    /// Opens the session, at the first gateway that does.
    ///
    /// # Errors
    /// What the service refused it for, or [`Error::Unreachable`] when no gateway answered in time.
    pub async fn open(mut self) -> Result<Session> {
        self.open.ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let (connection, opened, asked_at, gateway) = self.open_any().await?;
        let ttl = Duration::from_millis(opened.ttl_ms);
        let inner = SessionInner::new(SessionLease::new(asked_at, ttl), EventDispatcher::start(self.handlers));
        let handle = SessionGuard {
            inner: Arc::clone(&inner),
            session_id: opened.session_id.clone(),
            namespace: self.open.namespace.clone(),
            process_id: self.open.process_id.clone(),
            ttl,
        };
        let open = client::Open { session_id: Some(opened.session_id), ..self.open };
        let (client, in_jeopardy, may_supersede) = (self.client, false, false);
        let runner = SessionDriver { inner, client, open, ttl, gateway, in_jeopardy, may_supersede };
        tokio::spawn(runner.run(connection, asked_at));
        Ok(Session { guard: Arc::new(handle) })
    }

    async fn open_any(&self) -> Result<(Connection, Opened, Instant, usize)> {
        let deadline = Instant::now() + self.open_within;
        let pauses = ExponentialBuilder::default().with_min_delay(BACKOFF.0).with_max_delay(BACKOFF.1);
        let mut pauses = pauses.without_max_times().with_jitter().build();
        let gateways = self.client.gateway_count();
        // So that not all clients of a service are at its first gateway.
        let mut gateway = rand::random_range(0..gateways);
        loop {
            let mut error = None;
            for _ in 0..gateways {
                let left = deadline.saturating_duration_since(Instant::now());
                // The others are to have their turn too.
                let within = (self.open_within / 2).min(left);
                match Connection::open(&self.client, gateway, self.open.clone(), within).await {
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
