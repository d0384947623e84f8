//! What a session of locks in memory is told, and what its client makes of it.

use holdfast_api::session_message::{EndReason, ServerMessage};
use holdfast_core::{FencingToken, Path, Receipt, RevokedReason};
use tokio::time::sleep;

use super::{RETRY_DELAY, RequestState, SoftSession, time};
use crate::ask_calls::ObservedAsk;
use crate::soft_claims::Grant;
use crate::told_log::What;

impl SoftSession {
    fn is_ending(&self, request_id: &str) -> bool {
        self.requests.get(request_id).is_some_and(|request| request.state == RequestState::Ends)
    }

    pub(super) async fn on_message(&mut self, message: ServerMessage) {
        match message {
            ServerMessage::Acquired { request_id, fencing_token, receipt, .. } => {
                self.take(&request_id, fencing_token, receipt);
            }
            ServerMessage::Enqueued { request_id, place: Some(place), .. } => {
                if let Some(request) = self.requests.get_mut(&request_id) {
                    request.place = Some(place);
                }
            }
            ServerMessage::Refused { request_id, .. } => {
                if self.holds(&request_id) {
                    self.violated(&format!("{request_id} holds its locks and is refused"));
                }
                self.requests.remove(&request_id);
            }
            ServerMessage::Ready { request_id: Some(request_id) } if self.is_ending(&request_id) => {
                self.requests.remove(&request_id);
            }
            // It is in transition: others wait for the end of that.
            ServerMessage::Revoked { reason: RevokedReason::Expired, .. } => {}
            ServerMessage::Revoked { path, fencing_token, reason, .. } => {
                if reason == RevokedReason::Deleted {
                    self.was_told(&path, fencing_token, What::Deleted);
                }
                self.lose(Path(path), fencing_token, reason);
            }
            ServerMessage::ReleaseRequested { path, fencing_token, reason, within_ms, force, .. } => {
                let asked = ObservedAsk { reason, within_ms, force };
                self.hear_of_ask(&Path(path), fencing_token, &asked);
            }
            ServerMessage::KeptAlive { .. } => {
                let sent = self.link.as_mut().and_then(|link| link.keep_alives.pop_front());
                if let Some(((session_id, _), sent)) = self.opened.as_ref().zip(sent) {
                    self.world.claims.lives(session_id, sent, self.terms.ttl, self.terms.transition);
                }
            }
            ServerMessage::SessionEnded { reason } => {
                self.record(&format!("is told that its session ended, {reason:?}"));
                // An opening that was given up may take the session from the connection that came after it.
                if reason != EndReason::Superseded {
                    self.expect_over(&format!("its session ended, {reason:?}"));
                }
                self.forget();
            }
            ServerMessage::Error { error, request_id } => {
                self.expect_code(error.code, &format!("{request_id:?}: {error:?}"));
                // What became of it is not known.
                if let Some(request_id) = request_id {
                    sleep(RETRY_DELAY).await;
                    self.release(&request_id).await;
                }
            }
            _ => {}
        }
    }

    /// Takes a grant, unless the client counts on its session no more, or has given the request up.
    fn take(&mut self, request_id: &str, token: FencingToken, receipt: Option<Receipt>) {
        if !self.check_life() {
            return;
        }
        let Some((session, _)) = &self.opened else { return };
        let Some(request) = self.requests.get_mut(request_id) else { return };
        match request.state {
            RequestState::Ends => {}
            RequestState::Holds(known) if known == token => {}
            RequestState::Holds(known) => {
                self.violated(&format!("{request_id} has the token {known} and is told {token}"));
            }
            RequestState::Waits => {
                request.state = RequestState::Holds(token);
                request.granted = receipt.map(|receipt| request.shown(request_id, token, receipt));
                let grant = Grant { session, request_id, claims: &request.claims, token, asked_at: request.asked_at };
                let found = self.world.claims.take(&grant, time());
                self.world.record(format!("{} of {session} takes {:?} with {token}", self.process, request.claims));
                found.into_iter().for_each(|what| self.world.record_violation(what));
            }
        }
    }

    fn lose(&mut self, path: Path, token: FencingToken, reason: RevokedReason) {
        self.record(&format!("is told that it lost {path:?} with {token}, {reason:?}"));
        for request in self.requests.values_mut().filter(|request| request.state == RequestState::Holds(token)) {
            request.claims.retain(|claim| claim.path != path);
        }
        self.requests.retain(|_, request| !request.claims.is_empty());
        let Some((session, _)) = &self.opened else { return };
        let found = self.world.claims.lose(session, &path, token, time());
        found.into_iter().for_each(|what| self.world.record_violation(what));
    }

    /// A session does not end while its client counts on it.
    pub(super) fn expect_over(&self, what: &str) {
        let counts = |(session_id, _): &(String, _)| self.world.claims.counts(session_id, time());
        if self.opened.as_ref().is_some_and(counts) {
            self.violated(&format!("{what}, and its client counts on it"));
        }
    }
}
