//! Converts the leader's updates of a session into messages for the client.

use holdfast_api::Timestamp;
use holdfast_api::session_message::{EndReason, ServerMessage};
use holdfast_api::{ApiError, Code};
use holdfast_routing::{SubscriptionError, Update};
use holdfast_types::{AcquireOutcome, CommandError, Effect, LockView, SessionEnd, SessionUpdate, WaitId};

use super::awaits::AwaitOutcome;
use super::channel::CloseReason;
use super::client_command::InFlightBatch;
use super::connection::SessionConnection;
use super::path_holds::Hold;
use super::request_table::RequestState;
use crate::view_builder::ViewBuilder;

impl SessionConnection<'_> {
    pub(super) async fn on_subscription_update(&mut self, update: Update<SessionUpdate>) -> Result<(), CloseReason> {
        if update.items.is_empty() {
            // A leader that begins to send updates: earlier ones may be missing.
            self.queue_reconciliation();
            // Holds in the list that is being compared are queried once it is known.
            self.missed_updates = self.in_flight.as_ref().is_some_and(InFlightBatch::lists_holds);
        }
        for notice in update.items {
            if self.must_follow_reply(&notice.effect) {
                self.deferred_updates.push(notice);
            } else {
                self.on_update(notice).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn on_subscription_error(&mut self, error: SubscriptionError) -> Result<(), CloseReason> {
        match error {
            // No node is left that knows how it ended.
            SubscriptionError::Rejected(CommandError::SessionNotFound(_)) => {
                self.end_with(EndReason::Ended(SessionEnd::Expired)).await
            }
            SubscriptionError::Rejected(CommandError::Unreported { table_epoch }) => {
                self.on_unreported(table_epoch).await
            }
            SubscriptionError::Rejected(rejected) => self.on_session_rejected(rejected).await,
            SubscriptionError::Unreachable(error) => {
                let detail = format!("the session cannot be followed any more: {error}");
                Err(CloseReason::Failed(ApiError::new(Code::Unavailable, detail)))
            }
        }
    }

    /// Returns whether the update concerns the request of the command in flight: its reply comes first.
    fn must_follow_reply(&self, effect: &Effect) -> bool {
        let Some(running) = &self.in_flight else { return false };
        match effect {
            Effect::WaitResolved { request_id: Some(request_id), .. } => running.acquires(request_id),
            Effect::PermitsResolved { request_id, .. } => running.acquires(request_id),
            Effect::MetAtBarrier { request_id, .. } => running.acquires(request_id) || running.leaves(request_id),
            Effect::AwaitWoken { request_id: Some(request_id), .. }
            | Effect::AwaitResolved { request_id: Some(request_id), .. } => running.acquires(request_id),
            Effect::PermitsRevoked { hold, .. } => {
                running.may_add_holds() && self.permits.hold(&hold.request_id).as_ref() != Some(hold)
            }
            Effect::Revoked { path, fencing_token, .. } => {
                running.asks_for(path) || (running.may_add_holds() && !self.requests.holds(path, *fencing_token))
            }
            _ => false,
        }
    }

    pub(super) async fn on_update(&mut self, notice: SessionUpdate) -> Result<(), CloseReason> {
        let SessionUpdate { clock_ms, effect } = notice;
        match effect {
            Effect::WaitResolved { request_id: Some(request_id), wait, outcome, locks, .. } => {
                self.on_wait_resolved(request_id, wait, outcome, &locks, clock_ms).await
            }
            Effect::Revoked { path, fencing_token, reason, current_owner, .. } => {
                let holder = self.requests.remove_hold(&path, fencing_token).and_then(Hold::into_holder);
                let namespace = self.session.namespace.name.clone();
                let shown = ViewBuilder::new(&namespace, clock_ms, Timestamp::now());
                let current_owner = current_owner.map(|holder| Box::new(shown.holder(holder)));
                let path = path.0;
                self.send(ServerMessage::Revoked { path, reason, current_owner, holder, fencing_token }).await
            }
            Effect::PermitsResolved { request_id, wait, outcome, members, .. } => {
                self.on_permits_resolved(request_id, wait, (outcome, members), clock_ms).await
            }
            Effect::AwaitWoken { request_id: Some(request_id), from, wait, woken, not_granted, .. } => {
                self.on_await_woken(request_id, (from, wait), (woken, not_granted), clock_ms).await
            }
            Effect::AwaitResolved { request_id: Some(request_id), wait, owner, outcome, woken, lock, .. } => {
                let reply = AwaitOutcome { outcome, woken, locks: vec![*lock] };
                self.on_await_resolved(request_id, (wait, owner), reply, clock_ms).await
            }
            Effect::PermitsRevoked { hold, reason, .. } => self.on_permits_lost(hold, reason).await,
            Effect::ReleaseRequested { asked, .. } => self.on_ask(asked).await,
            Effect::MetAtBarrier { request_id, answer, inside, .. } => self.on_met(request_id, answer, inside).await,
            Effect::SessionOpened { epoch, .. } if epoch > self.session.epoch => {
                self.end_with(EndReason::Superseded).await
            }
            Effect::SessionEnded { reason, .. } => self.end_with(EndReason::Ended(reason)).await,
            Effect::NamespaceClosed { .. } => self.end_with(EndReason::Ended(SessionEnd::NamespaceDeleted)).await,
            Effect::WaitResolved { .. }
            | Effect::AwaitWoken { .. }
            | Effect::AwaitResolved { .. }
            | Effect::SessionOpened { .. }
            | Effect::Events { .. }
            | Effect::LatchSettled { .. }
            | Effect::BarrierSettled { .. } => Ok(()),
        }
    }

    /// Handles the end of a wait. Only the wait of the current request counts: an earlier one of the same name was
    /// released.
    async fn on_wait_resolved(
        &mut self,
        request_id: String,
        wait: WaitId,
        outcome: AcquireOutcome,
        locks: &[LockView],
        clock_ms: u64,
    ) -> Result<(), CloseReason> {
        if self.requests.state(&request_id) != Some(RequestState::Waiting(wait)) {
            return Ok(());
        }
        self.unanswered.remove(&request_id);
        match outcome {
            // Nothing of an earlier epoch counts, and what the client gave up is not its own, whoever granted it.
            AcquireOutcome::Granted { fencing_token }
                if fencing_token < self.promised
                    || (self.session.table_epoch.is_some() && self.requests.is_released(&request_id)) =>
            {
                Ok(())
            }
            AcquireOutcome::Granted { fencing_token } => {
                if let Some(lock) = self.requests.waiting(&request_id) {
                    self.requests.granted(&lock, fencing_token, locks);
                }
                let (members, woken) = (Vec::new(), None);
                self.send(ServerMessage::Acquired { request_id, fencing_token, members, woken, receipt: None }).await
            }
            // The client ends it, and is notified of that instead.
            AcquireOutcome::Refused(_) if self.in_flight.as_ref().is_some_and(|it| it.ends(&request_id)) => Ok(()),
            AcquireOutcome::Refused(refusal) => {
                self.requests.remove(&request_id);
                self.send_refused(request_id, *refusal, clock_ms).await
            }
            AcquireOutcome::Enqueued(_) => Ok(()),
        }
    }
}
