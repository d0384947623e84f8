//! A caller with something open: a wait, a stream, the connection of a session. The one place that looks whether it
//! would still be let in.

use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, Code, Timestamp};
use holdfast_core::AccountId;
use tokio::time::{Instant, sleep_until};

use crate::directory::ChangeListener;
use crate::{AuthContext, Service};

/// How often it is looked at when nothing is heard of it. Changes of its key and its account are heard of at once; this
/// is for credentials that expire, and for gateways that hear of nothing any more.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How soon it is looked at again when nobody could say.
const CHECK_RETRY_DELAY: Duration = Duration::from_millis(500);
/// How long one look may take; most find everything in memory.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a wait or a stream goes on when nobody can say whether its caller is still let in.
const MAX_UNVERIFIED_TIME: Duration = Duration::from_secs(5);

/// A caller who was let in.
pub(crate) struct AccessWatch {
    service: Service,
    auth: AuthContext,
    account_changes: Option<ChangeListener<AccountId>>,
    key_changes: Option<ChangeListener<String>>,
    check_at: Instant,
}

impl AccessWatch {
    pub(crate) fn new(service: Service, auth: AuthContext) -> Self {
        let directory = &service.inner.directory;
        let principal = auth.principal().account();
        let account_changes = principal.map(|principal| directory.subscribe_account(principal.account));
        let key_changes = principal.filter(|principal| !principal.key_id.is_empty());
        let key_changes = key_changes.map(|principal| directory.subscribe_key(&principal.key_id));
        // At once: what changed between letting it in and listening was not heard.
        Self { service, auth, account_changes, key_changes, check_at: Instant::now() }
    }

    /// Ends when it has to be looked at. A wait that is given up loses nothing.
    pub(crate) async fn next_check(&mut self) {
        tokio::select! {
            () = changed(&mut self.account_changes) => {}
            () = changed(&mut self.key_changes) => {}
            () = sleep_until(self.check_at) => {}
        }
        self.check_at = Instant::now() + self.time_to_expiry().min(CHECK_INTERVAL);
    }

    /// The caller as it now is.
    pub(crate) fn check(&self) -> impl Future<Output = ApiResult<AuthContext>> + Send + use<> {
        let (service, caller) = (self.service.clone(), self.auth.clone());
        async move { service.revalidate(&caller, Instant::now() + CHECK_TIMEOUT).await }
    }

    /// Nobody could say: it is looked at again soon.
    pub(crate) fn retry_soon(&mut self) {
        self.check_at = Instant::now() + CHECK_RETRY_DELAY;
    }

    /// Ends when the caller is no longer let in: the key revoked or expired, the account suspended or gone; or when
    /// nobody could say so for too long.
    pub(crate) async fn wait_revoked(mut self) -> ApiError {
        let mut doubted_since = None;
        loop {
            self.next_check().await;
            match self.check().await {
                Ok(_) => doubted_since = None,
                Err(error) if is_final(&error) => return error,
                Err(error) => {
                    if doubted_since.get_or_insert_with(Instant::now).elapsed() >= MAX_UNVERIFIED_TIME {
                        return error;
                    }
                    self.retry_soon();
                }
            }
        }
    }

    fn time_to_expiry(&self) -> Duration {
        let end = self.auth.principal().account().and_then(|principal| principal.expires_at_ms);
        end.map_or(Duration::MAX, |end| Duration::from_millis(end.saturating_sub(Timestamp::now().0)))
    }
}

/// Whether a look that failed says that the caller is not let in, and not only that nobody can tell.
pub(crate) fn is_final(error: &ApiError) -> bool {
    matches!(error.code, Code::Unauthenticated | Code::PermissionDenied | Code::AccountNotFound)
}

async fn changed<K: std::hash::Hash + Eq>(bell: &mut Option<ChangeListener<K>>) {
    match bell {
        Some(bell) => bell.changed().await,
        None => std::future::pending().await,
    }
}
