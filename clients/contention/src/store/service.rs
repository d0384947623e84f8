//! The lock service as a store of owners.

use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use holdfast_client::protocol::locks_service_client::LocksServiceClient;
use holdfast_client::{AuthChannel, Client, Error, Result, protocol as v1};
use tonic::{Request, Response, Status};

use super::{AcquireMutex, Acquisition, Holding, MutexStore};
use crate::timestamp::whole_ms;

/// Timeout of a call, in addition to its wait for the mutex.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request stays queued between two calls.
const QUEUE_GRACE: Duration = Duration::from_secs(10);

/// Stores owners as locks of a namespace: a mutex is the lock with its name, and its owner is the write holder, with
/// its contender id as `process_id`.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use holdfast_client::Client;
/// use holdfast_contention::{ContendOptions, ContentionFactory, ServiceStore, SimbaLocker};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let (url, key) = (service.url(), service.secret("demo.key"));
/// let client = Client::new(&url, &key)?;
/// let store = Arc::new(ServiceStore::new(&client, "demo"));
/// let factory = ContentionFactory::new(store, ContendOptions::new(Duration::from_secs(5)))?;
/// let locker = SimbaLocker::new(&factory, "reports")?;
/// locker.acquire().await?;
/// assert!(locker.is_owner());
/// locker.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ServiceStore {
    locks: LocksServiceClient<AuthChannel>,
    namespace: String,
}

impl ServiceStore {
    /// Creates a store in an existing namespace. Must be called within a tokio runtime; does not connect yet.
    pub fn new(client: &Client, namespace: impl Into<String>) -> Self {
        Self { locks: client.locks(), namespace: namespace.into() }
    }

    async fn acquire(&self, request: &AcquireMutex) -> Result<Acquisition> {
        let waits = !request.wait.is_zero() && request.fencing_token.is_none();
        let message = v1::AcquireLockRequest {
            namespace: self.namespace.clone(),
            name: Some(request.mutex.clone()),
            process_id: Some(request.contender_id.clone()),
            ttl_ms: Some(whole_ms(request.ttl)),
            transition_ms: whole_ms(request.transition),
            metadata: request.metadata.clone().into_iter().collect(),
            fencing_token: request.fencing_token,
            wait_ms: if waits { whole_ms(request.wait + QUEUE_GRACE) } else { 0 },
            poll_ms: waits.then(|| whole_ms(request.wait)),
            ..Default::default()
        };
        let within = if waits { request.wait + CALL_TIMEOUT } else { CALL_TIMEOUT };
        let mut locks = self.locks.clone();
        let answer = call_with_timeout(within, locks.acquire_lock(with_deadline(message, within))).await?;
        Ok(match answer.fencing_token {
            Some(fencing_token) if answer.success => Acquisition::Granted { fencing_token },
            _ => Acquisition::NotGranted { holding: answer.lock.and_then(holding) },
        })
    }

    async fn release(&self, mutex: &str, contender_id: &str) -> Result<bool> {
        let message = v1::ReleaseLockRequest {
            namespace: self.namespace.clone(),
            name: Some(mutex.to_owned()),
            process_id: Some(contender_id.to_owned()),
            ..Default::default()
        };
        let mut locks = self.locks.clone();
        Ok(call_with_timeout(CALL_TIMEOUT, locks.release_lock(with_deadline(message, CALL_TIMEOUT))).await?.released)
    }

    async fn holding(&self, mutex: &str) -> Result<Option<Holding>> {
        let message = v1::GetLockRequest {
            namespace: self.namespace.clone(),
            name: Some(mutex.to_owned()),
            ..Default::default()
        };
        let mut locks = self.locks.clone();
        let answer = call_with_timeout(CALL_TIMEOUT, locks.get_lock(with_deadline(message, CALL_TIMEOUT))).await?;
        Ok(answer.lock.and_then(holding))
    }
}

impl MutexStore for ServiceStore {
    fn acquire<'a>(&'a self, request: &'a AcquireMutex) -> BoxFuture<'a, Result<Acquisition>> {
        self.acquire(request).boxed()
    }

    fn release<'a>(&'a self, mutex: &'a str, contender_id: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.release(mutex, contender_id).boxed()
    }

    fn holding<'a>(&'a self, mutex: &'a str) -> BoxFuture<'a, Result<Option<Holding>>> {
        self.holding(mutex).boxed()
    }

    fn changes(&self, mutex: &str) -> BoxStream<'static, Result<()>> {
        let mut locks = self.locks.clone();
        let message = v1::WatchRequest {
            namespace: self.namespace.clone(),
            prefix: vec![mutex.to_owned()],
            ..Default::default()
        };
        let opened = async move { call_with_timeout(CALL_TIMEOUT, locks.watch(message)).await };
        let events = opened.map(|opened| match opened {
            Ok(events) => events.map(|event| event.map(drop).map_err(Error::from)).boxed(),
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        });
        // The first item marks the start of the watch: the caller must read earlier changes.
        events.into_stream().map(|events| futures::stream::iter([Ok(())]).chain(events)).flatten().boxed()
    }
}

/// Creates a request with a deadline that the service receives.
fn with_deadline<T>(message: T, within: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(within);
    request
}

/// Applies a timeout to a call, even if the connection hangs.
async fn call_with_timeout<T>(within: Duration, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
    match tokio::time::timeout(within, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Error::Unreachable(format!("no answer within {} ms", within.as_millis()))),
    }
}

/// Returns the ownership that keeps other contenders out. Readers of a lock that is also used in other ways count as
/// owners.
fn holding(lock: v1::Lock) -> Option<Holding> {
    let holder = lock.write_lock_holder.or_else(|| lock.read_lock_holders.into_iter().next())?;
    let is_in_transition = holder.phase() == v1::holder::Phase::Transition;
    let left = holder.remaining_ms.map(Duration::from_millis);
    let locked_at = holder.locked_at.and_then(|at| SystemTime::try_from(at).ok());
    Some(Holding {
        held_for: locked_at.and_then(|at| at.elapsed().ok()).unwrap_or_default(),
        // A hold that lasts as long as its session has no known end.
        ttl_left: if is_in_transition { None } else { Some(left.unwrap_or(Duration::MAX)) },
        transition_left: if is_in_transition { left } else { None },
        owner_id: holder.process_id,
        fencing_token: holder.fencing_token,
        metadata: holder.metadata.into_iter().collect(),
    })
}
