//! Converts the leader's updates of a session into messages for the client.

use holdfast_api::Timestamp;
use holdfast_api::session_message::{EndReason, ServerMessage};
use holdfast_routing::SessionUpdate;
use holdfast_types::{AcquireOutcome, CommandError, Effect, LockView, SessionEnd, WaitId};

use super::channel::CloseReason;
use super::connection::SessionConnection;
use super::request_table::RequestState;
use super::subscription::SubscriptionEvent;
use crate::view_builder::ViewBuilder;

impl SessionConnection<'_> {
    pub(super) async fn on_subscription_event(&mut self, heard: SubscriptionEvent) -> Result<(), CloseReason> {
        match heard {
            SubscriptionEvent::Started => {
                self.queue_reconciliation();
                Ok(())
            }
            SubscriptionEvent::Update(notice) if self.must_follow_reply(&notice.effect) => {
                self.deferred_updates.push(*notice);
                Ok(())
            }
            SubscriptionEvent::Update(notice) => self.on_update(*notice).await,
            // No node is left that knows how it ended.
            SubscriptionEvent::Rejected(CommandError::SessionNotFound(_)) => {
                self.end_with(EndReason::Ended(SessionEnd::Expired)).await
            }
            SubscriptionEvent::Rejected(refusal) => self.on_session_rejected(refusal).await,
            SubscriptionEvent::Failed(error) => Err(CloseReason::Failed(error)),
        }
    }

    /// Returns whether the update concerns the request of the command in flight: its reply comes first.
    fn must_follow_reply(&self, effect: &Effect) -> bool {
        let Some(running) = &self.in_flight else { return false };
        match effect {
            Effect::WaitResolved { request_id: Some(request_id), .. } => running.acquires(request_id),
            Effect::Revoked { path, fencing_token, .. } => {
                running.may_add_holds() && !self.requests.holds(path, *fencing_token)
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
                self.requests.remove_hold(&path, fencing_token);
                let namespace = self.session.namespace.name.clone();
                let shown = ViewBuilder::new(&namespace, clock_ms, Timestamp::now());
                let current_owner = current_owner.map(|holder| shown.holder(holder));
                self.send(ServerMessage::Revoked { path: path.0, reason, current_owner }).await
            }
            Effect::SessionOpened { epoch, .. } if epoch > self.session.epoch => {
                self.end_with(EndReason::Superseded).await
            }
            Effect::SessionEnded { reason, .. } => self.end_with(EndReason::Ended(reason)).await,
            Effect::NamespaceClosed { .. } => self.end_with(EndReason::Ended(SessionEnd::NamespaceDeleted)).await,
            Effect::WaitResolved { .. } | Effect::SessionOpened { .. } | Effect::Events { .. } => Ok(()),
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
        match outcome {
            AcquireOutcome::Granted { fencing_token } => {
                if let Some(lock) = self.requests.waiting(&request_id) {
                    self.requests.granted(&lock, fencing_token, locks);
                }
                self.send(ServerMessage::Acquired { request_id, fencing_token }).await
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
