//! Moves a session to the gateway at its leader. The connection to the present gateway serves the session until the new
//! one has resumed it, which supersedes the old one as after a failure: no hold and no request is lost.

use std::sync::Arc;

use futures::future::{BoxFuture, pending};
use http::uri::Authority;
use tokio::time::Instant;

use super::connection::{Connection, OpenFailure};
use super::run::{ConnectionEnd, SessionDriver};
use crate::error::EndReason;

/// An attempt to resume the session at the gateway with this address.
pub(super) type Move = BoxFuture<'static, MoveResult>;
pub(super) type MoveResult = (Authority, Result<Connection, OpenFailure>);

/// Waits for the end of the move in progress; forever if there is none.
pub(super) async fn wait_moved(moving: &mut Option<Move>) -> MoveResult {
    let Some(attempt) = moving else { return pending().await };
    let result = attempt.await;
    *moving = None;
    result
}

impl SessionDriver {
    /// Plans a move from this connection, if the service reported another gateway as the leader's.
    pub(super) fn plan_move(&mut self, connection: &Connection) {
        let reported = self.client.leaders().zip(connection.leader.as_ref());
        let leader = reported.map(|(leaders, address)| {
            leaders.learn(&self.open.namespace, address.as_str());
            (address.clone(), leaders.usable_at(address))
        });
        self.move_plan.set_target(leader, &connection.gateway);
    }

    /// Starts the planned move, if it is due.
    pub(super) fn start_due_move(&mut self) {
        let Some(address) = self.move_plan.start_if_due(Instant::now()) else { return };
        let Some(gateway) = self.client.leaders().and_then(|leaders| leaders.gateway(&address)) else { return };
        let (client, open, within) = (self.client.clone(), self.open.clone(), self.attempt_timeout());
        self.moving = Some(Box::pin(async move {
            let opened = Connection::open(&client, &gateway, open, within).await;
            (address, opened.map(|(connection, ..)| connection))
        }));
    }

    /// Returns the connection to the leader's gateway, or `None` if the session stays where it is.
    pub(super) fn finish_move(&mut self, (address, moved): MoveResult) -> Option<Connection> {
        match moved {
            Ok(connection) => Some(self.send_lock_info(connection)),
            Err(failed) => {
                tracing::debug!(%address, error = %failed.error, "the session could not move there");
                if failed.may_have_opened {
                    self.expect_late_opening();
                }
                self.avoid_leader(&address);
                None
            }
        }
    }

    /// Waits for the end of a move after the old connection was superseded: by the move, as a rule.
    pub(super) async fn complete_move(&mut self) -> ConnectionEnd {
        let shared = Arc::clone(&self.inner);
        let result = tokio::select! {
            biased;
            () = shared.close.cancelled() => return ConnectionEnd::Session(EndReason::Closed),
            _ = shared.lease.wait_ended() => return ConnectionEnd::Session(EndReason::Unreachable),
            result = wait_moved(&mut self.moving) => result,
        };
        match self.finish_move(result) {
            Some(moved) => ConnectionEnd::Moved(Box::new(moved)),
            None => ConnectionEnd::Lost,
        }
    }

    /// Does not move to this address for a while.
    pub(super) fn avoid_leader(&self, address: &Authority) {
        if let Some(leaders) = self.client.leaders() {
            leaders.avoid(address);
        }
    }
}
