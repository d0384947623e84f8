//! Creates services on any store.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_client::{Client, Error};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::contend::{Contention, RenewRequest};
use crate::contender::{MutexContender, MutexRetriever, check_contender_id, check_mutex};
use crate::error::ContentionError;
use crate::lifecycle::{Lifecycle, StopOnDrop};
use crate::options::ContendOptions;
use crate::retrieve::Retrieval;
use crate::service::{
    MutexContendService, MutexContendServiceFactory, MutexRetrievalService, MutexRetrievalServiceFactory,
};
use crate::state::MutexState;
use crate::status::Status;
use crate::store::{InProcessStore, MutexStore, ServiceStore};

/// Buffered requests to renew at once; further ones wait.
const MAX_RENEWALS: usize = 16;

/// Creates services that contend for mutexes and services that observe them. The lock service stores the owners or, for
/// tests, only this process.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use holdfast_contention::{
///     ContendOptions, Contender, ContentionFactory, MutexContendServiceFactory, MutexRetrievalService,
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdfast_contention::ContentionError> {
/// let factory = ContentionFactory::in_process(ContendOptions::new(Duration::from_secs(2)))?;
/// let (sender, mut acquired) = tokio::sync::mpsc::channel(1);
/// let contender = Contender::new("reports")?.when_acquired(move |state| {
///     sender.blocking_send(state.after().fencing_token()).expect("somebody listens");
/// });
/// let service = factory.create_contend_service(Arc::new(contender))?;
/// service.start()?;
/// assert_eq!(acquired.recv().await, Some(Some(1)));
/// assert!(service.is_owner());
/// service.stop().await?;
/// assert!(!service.is_owner());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ContentionFactory {
    store: Arc<dyn MutexStore>,
    options: ContendOptions,
}

impl ContentionFactory {
    /// Creates a factory on a store of owners.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the options are invalid.
    pub fn new(store: Arc<dyn MutexStore>, options: ContendOptions) -> Result<Self, ContentionError> {
        options.check()?;
        Ok(Self { store, options })
    }

    /// Creates a factory on the lock service, in an existing namespace. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the options are invalid.
    pub fn service(
        client: &Client,
        namespace: impl Into<String>,
        options: ContendOptions,
    ) -> Result<Self, ContentionError> {
        Self::new(Arc::new(ServiceStore::new(client, namespace)), options)
    }

    /// Creates a factory whose owners only this factory and its clones know, for tests.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the options are invalid.
    pub fn in_process(options: ContendOptions) -> Result<Self, ContentionError> {
        Self::new(Arc::new(InProcessStore::default()), options)
    }
}

impl fmt::Debug for ContentionFactory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ContentionFactory").field("options", &self.options).finish_non_exhaustive()
    }
}

impl MutexContendServiceFactory for ContentionFactory {
    fn create_contend_service(
        &self,
        contender: Arc<dyn MutexContender>,
    ) -> Result<Arc<dyn MutexContendService>, ContentionError> {
        check_mutex(contender.mutex())?;
        check_contender_id(contender.contender_id())?;
        let lifecycle = StopOnDrop(Lifecycle::new(Arc::new(RetrieverAdapter(Arc::clone(&contender)))));
        let (store, options) = (Arc::clone(&self.store), self.options);
        Ok(Arc::new(ContendService { lifecycle, contender, store, options, renewals: Mutex::new(None) }))
    }
}

impl MutexRetrievalServiceFactory for ContentionFactory {
    fn create_retrieval_service(
        &self,
        retriever: Arc<dyn MutexRetriever>,
    ) -> Result<Arc<dyn MutexRetrievalService>, ContentionError> {
        check_mutex(retriever.mutex())?;
        let lifecycle = StopOnDrop(Lifecycle::new(Arc::clone(&retriever)));
        Ok(Arc::new(RetrievalService { lifecycle, retriever, store: Arc::clone(&self.store), options: self.options }))
    }
}

/// Adapts a contender to a retriever.
struct RetrieverAdapter(Arc<dyn MutexContender>);

impl MutexRetriever for RetrieverAdapter {
    fn mutex(&self) -> &str {
        self.0.mutex()
    }

    fn notify_owner(&self, state: &MutexState) {
        self.0.notify_owner(state);
    }
}

struct RetrievalService {
    lifecycle: StopOnDrop,
    retriever: Arc<dyn MutexRetriever>,
    store: Arc<dyn MutexStore>,
    options: ContendOptions,
}

struct ContendService {
    lifecycle: StopOnDrop,
    contender: Arc<dyn MutexContender>,
    store: Arc<dyn MutexStore>,
    options: ContendOptions,
    /// Sends to the task of the current run.
    renewals: Mutex<Option<mpsc::Sender<RenewRequest>>>,
}

/// The methods that both services delegate.
macro_rules! delegate_to_lifecycle {
    () => {
        fn mutex(&self) -> &str {
            self.lifecycle.0.mutex()
        }

        fn status(&self) -> Status {
            *self.lifecycle.0.status.borrow()
        }

        fn mutex_state(&self) -> MutexState {
            self.lifecycle.0.state.borrow().clone()
        }

        fn states(&self) -> watch::Receiver<MutexState> {
            self.lifecycle.0.state.subscribe()
        }

        fn last_error(&self) -> watch::Receiver<Option<Error>> {
            self.lifecycle.0.last_error.subscribe()
        }

        fn stop(&self) -> BoxFuture<'static, Result<(), ContentionError>> {
            self.lifecycle.0.stop()
        }

        fn stopped(&self) -> BoxFuture<'static, ()> {
            self.lifecycle.0.stopped()
        }
    };
}

impl MutexRetrievalService for RetrievalService {
    delegate_to_lifecycle!();

    fn start(&self) -> Result<(), ContentionError> {
        let (retriever, store, options) = (Arc::clone(&self.retriever), Arc::clone(&self.store), self.options);
        self.lifecycle.0.start(|context| Retrieval { context, retriever, store, options }.run())
    }
}

impl MutexRetrievalService for ContendService {
    delegate_to_lifecycle!();

    fn start(&self) -> Result<(), ContentionError> {
        let (contender, store, options) = (Arc::clone(&self.contender), Arc::clone(&self.store), self.options);
        let (sender, renewals) = mpsc::channel(MAX_RENEWALS);
        self.lifecycle.0.start(|context| Contention { context, contender, store, options, renewals }.run())?;
        *self.renewals.lock() = Some(sender);
        Ok(())
    }
}

impl MutexContendService for ContendService {
    fn contender_id(&self) -> &str {
        self.contender.contender_id()
    }

    fn is_owner(&self) -> bool {
        self.lifecycle.0.is_owned()
    }

    fn is_in_ttl(&self) -> bool {
        self.is_owner() && self.lifecycle.0.state.borrow().is_in_ttl(self.contender_id())
    }

    fn renew(&self) -> BoxFuture<'static, Result<(), ContentionError>> {
        let renewals = self.renewals.lock().clone();
        let (mutex, contender_id) = (self.mutex().to_owned(), self.contender_id().to_owned());
        async move {
            let not_owner = || ContentionError::NotOwner { mutex, contender_id };
            let (sender, answer) = oneshot::channel();
            let Some(renewals) = renewals else { return Err(not_owner()) };
            if renewals.send(sender).await.is_err() {
                return Err(not_owner());
            }
            // The sender is dropped without a reply when the service stops.
            answer.await.unwrap_or_else(|_| Err(not_owner()))
        }
        .boxed()
    }
}
