//! Requests that wait while the lock table of their namespace is not complete in its leader's memory: they have no
//! place in its queue yet, and are sent again, in order, until they have one.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_api::ApiResult;
use holdfast_api::session_message::{Lock, ServerMessage};
use holdfast_types::{CommandError, MAX_TABLE_REQUESTS};

use super::channel::CloseReason;
use super::client_command::ClientCommand;
use super::commands::{MAX_BATCH_CLAIMS, MAX_BATCH_COMMANDS};
use super::connection::SessionConnection;
use super::message_bytes::lock_bytes;
use super::unanswered::unknown_outcome;
use crate::admission::{DeferredCall, Share};

impl SessionConnection<'_> {
    /// Returns whether a request of the client waits if the leader's table is not complete. So does a request that a
    /// resumed client listed: if it was granted before, the reply to its next copy says so.
    pub(super) fn may_be_unqueued(&self, lock: &Lock, tries: u8) -> bool {
        let request_id = lock.request_id.as_str();
        let is_elsewhere = || self.permits.state(request_id).is_some() || self.arrivals.get(request_id).is_some();
        let is_for_table = self.session.table_epoch.is_some() && !lock.only_try && tries == 0;
        is_for_table && self.requests.state(request_id).is_none() && !is_elsewhere()
    }

    /// Lets a request wait that the leader can't decide yet, if the session may have one more.
    pub(super) async fn wait_for_table(&mut self, lock: &Arc<Lock>) -> Result<(), CloseReason> {
        let counted = match self.count_unqueued(lock) {
            Ok(counted) => counted,
            Err(refused) => {
                let job = ClientCommand::Lock(Arc::clone(lock));
                // A refusal would say that it has nothing.
                let error = if self.may_be_done(&job, 0) { unknown_outcome() } else { refused };
                return self.on_command_failed(&job, error).await;
            }
        };
        let ticket = self.shown.take_position(&lock.request_id);
        self.requests.unqueued(lock, ticket, counted);
        self.has_unqueued = true;
        let (request_id, blockers, holders) = (lock.request_id.clone(), Vec::new(), Vec::new());
        self.send(ServerMessage::Enqueued {
            request_id,
            queue_position: None,
            blockers,
            holders,
            woken: None,
            place: None,
        })
        .await
    }

    /// Lets the requests wait whose places a resumed client has shown, and which no leader has answered: their places
    /// are reported to the next one. Those for which there is no room stay in the queue.
    pub(super) fn unqueue_listed(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        let mut shown = BTreeMap::new();
        let places = queue.extract(|command| {
            let ClientCommand::Lock(lock) = command else { return false };
            let id = &lock.request_id;
            // What follows under the same id only asks about it.
            if shown.contains_key(id) || !self.shown.has_position(id) || !self.may_be_unqueued(lock, 0) {
                return false;
            }
            let Ok(counted) = self.count_unqueued(lock) else { return false };
            shown.insert(id.clone(), counted);
            true
        });
        self.queue = queue;
        for command in &places {
            let ClientCommand::Lock(lock) = command else { continue };
            let ticket = self.shown.take_position(&lock.request_id);
            let counted = shown.remove(&lock.request_id).flatten();
            self.requests.unqueued(lock, ticket, counted);
            self.has_unqueued = true;
        }
    }

    /// Forgets the places of requests that the client has given up since, of which no leader has heard.
    pub(super) fn remove_released_positions(&mut self) {
        for command in self.queue.iter() {
            match command {
                ClientCommand::Release(release) => {
                    self.shown.take_position(&release.request_id);
                }
                ClientCommand::ReleaseAll | ClientCommand::Close => self.shown.clear_positions(),
                _ => {}
            }
        }
    }

    /// Counts a request that waits without a place, if there is room for it. Its account is charged for no state of it
    /// until its leader knows it, so it is held like a call until then. For one whose place was shown the account was
    /// charged before: it must not lose its place to another one.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED` at the limits of the session, `RATE_LIMITED` at that of the account.
    pub(super) fn count_unqueued(&self, lock: &Lock) -> ApiResult<Option<DeferredCall>> {
        self.check_capacity(lock)?;
        if self.shown.has_position(&lock.request_id) {
            return Ok(None);
        }
        // Whoever has lost access hears of it elsewhere.
        let Ok(tenant) = self.tenant() else { return Ok(None) };
        let deferred_calls = &self.session.service.inner.deferred_calls;
        deferred_calls.acquire(Share::from(tenant.account), lock_bytes(lock)).map(Some)
    }

    /// Checks the limit of the leader, which does not know of these requests, and that they can be reported.
    fn check_capacity(&self, lock: &Lock) -> Result<(), CommandError> {
        let of_account = self.tenant().map_or(u64::MAX, |tenant| tenant.limits().max_requests_per_session);
        let max = of_account.min(MAX_TABLE_REQUESTS);
        if self.requests.len() as u64 >= max && self.requests.state(&lock.request_id).is_none() {
            return Err(CommandError::too_many_requests(max));
        }
        self.requests.check_bytes(lock)
    }

    /// Sends the first of them again, which the leader answers once its table is complete, or after a while.
    pub(super) async fn start_unqueued(&mut self) -> Result<(), CloseReason> {
        // Nobody waits for them any more once the client is gone.
        if !self.has_unqueued || self.is_client_gone() {
            return Ok(());
        }
        let first = self.requests.first_unqueued(MAX_BATCH_COMMANDS);
        self.has_unqueued = !first.is_empty();
        let (mut jobs, mut claims) = (Vec::with_capacity(first.len()), 0);
        for request_id in first {
            claims += self.requests.lock(&request_id).map_or(0, |lock| lock.resources.len());
            if claims > MAX_BATCH_CLAIMS && !jobs.is_empty() {
                break;
            }
            jobs.push(ClientCommand::Requery(request_id));
        }
        self.start(jobs, 0).await
    }
}
