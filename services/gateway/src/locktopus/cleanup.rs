//! Shortens the life of a session after the end of its connection.

use std::time::Duration;

use holdfast_api::{ApiResult, CreateSession};
use holdfast_backend::{CallContext, Service};
use holdfast_types::AccountId;
use tokio::time::{Instant, sleep};

const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to try before the session is left to its current time to live.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Resumes the session with the time to live of `session`, which starts again with it. No connection subscribes to it.
pub(super) async fn shorten_ttl(service: &Service, account: AccountId, session_id: &str, session: &CreateSession) {
    let give_up_at = Instant::now() + RETRY_TIMEOUT;
    while let Err(error) = resume(service, account, session_id, session).await {
        if !error.code.is_retryable() || Instant::now() >= give_up_at {
            // The session may have ended already, which is equally good.
            tracing::debug!(session = session_id, %error, "session time to live not shortened");
            return;
        }
        sleep(RETRY_DELAY).await;
    }
}

async fn resume(service: &Service, account: AccountId, session_id: &str, session: &CreateSession) -> ApiResult<()> {
    let context = CallContext::new("locktopus").with_timeout(ATTEMPT_TIMEOUT);
    let caller = service.authenticate_trusted(&account.to_string(), &context).await?;
    service.resume_session(&caller, &context, session, session_id).await
}
