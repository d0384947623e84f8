//! Re-checks the access of a caller with something open: a wait, a stream, or the connection of a session. No other
//! module does so.

use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, Code, Timestamp};
use holdfast_types::AccountId;
use tokio::time::{Instant, sleep_until};

use crate::directory::ChangeListener;
use crate::{AuthContext, Service};

/// Time between checks without a notification. Changes of the key and the account are notified at once. This interval
/// covers credentials that expire and gateways that no longer receive notifications.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before the next check after an inconclusive one.
const CHECK_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum time of one check; most find everything in memory.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a wait or a stream continues while its caller's access cannot be verified.
const MAX_UNVERIFIED_TIME: Duration = Duration::from_secs(5);

/// Watches the access of an authenticated caller.
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
        // The first check is due immediately, because changes between authentication and subscription were missed.
        Self { service, auth, account_changes, key_changes, check_at: Instant::now() }
    }

    /// Returns when a check is due. A dropped future loses no notification.
    pub(crate) async fn next_check(&mut self) {
        tokio::select! {
            () = changed(&mut self.account_changes) => {}
            () = changed(&mut self.key_changes) => {}
            () = sleep_until(self.check_at) => {}
        }
        self.check_at = Instant::now() + self.time_to_expiry().min(CHECK_INTERVAL);
    }

    /// Returns the caller in its current state.
    pub(crate) fn check(&self) -> impl Future<Output = ApiResult<AuthContext>> + Send + use<> {
        let (service, caller) = (self.service.clone(), self.auth.clone());
        async move { service.revalidate(&caller, Instant::now() + CHECK_TIMEOUT).await }
    }

    /// Schedules the next check soon, after an inconclusive one.
    pub(crate) fn retry_soon(&mut self) {
        self.check_at = Instant::now() + CHECK_RETRY_DELAY;
    }

    /// Returns when the caller loses access: the key is revoked or expired, or the account is suspended or deleted.
    /// Also returns when access could not be verified for too long.
    pub(crate) async fn wait_revoked(mut self) -> ApiError {
        let clocks = self.service.inner.clocks.clone();
        let mut doubted_since = None;
        loop {
            self.next_check().await;
            // Boxed, because it is soon over, and waits and streams have the rest for minutes.
            match Box::pin(self.check()).await {
                Ok(_) => doubted_since = None,
                Err(error) if is_final(&error) => return error,
                Err(error) => {
                    let since = *doubted_since.get_or_insert_with(|| clocks.now());
                    if clocks.age_of(since).is_none_or(|age| age >= MAX_UNVERIFIED_TIME) {
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

/// Returns whether a failed check proves that the caller has no access, and not only that nothing could be verified.
pub(crate) fn is_final(error: &ApiError) -> bool {
    matches!(error.code, Code::Unauthenticated | Code::PermissionDenied | Code::AccountNotFound)
}

async fn changed<K: std::hash::Hash + Eq>(bell: &mut Option<ChangeListener<K>>) {
    match bell {
        Some(bell) => bell.changed().await,
        None => std::future::pending().await,
    }
}
