//! An ownership that ends for good: after its end the contender does not contend again by itself.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use tokio::runtime::Handle;

use crate::contender::MutexContender;
use crate::error::ContentionError;
use crate::owner::MutexOwner;
use crate::service::{MutexContendService, MutexContendServiceFactory};
use crate::state::MutexState;

/// A service that contends for one ownership per start.
pub(crate) struct OneShotContention {
    service: Arc<dyn MutexContendService>,
}

/// A contender whose service stops when it ceases to be the owner.
struct OneShotContender {
    contender: Arc<dyn MutexContender>,
    service: OnceLock<Weak<dyn MutexContendService>>,
}

impl OneShotContention {
    pub(crate) fn new(
        factory: &dyn MutexContendServiceFactory,
        contender: Arc<dyn MutexContender>,
    ) -> Result<Self, ContentionError> {
        let contender = Arc::new(OneShotContender { contender, service: OnceLock::new() });
        let service = factory.create_contend_service(Arc::clone(&contender) as Arc<dyn MutexContender>)?;
        contender.service.get_or_init(|| Arc::downgrade(&service));
        Ok(Self { service })
    }

    pub(crate) fn service(&self) -> &dyn MutexContendService {
        &*self.service
    }

    /// Starts the service; completes when its contender owns the mutex. A permanent error of the store ends the wait.
    pub(crate) async fn acquire(&self) -> Result<MutexOwner, ContentionError> {
        loop {
            self.service.start()?;
            tokio::select! {
                owned = wait_owned(&*self.service) => return owned,
                // The ownership was lost before it was observed.
                () = self.service.stopped() => {}
            }
        }
    }

    /// Returns true while this ownership continues, by the clock. An ownership that was lost and regained is a
    /// different one, even with the same token.
    pub(crate) fn is_owned(&self, ownership: &MutexOwner) -> bool {
        let present = self.service.after_owner();
        let is_same = present.fencing_token() == ownership.fencing_token()
            && present.acquired_at() == ownership.acquired_at()
            && present.is_owner(ownership.owner_id());
        is_same && self.service.is_owner()
    }

    /// Completes when this ownership has ended.
    pub(crate) async fn lost(&self, ownership: &MutexOwner) {
        let mut states = self.service.states();
        while self.is_owned(ownership) {
            let owner = states.borrow_and_update().after().clone();
            let ends_at = if owner.is_in_ttl() { owner.ttl_at() } else { owner.transition_at() };
            tokio::select! {
                // The sender lives as long as the service.
                _ = states.changed() => {}
                // If the end lies between the two instants, the task publishes it.
                () = ends_at.reached() => tokio::task::yield_now().await,
            }
        }
    }

    /// Releases the ownership, and completes when nothing is left.
    pub(crate) async fn end(&self) -> Result<(), ContentionError> {
        match self.service.stop().await {
            // The service has stopped, or is stopping.
            Err(ContentionError::WrongStatus { .. }) => {
                self.service.stopped().await;
                Ok(())
            }
            ended => ended,
        }
    }
}

async fn wait_owned(service: &dyn MutexContendService) -> Result<MutexOwner, ContentionError> {
    let (mut states, mut trouble) = (service.states(), service.last_error());
    loop {
        let owner = states.borrow_and_update().after().clone();
        if owner.is_owner(service.contender_id()) && service.is_owner() {
            return Ok(owner);
        }
        if let Some(error) = trouble.borrow_and_update().clone().filter(|error| !error.is_transient()) {
            return Err(error.into());
        }
        tokio::select! {
            // The senders live as long as the service.
            _ = states.changed() => {}
            _ = trouble.changed() => {}
        }
    }
}

impl MutexContender for OneShotContender {
    fn mutex(&self) -> &str {
        self.contender.mutex()
    }

    fn contender_id(&self) -> &str {
        self.contender.contender_id()
    }

    fn on_acquired(&self, state: &MutexState) {
        self.contender.on_acquired(state);
    }

    fn on_released(&self, state: &MutexState) {
        if let Some(service) = self.service.get().and_then(Weak::upgrade) {
            // It may already be stopping, which is then the cause of the release.
            Handle::current().spawn(service.stop());
        }
        self.contender.on_released(state);
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        self.contender.metadata()
    }
}
