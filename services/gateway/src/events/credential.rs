//! The credential of a stream, which may be revoked while the stream lives.

use std::time::Duration;

use holdfast_auth::Secret;
use holdfast_core::Scopes;
use tokio::time::{Instant, sleep};

use crate::error::{ApiError, ApiResult};
use crate::service::{CallContext, Service};

/// How often it is looked at: accounts and keys are in memory, and changes of them are heard of within a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long one look may take.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// How long a stream goes on when nobody can say whether its credential is good.
const DOUBT_FOR: Duration = Duration::from_secs(5);

/// A credential that was good when the stream began.
#[derive(Debug)]
pub(crate) struct StandingCredential {
    service: Service,
    bearer: Option<Secret>,
    namespace: Option<String>,
    scope: Scopes,
}

impl StandingCredential {
    /// `bearer` was accepted for this namespace (when one is given) and scope.
    pub(crate) fn new(service: Service, bearer: Option<&str>, namespace: Option<String>, scope: Scopes) -> Self {
        Self { service, bearer: bearer.map(Secret::new), namespace, scope }
    }

    /// Ends when the credential is no longer accepted: revoked, expired, the account suspended or gone.
    pub(crate) async fn refused(&self) -> ApiError {
        let mut doubted_since = None;
        loop {
            sleep(LOOK_EVERY).await;
            match self.look().await {
                Ok(()) => doubted_since = None,
                Err(error) if !error.code.is_retryable() => return error,
                Err(error) => {
                    if doubted_since.get_or_insert_with(Instant::now).elapsed() >= DOUBT_FOR {
                        return error;
                    }
                }
            }
        }
    }

    async fn look(&self) -> ApiResult<()> {
        let context = CallContext::new("standing credential").with_timeout(LOOK_WITHIN);
        let caller = self.service.authenticate(self.bearer.as_ref().map(Secret::expose), &context).await?;
        let tenant = caller.require(self.scope)?;
        self.namespace.as_ref().map_or(Ok(()), |namespace| tenant.check_namespace("namespace", namespace))
    }
}
