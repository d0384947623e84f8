//! Services that can be started and stopped.

use std::sync::Arc;

use futures::future::BoxFuture;
use holdfast_client::Error;
use tokio::sync::watch;

use crate::contender::{MutexContender, MutexRetriever};
use crate::error::ContentionError;
use crate::owner::MutexOwner;
use crate::state::MutexState;
use crate::status::Status;

/// Observes the owner of a mutex, and notifies a [`MutexRetriever`]. Its view lags slightly behind the store.
///
/// A running service stops when it is dropped.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use holdfast_contention::{
///     ContendOptions, ContentionFactory, MutexRetrievalServiceFactory, MutexRetriever, MutexState,
/// };
///
/// struct Silent;
///
/// impl MutexRetriever for Silent {
///     fn mutex(&self) -> &str {
///         "reports"
///     }
///
///     fn notify_owner(&self, _state: &MutexState) {}
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdfast_contention::ContentionError> {
/// let factory = ContentionFactory::in_process(ContendOptions::new(Duration::from_secs(2)))?;
/// let service = factory.create_retrieval_service(Arc::new(Silent))?;
/// service.start()?;
/// assert!(service.is_running() && !service.has_owner());
/// service.stop().await
/// # }
/// ```
pub trait MutexRetrievalService: Send + Sync {
    /// The observed mutex.
    fn mutex(&self) -> &str;

    /// The current status.
    fn status(&self) -> Status;

    /// The last observed change or renewal.
    fn mutex_state(&self) -> MutexState;

    /// Receives every change and renewal from now on. A slow receiver sees the last one only.
    fn states(&self) -> watch::Receiver<MutexState>;

    /// Receives the error of the last call to the store; `None` after a success. The service keeps trying.
    fn last_error(&self) -> watch::Receiver<Option<Error>>;

    /// Starts to observe.
    ///
    /// # Errors
    /// [`ContentionError::WrongStatus`] unless it is `INITIAL`, [`ContentionError::NoRuntime`] outside of a runtime.
    fn start(&self) -> Result<(), ContentionError>;

    /// Ends everything that it started: it notifies the retriever that there is no owner, then releases its hold. The
    /// stop continues if the future is dropped; the future completes when the service is `INITIAL` again.
    ///
    /// # Errors
    /// [`ContentionError::WrongStatus`] unless it is `RUNNING`; [`ContentionError::Store`] when the release was not
    /// answered, so that the hold may remain until its time is over. The service is `INITIAL` in that case, too.
    fn stop(&self) -> BoxFuture<'static, Result<(), ContentionError>>;

    /// Completes when the service is `INITIAL`.
    fn stopped(&self) -> BoxFuture<'static, ()>;

    /// The owner before the last change or renewal.
    fn before_owner(&self) -> MutexOwner {
        self.mutex_state().before().clone()
    }

    /// The current owner, as far as is known here.
    fn after_owner(&self) -> MutexOwner {
        self.mutex_state().after().clone()
    }

    /// Returns true if the mutex has an owner, as far as is known here.
    fn has_owner(&self) -> bool {
        self.after_owner().has_owner()
    }

    /// Returns true if it runs or is starting.
    fn is_running(&self) -> bool {
        self.status().is_active()
    }
}

/// Contends for a mutex on behalf of a [`MutexContender`].
///
/// ```
/// use holdfast_contention::MutexContendService;
///
/// /// Work that must not be done by two goes on only while this is so; it is asked before each step.
/// fn may_go_on(service: &dyn MutexContendService) -> bool {
///     service.is_in_ttl()
/// }
/// # let _ = may_go_on;
/// ```
pub trait MutexContendService: MutexRetrievalService {
    /// The contender's id.
    fn contender_id(&self) -> &str;

    /// Returns true if its contender owns the mutex. Reads the clock: it is false from the instant at which the
    /// ownership was not renewed in time, even if no listener was notified yet.
    fn is_owner(&self) -> bool;

    /// Returns true if its contender owns the mutex, in its time to live.
    fn is_in_ttl(&self) -> bool;

    /// Renews the ownership at once, which publishes the contender's current metadata.
    ///
    /// # Errors
    /// [`ContentionError::NotOwner`] when there is nothing to renew, [`ContentionError::Store`] when it was not
    /// answered; the regular renewals continue.
    fn renew(&self) -> BoxFuture<'static, Result<(), ContentionError>>;
}

/// Creates services that observe.
///
/// ```
/// # fn main() -> Result<(), holdfast_contention::ContentionError> {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use holdfast_contention::{
///     ContendOptions, ContentionError, ContentionFactory, MutexRetrievalServiceFactory, MutexRetriever, MutexState,
///     Status,
/// };
///
/// struct Printer(String);
///
/// impl MutexRetriever for Printer {
///     fn mutex(&self) -> &str {
///         &self.0
///     }
///
///     fn notify_owner(&self, state: &MutexState) {
///         println!("{} comes", state.after().owner_id());
///     }
/// }
///
/// let factory = ContentionFactory::in_process(ContendOptions::new(Duration::from_secs(2)))?;
/// let service = factory.create_retrieval_service(Arc::new(Printer("reports".to_owned())))?;
/// assert_eq!(service.status(), Status::Initial);
/// let refused = factory.create_retrieval_service(Arc::new(Printer(String::new()))).err();
/// assert!(matches!(refused, Some(ContentionError::Invalid { .. })));
/// # Ok(())
/// # }
/// ```
pub trait MutexRetrievalServiceFactory: Send + Sync {
    /// Creates a service for this retriever. The service is `INITIAL`.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the mutex name is blank or too long.
    fn create_retrieval_service(
        &self,
        retriever: Arc<dyn MutexRetriever>,
    ) -> Result<Arc<dyn MutexRetrievalService>, ContentionError>;
}

/// Creates services that contend.
///
/// ```
/// # fn main() -> Result<(), holdfast_contention::ContentionError> {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use holdfast_contention::{
///     ContendOptions, Contender, ContentionError, ContentionFactory, MutexContendServiceFactory,
/// };
///
/// /// Works with every backend.
/// fn contend(factory: &dyn MutexContendServiceFactory) -> Result<(), ContentionError> {
///     let service = factory.create_contend_service(Arc::new(Contender::with_id("reports", "host-1")?))?;
///     assert_eq!((service.mutex(), service.contender_id(), service.is_owner()), ("reports", "host-1", false));
///     Ok(())
/// }
///
/// contend(&ContentionFactory::in_process(ContendOptions::new(Duration::from_secs(2)))?)?;
/// # Ok(())
/// # }
/// ```
pub trait MutexContendServiceFactory: Send + Sync {
    /// Creates a service for this contender. The service is `INITIAL`.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the mutex name or the id is blank or too long.
    fn create_contend_service(
        &self,
        contender: Arc<dyn MutexContender>,
    ) -> Result<Arc<dyn MutexContendService>, ContentionError>;
}
