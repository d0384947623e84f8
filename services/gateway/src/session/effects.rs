//! What the leader tells of a session, as the client is told.

use holdfast_core::{AcquireOutcome, Effect, LockView, Refusal, SessionEnd, WaitId};
use holdfast_routing::Notice;

use super::channel::Ending;
use super::follow::Heard;
use super::ledger::Standing;
use super::live::Live;
use super::message::{EndReason, ServerMessage};
use crate::service::Timestamp;
use crate::service::show::Shown;

impl Live<'_> {
    pub(super) async fn heard(&mut self, heard: Heard) -> Result<(), Ending> {
        match heard {
            Heard::Began => {
                self.ask_what_changed();
                Ok(())
            }
            Heard::Notice(notice) if self.is_early(&notice.effect) => {
                self.early.push(*notice);
                Ok(())
            }
            Heard::Notice(notice) => self.noticed(*notice).await,
            // Nobody is left to say how it ended.
            Heard::Refused(Refusal::SessionNotFound(_)) => self.end(EndReason::Ended(SessionEnd::Expired)).await,
            Heard::Refused(refusal) => self.lost_by(refusal).await,
            Heard::GaveUp(error) => Err(Ending::Failed(error)),
        }
    }

    /// Whether it is about what the command under way asks for: the answer to that is told first.
    fn is_early(&self, effect: &Effect) -> bool {
        let Some(running) = &self.running else { return false };
        match effect {
            Effect::Settled { request_id: Some(request_id), .. } => running.asks_for(request_id),
            Effect::Revoked { path, fencing_token, .. } => {
                running.brings_holds() && !self.ledger.holds(path, *fencing_token)
            }
            _ => false,
        }
    }

    pub(super) async fn noticed(&mut self, notice: Notice) -> Result<(), Ending> {
        let Notice { clock_ms, effect } = notice;
        match effect {
            Effect::Settled { request_id: Some(request_id), wait, outcome, locks, .. } => {
                self.settled(request_id, wait, outcome, &locks, clock_ms).await
            }
            Effect::Revoked { path, fencing_token, reason, current_owner, .. } => {
                self.ledger.lost(&path, fencing_token);
                let namespace = self.place.namespace.name.clone();
                let shown = Shown::new(&namespace, clock_ms, Timestamp::now());
                let current_owner = current_owner.map(|holder| shown.holder(holder));
                self.tell(ServerMessage::Revoked { path: path.0, reason, current_owner }).await
            }
            Effect::SessionOpened { epoch, .. } if epoch > self.place.epoch => self.end(EndReason::Superseded).await,
            Effect::SessionEnded { reason, .. } => self.end(EndReason::Ended(reason)).await,
            Effect::NamespaceClosed { .. } => self.end(EndReason::Ended(SessionEnd::NamespaceDeleted)).await,
            Effect::Settled { .. } | Effect::SessionOpened { .. } | Effect::Events { .. } => Ok(()),
        }
    }

    /// A wait is over. Only that of a request as it now stands counts: an earlier one of the same name was released.
    async fn settled(
        &mut self,
        request_id: String,
        wait: WaitId,
        outcome: AcquireOutcome,
        locks: &[LockView],
        clock_ms: u64,
    ) -> Result<(), Ending> {
        if self.ledger.standing(&request_id) != Some(Standing::Waits(wait)) {
            return Ok(());
        }
        match outcome {
            AcquireOutcome::Granted { fencing_token } => {
                if let Some(lock) = self.ledger.waiting(&request_id) {
                    self.ledger.granted(&lock, fencing_token, locks);
                }
                self.tell(ServerMessage::Acquired { request_id, fencing_token }).await
            }
            // The client ends it, and is told that.
            AcquireOutcome::Refused(_) if self.running.as_ref().is_some_and(|it| it.ends(&request_id)) => Ok(()),
            AcquireOutcome::Refused(refusal) => {
                self.ledger.forget(&request_id);
                self.tell_refused(request_id, *refusal, clock_ms).await
            }
            AcquireOutcome::Enqueued(_) => Ok(()),
        }
    }
}
