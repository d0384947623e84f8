//! What can be started and stopped.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use holdfast_client::Error;
use tokio::sync::watch;

use crate::contender::{MutexContender, MutexRetriever};
use crate::error::ContentionError;
use crate::owner::MutexOwner;
use crate::state::MutexState;

/// Where a service is in its life.
///
/// ```
/// use holdfast_contention::Status;
///
/// assert!(Status::Running.is_active() && !Status::Stopping.is_active());
/// assert_eq!(Status::Initial.to_string(), "INITIAL");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Not started yet, or stopped for good: it can be started.
    Initial,
    /// About to run.
    Starting,
    /// At work: it can be stopped.
    Running,
    /// Giving back what it has.
    Stopping,
}

impl Status {
    /// Whether it is at work or about to be.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Initial => "INITIAL",
            Self::Starting => "STARTING",
            Self::Running => "RUNNING",
            Self::Stopping => "STOPPING",
        })
    }
}

/// Looks who owns a mutex, and tells a [`MutexRetriever`]. What it shows is a little behind the truth.
///
/// A service that is dropped while it runs stops by itself.
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
    /// Whose owner it looks at.
    fn mutex(&self) -> &str;

    /// Where it is in its life.
    fn status(&self) -> Status;

    /// The last change, or renewal, that it saw.
    fn mutex_state(&self) -> MutexState;

    /// Every change and renewal from now on. Whoever looks seldom sees the last one only.
    fn states(&self) -> watch::Receiver<MutexState>;

    /// The error that the last call to where owners are kept ended with; none while calls are answered. The service
    /// goes on trying.
    fn last_error(&self) -> watch::Receiver<Option<Error>>;

    /// Begins to look.
    ///
    /// # Errors
    /// [`ContentionError::WrongStatus`] unless it is `INITIAL`, [`ContentionError::NoRuntime`] outside of a runtime.
    fn start(&self) -> Result<(), ContentionError>;

    /// Ends everything that it began: the retriever is told that there is nobody, then what is held is released. It
    /// goes on when the answer is dropped; the answer is there when the service is `INITIAL` again.
    ///
    /// # Errors
    /// [`ContentionError::WrongStatus`] unless it is `RUNNING`; [`ContentionError::Store`] when the release was not
    /// answered, so that what was held may stay so until its time is over. The service is `INITIAL` in that case, too.
    fn stop(&self) -> BoxFuture<'static, Result<(), ContentionError>>;

    /// Completes when the service is `INITIAL`.
    fn stopped(&self) -> BoxFuture<'static, ()>;

    /// Who owned it before the last change or renewal.
    fn before_owner(&self) -> MutexOwner {
        self.mutex_state().before().clone()
    }

    /// Who owns it, as far as is known here.
    fn after_owner(&self) -> MutexOwner {
        self.mutex_state().after().clone()
    }

    /// Whether somebody owns it, as far as is known here.
    fn has_owner(&self) -> bool {
        self.after_owner().has_owner()
    }

    /// Whether it is at work or about to be.
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
    /// On whose behalf.
    fn contender_id(&self) -> &str;

    /// Whether its contender owns the mutex. False from the instant at which its ownership was not renewed in time,
    /// also when nobody was told yet: the clock is asked.
    fn is_owner(&self) -> bool;

    /// Whether its contender owns the mutex and its time to live is not over.
    fn is_in_ttl(&self) -> bool;

    /// Renews the ownership at once, so that everybody sees the contender's present metadata.
    ///
    /// # Errors
    /// [`ContentionError::NotOwner`] when there is nothing to renew, [`ContentionError::Store`] when it was not
    /// answered; the usual renewals go on.
    fn renew(&self) -> BoxFuture<'static, Result<(), ContentionError>>;
}

/// Makes services that look.
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
    /// For this retriever. The service is `INITIAL`.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the name of its mutex is blank or too long.
    fn create_retrieval_service(
        &self,
        retriever: Arc<dyn MutexRetriever>,
    ) -> Result<Arc<dyn MutexRetrievalService>, ContentionError>;
}

/// Makes services that contend.
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
    /// For this contender. The service is `INITIAL`.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the name of its mutex or its id is blank or too long.
    fn create_contend_service(
        &self,
        contender: Arc<dyn MutexContender>,
    ) -> Result<Arc<dyn MutexContendService>, ContentionError>;
}
