//! Cleans up the session after the end of its connection.

use std::time::Duration;

use holdfast_api::session_message::ClientPayload;
use holdfast_api::{ApiResult, CreateSession};
use holdfast_backend::CallContext;
use holdfast_core::Metadata;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Connection, SessionClient};

/// How long ending a session may take before it is left to its time to live.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to try to shorten the life of a session before it is left to its current time to live.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// A session whose client disconnected.
pub(super) struct SessionCleanup<'a> {
    pub(super) connection: &'a Connection,
    pub(super) process_id: String,
    pub(super) session_id: String,
}

impl SessionCleanup<'_> {
    /// Ends the session if its client neither holds nor requested the lock, or has no abandon timeout. Otherwise sets
    /// its time to live to the abandon timeout from now on.
    pub(super) async fn run(self, mut client: SessionClient, wants_its_lock: bool) {
        if !wants_its_lock || self.connection.abandon_ms == 0 {
            let closing = async {
                client.send(ClientPayload::Close).await;
                client.wait_closed().await;
            };
            if timeout(CLOSE_TIMEOUT, closing).await.is_ok() {
                return;
            }
            tracing::debug!(session = self.session_id, "a session could not be closed; it ends by itself");
            return;
        }
        drop(client);
        let give_up_at = Instant::now() + RETRY_TIMEOUT;
        while let Err(error) = self.shorten_ttl().await {
            if !error.code.is_retryable() || Instant::now() >= give_up_at {
                // The session may have ended already, which is equally good.
                tracing::debug!(session = self.session_id, %error, "a session keeps its longer time to live");
                return;
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Resumes the session with the abandon timeout as its time to live, which starts again with it. No connection
    /// subscribes to it.
    async fn shorten_ttl(&self) -> ApiResult<()> {
        let context = CallContext::new("locktopus").with_timeout(CLOSE_TIMEOUT);
        let service = &self.connection.service;
        let caller = service.authenticate_trusted(&self.connection.account.to_string(), &context).await?;
        let request = CreateSession {
            namespace: self.connection.namespace.clone(),
            process_id: self.process_id.clone(),
            ttl_ms: self.connection.abandon_ms,
            metadata: Metadata::new(),
        };
        service.resume_session(&caller, &context, &request, &self.session_id).await
    }
}
