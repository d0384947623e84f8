//! The credential of a connection, which may be revoked while the connection lives.

use std::sync::Arc;
use std::time::Duration;

use holdfast_auth::Secret;
use holdfast_core::Scopes;

use crate::error::{ApiError, ApiResult, Code};
use crate::service::{CallContext, Caller, Service};

/// How often the credential is looked at: changes are heard of every 250 ms, and have to be felt within a second.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long one look may take; most find everything in memory.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// What a connection was let in with.
#[derive(Clone, Debug)]
pub(crate) enum Credential {
    /// What followed `Bearer `.
    Bearer(Secret),
    /// The id of an account that the process was told to trust.
    Account(String),
}

/// A credential, and what it has to be good for.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    service: Service,
    credential: Arc<Credential>,
}

impl Pass {
    pub(super) fn new(service: Service, credential: Credential) -> Self {
        Self { service, credential: Arc::new(credential) }
    }

    /// The caller as it now is, when it may make locks in the namespace.
    pub(super) async fn look(self, namespace: String) -> ApiResult<Caller> {
        let context = CallContext::new("session connection").with_timeout(LOOK_WITHIN);
        let caller = match &*self.credential {
            Credential::Bearer(bearer) => self.service.authenticate(Some(bearer.expose()), &context).await?,
            Credential::Account(id) => self.service.trust_account(id, &context).await?,
        };
        caller.require(Scopes::LOCKS_WRITE)?.check_namespace("namespace", &namespace)?;
        Ok(caller)
    }
}

/// Whether a look that failed says that the credential is not good, and not only that nobody can tell.
pub(super) fn is_definite(error: &ApiError) -> bool {
    matches!(error.code, Code::Unauthenticated | Code::PermissionDenied | Code::AccountNotFound)
}
