//! Requests that wait while the lock table of their namespace is not complete in its leader's memory: they have no place
//! in its queue yet, and are sent again, in order, until they have one.

use std::sync::Arc;

use holdfast_api::ApiError;
use holdfast_api::session_message::{Lock, ServerMessage};
use holdfast_types::{CommandError, MAX_TABLE_REQUESTS};

use super::channel::CloseReason;
use super::client_command::ClientCommand;
use super::commands::{MAX_BATCH_CLAIMS, MAX_BATCH_COMMANDS};
use super::connection::SessionConnection;
use super::replies::unknown_outcome;

impl SessionConnection<'_> {
    /// Returns whether a request of the client waits if the leader's table is not complete. So does one that a resumed
    /// client listed: if it was granted before, the reply to its next copy says so.
    pub(super) fn may_be_unplaced(&self, lock: &Lock, tries: u8) -> bool {
        let request_id = lock.request_id.as_str();
        let is_elsewhere = || self.permits.state(request_id).is_some() || self.arrivals.get(request_id).is_some();
        let is_for_table = self.session.table_epoch.is_some() && !lock.only_try && tries == 0;
        is_for_table && self.requests.state(request_id).is_none() && !is_elsewhere()
    }

    /// Lets a request wait that the leader can't decide yet, if the session may have one more.
    pub(super) async fn wait_for_table(&mut self, lock: &Arc<Lock>) -> Result<(), CloseReason> {
        if let Err(refused) = self.check_request_count(&lock.request_id) {
            let job = ClientCommand::Lock(Arc::clone(lock));
            // A refusal would say that it has nothing.
            let error = if self.may_be_granted(&job, 0) { unknown_outcome() } else { ApiError::from(refused) };
            return self.on_command_failed(&job, error).await;
        }
        let ticket = self.shown.take_place(&lock.request_id);
        self.requests.unplaced_with(lock, ticket);
        self.has_unplaced = true;
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
    /// are reported to the next one. They had places before, so they are no more than the session may have.
    pub(super) fn place_shown(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        let is_shown = |command: &ClientCommand| match command {
            ClientCommand::Lock(lock) => self.shown.has_place(&lock.request_id) && self.may_be_unplaced(lock, 0),
            _ => false,
        };
        let shown = queue.extract(is_shown);
        self.queue = queue;
        for command in &shown {
            if let ClientCommand::Lock(lock) = command
                && let Some(ticket) = self.shown.take_place(&lock.request_id)
            {
                self.requests.unplaced_with(lock, Some(ticket));
                self.has_unplaced = true;
            }
        }
    }

    /// Checks the limit of the leader, which does not know of these requests: nothing else bounds them.
    pub(super) fn check_request_count(&self, request_id: &str) -> Result<(), CommandError> {
        let of_account = self.tenant().map_or(u64::MAX, |tenant| tenant.limits().max_requests_per_session);
        let max = of_account.min(MAX_TABLE_REQUESTS);
        if (self.requests.len() as u64) < max || self.requests.state(request_id).is_some() {
            return Ok(());
        }
        Err(CommandError::too_many_requests(max))
    }

    /// Sends the first of them again, which the leader answers once its table is complete, or after a while.
    pub(super) async fn start_unplaced(&mut self) -> Result<(), CloseReason> {
        // Nobody waits for them any more once the client is gone.
        if !self.has_unplaced || self.is_client_gone() {
            return Ok(());
        }
        let first = self.requests.first_unplaced(MAX_BATCH_COMMANDS);
        self.has_unplaced = !first.is_empty();
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
