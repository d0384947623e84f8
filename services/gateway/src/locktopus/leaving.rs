//! What becomes of the session when its connection is over.

use std::time::Duration;

use holdfast_core::{Metadata, Scopes};
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Client, Connection};
use crate::error::ApiResult;
use crate::service::{CallContext, CreateSession};
use crate::session::ClientSays;

/// How long ending a session may take before it is left to its time to live.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// How long to try to shorten the life of a session before it is left to the time to live that it has.
const TRY_FOR: Duration = Duration::from_secs(10);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A session whose client is gone.
pub(super) struct Leaving<'a> {
    pub(super) connection: &'a Connection,
    pub(super) process_id: String,
    pub(super) session_id: String,
}

impl Leaving<'_> {
    /// Ends the session when nothing is left in it to wait for, else gives it its abandon timeout from now on.
    pub(super) async fn leave(self, mut client: Client, wants_its_lock: bool) {
        if !wants_its_lock || self.connection.abandon_ms == 0 {
            let closing = async {
                client.say(ClientSays::Close).await;
                client.until_ended().await;
            };
            if timeout(CLOSE_WITHIN, closing).await.is_ok() {
                return;
            }
            tracing::debug!(session = self.session_id, "a session could not be closed; it ends by itself");
            return;
        }
        drop(client);
        let give_up_at = Instant::now() + TRY_FOR;
        while let Err(error) = self.shorten().await {
            if !error.code.is_retryable() || Instant::now() >= give_up_at {
                // It may be gone already, which is as good.
                tracing::debug!(session = self.session_id, %error, "a session keeps its longer time to live");
                return;
            }
            sleep(TRY_AGAIN_AFTER).await;
        }
    }

    /// Resumes the session with the abandon timeout as its time to live, which begins anew with it. Nobody follows.
    async fn shorten(&self) -> ApiResult<()> {
        let context = CallContext::new("locktopus").with_timeout(CLOSE_WITHIN);
        let service = &self.connection.service;
        let caller = service.trust_account(&self.connection.account.to_string(), &context).await?;
        let request = CreateSession {
            namespace: self.connection.namespace.clone(),
            process_id: self.process_id.clone(),
            ttl_ms: self.connection.abandon_ms,
            metadata: Metadata::new(),
        };
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        service.open_session(tenant, &context, &request, Some(&self.session_id)).await.map(drop)
    }
}
