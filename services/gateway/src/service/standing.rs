//! A caller with something open: a wait, a stream, the connection of a session. The one place that looks whether it
//! would still be let in.

use std::time::Duration;

use holdfast_core::AccountId;
use tokio::time::{Instant, sleep_until};

use super::{Caller, Service, Timestamp};
use crate::directory::Bell;
use crate::error::{ApiError, ApiResult, Code};

/// How often it is looked at when nothing is heard of it. Changes of its key and its account are heard of at once; this
/// is for credentials that expire, and for gateways that hear of nothing any more.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How soon it is looked at again when nobody could say.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How long one look may take; most find everything in memory.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// How long a wait or a stream goes on when nobody can say whether its caller is still let in.
const DOUBT_FOR: Duration = Duration::from_secs(5);

/// A caller who was let in.
pub(crate) struct Standing {
    service: Service,
    caller: Caller,
    account: Option<Bell<AccountId>>,
    key: Option<Bell<String>>,
    look_at: Instant,
}

impl Standing {
    pub(crate) fn new(service: Service, caller: Caller) -> Self {
        let directory = &service.inner.directory;
        let principal = caller.principal().account();
        let account = principal.map(|principal| directory.account_bell(principal.account));
        let key = principal.filter(|principal| !principal.key_id.is_empty());
        let key = key.map(|principal| directory.key_bell(&principal.key_id));
        // At once: what changed between letting it in and listening was not heard.
        Self { service, caller, account, key, look_at: Instant::now() }
    }

    /// Ends when it has to be looked at. A wait that is given up loses nothing.
    pub(crate) async fn due(&mut self) {
        tokio::select! {
            () = rung(&mut self.account) => {}
            () = rung(&mut self.key) => {}
            () = sleep_until(self.look_at) => {}
        }
        self.look_at = Instant::now() + self.until_the_end().min(LOOK_EVERY);
    }

    /// The caller as it now is.
    pub(crate) fn look(&self) -> impl Future<Output = ApiResult<Caller>> + Send + use<> {
        let (service, caller) = (self.service.clone(), self.caller.clone());
        async move { service.look_again(&caller, Instant::now() + LOOK_WITHIN).await }
    }

    /// Nobody could say: it is looked at again soon.
    pub(crate) fn doubt(&mut self) {
        self.look_at = Instant::now() + LOOK_AGAIN_AFTER;
    }

    /// Ends when the caller is no longer let in: the key revoked or expired, the account suspended or gone; or when
    /// nobody could say so for too long.
    pub(crate) async fn refused(mut self) -> ApiError {
        let mut doubted_since = None;
        loop {
            self.due().await;
            match self.look().await {
                Ok(_) => doubted_since = None,
                Err(error) if is_definite(&error) => return error,
                Err(error) => {
                    if doubted_since.get_or_insert_with(Instant::now).elapsed() >= DOUBT_FOR {
                        return error;
                    }
                    self.doubt();
                }
            }
        }
    }

    fn until_the_end(&self) -> Duration {
        let end = self.caller.principal().account().and_then(|principal| principal.expires_at_ms);
        end.map_or(Duration::MAX, |end| Duration::from_millis(end.saturating_sub(Timestamp::now().0)))
    }
}

/// Whether a look that failed says that the caller is not let in, and not only that nobody can tell.
pub(crate) fn is_definite(error: &ApiError) -> bool {
    matches!(error.code, Code::Unauthenticated | Code::PermissionDenied | Code::AccountNotFound)
}

async fn rung<K: std::hash::Hash + Eq>(bell: &mut Option<Bell<K>>) {
    match bell {
        Some(bell) => bell.rung().await,
        None => std::future::pending().await,
    }
}
