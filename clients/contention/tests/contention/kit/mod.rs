//! What the contract needs: a place where owners are kept, a contender that notes what it is told, and stores that
//! fail.

mod log;
mod stores;

use std::sync::Arc;
use std::time::Duration;

use holdfast_contention::{
    ContendOptions, ContentionFactory, InProcessStore, MutexContendService, MutexContendServiceFactory, MutexStore,
    Pacing, ServiceStore, Timestamp,
};
pub(crate) use log::{Log, OwnerChange, Recorder};
pub(crate) use stores::{Failing, Failure, Gated, Recording};

use crate::support::{NAMESPACE, client, eventually, unique_name};

/// Where owners are kept, and how they are contended for.
#[derive(Clone)]
pub(crate) struct Backend {
    pub(crate) store: Arc<dyn MutexStore>,
    pub(crate) options: ContendOptions,
    pub(crate) ttl: Duration,
    pub(crate) transition: Duration,
    pub(crate) pacing: Pacing,
}

/// Where time passes only when nothing is to do.
const PAUSED_TIME_TTL: Duration = Duration::from_millis(1_500);
/// Long enough for a renewal while a disk stalls, or the process is not run for a while.
const REAL_TIME_TTL: Duration = Duration::from_secs(4);

impl Backend {
    pub(crate) fn in_process(pacing: Pacing) -> Self {
        Self::new(Arc::new(InProcessStore::default()), pacing, PAUSED_TIME_TTL)
    }

    /// The same for tests in which time passes by itself.
    pub(crate) fn in_process_in_real_time(pacing: Pacing) -> Self {
        Self::new(Arc::new(InProcessStore::default()), pacing, REAL_TIME_TTL)
    }

    pub(crate) fn service(pacing: Pacing) -> Self {
        Self::new(Arc::new(ServiceStore::new(&client(), NAMESPACE)), pacing, REAL_TIME_TTL)
    }

    /// The transition lasts as long as the time to live.
    fn new(store: Arc<dyn MutexStore>, pacing: Pacing, ttl: Duration) -> Self {
        let options = ContendOptions::new(ttl).transition(ttl).pacing(pacing);
        Self { store, options, ttl, transition: ttl, pacing }
    }

    /// The same with another store in between.
    pub(crate) fn with_store(&self, store: Arc<dyn MutexStore>) -> Self {
        Self { store, ..self.clone() }
    }

    pub(crate) fn factory(&self) -> ContentionFactory {
        ContentionFactory::new(Arc::clone(&self.store), self.options).unwrap()
    }

    pub(crate) fn contend(&self, contender: Recorder) -> Arc<dyn MutexContendService> {
        self.factory().create_contend_service(Arc::new(contender)).unwrap()
    }

    /// Waits until the mutex has an owner, or has none, by the store. A service may hear of a call that was given up
    /// after the release that followed it, and ends it then: long before its time is over.
    pub(crate) async fn eventually_owned(&self, mutex: &str, is_owned: bool) {
        let began = Timestamp::now();
        let what = format!("{mutex} {} an owner", if is_owned { "has" } else { "is without" });
        eventually(&what, async || self.owner(mutex).await.is_some() == is_owned).await;
        assert!(Timestamp::now().since(began) < self.ttl, "{what}, and it did not have to run out");
    }

    /// Who owns the mutex, by the store.
    pub(crate) async fn owner(&self, mutex: &str) -> Option<String> {
        self.store.holding(mutex).await.unwrap().map(|holding| holding.owner_id)
    }
}

/// A mutex and contenders that no other test knows.
pub(crate) fn mutex() -> String {
    unique_name("mutex")
}

/// Makes tests of each function: for owners of this process, where time passes as fast as it can, and for those of a
/// running service; with contenders that are told and with those that ask. What is built on services that contend need
/// not be shown with every one of them.
macro_rules! on_every_backend {
    (@real $($name:ident),* $(,)?) => {
        $crate::kit::on_every_backend!(
            @backend real_in_process, in_process_in_real_time, Push, (flavor = "current_thread"), $($name)*
        );
        $crate::kit::on_every_backend!(@backend real_service, service, Push, (flavor = "current_thread"), $($name)*);
        $crate::kit::on_every_backend!(@backend real_polled, service, Poll, (flavor = "current_thread"), $($name)*);
    };
    (@pushed $($name:ident),* $(,)?) => {
        $crate::kit::on_every_backend!(@backend in_process_pushed, in_process, Push, (start_paused = true), $($name)*);
        $crate::kit::on_every_backend!(@backend service_pushed, service, Push, (flavor = "current_thread"), $($name)*);
    };
    (@in_process $($name:ident),* $(,)?) => {
        $crate::kit::on_every_backend!(@backend alone_pushed, in_process, Push, (start_paused = true), $($name)*);
        $crate::kit::on_every_backend!(@backend alone_polled, in_process, Poll, (start_paused = true), $($name)*);
    };
    (@without_polled_service $($name:ident),* $(,)?) => {
        $crate::kit::on_every_backend!(@backend in_process, in_process, Push, (start_paused = true), $($name)*);
        $crate::kit::on_every_backend!(@backend in_process_polled, in_process, Poll, (start_paused = true), $($name)*);
        $crate::kit::on_every_backend!(@backend service, service, Push, (flavor = "current_thread"), $($name)*);
    };
    (@backend $module:ident, $make:ident, $pacing:ident, $how:tt, $($name:ident)*) => {
        mod $module {
            $(
                $crate::kit::on_every_backend!(@test $make, $pacing, $how, $name);
            )*
        }
    };
    (@test $make:ident, $pacing:ident, $how:tt, $name:ident) => {
        #[tokio::test $how]
        async fn $name() {
            let pacing = holdfast_contention::Pacing::$pacing;
            super::$name($crate::kit::Backend::$make(pacing)).await;
        }
    };
    ($($name:ident),* $(,)?) => {
        $crate::kit::on_every_backend!(@without_polled_service $($name),*);
        $crate::kit::on_every_backend!(@backend service_polled, service, Poll, (flavor = "current_thread"), $($name)*);
    };
}
pub(crate) use on_every_backend;
