//! Keep-alives of a session, independent of its commands.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_api::ApiResult;
use holdfast_api::session_message::ServerMessage;
use holdfast_clock::BootInstant;
use holdfast_types::{CommandError, Revision};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::channel::CloseReason;
use super::connection::SessionConnection;
use super::handle::{KeepAliveReply, SessionHandle};
use super::life::SessionLife;

/// Keep-alives per time to live of the session, when the gateway sends them.
const KEEP_ALIVES_PER_TTL: u32 = 3;
const MIN_KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(10);

/// Sends one keep-alive at a time. Requests that arrive meanwhile share the next one: every request is answered by a
/// keep-alive that was sent after it arrived.
pub(super) struct KeepAliveScheduler {
    session: Arc<SessionHandle>,
    reply: Option<BoxFuture<'static, ApiResult<KeepAliveReply>>>,
    /// What the keep-alives extend, if the gateway sends them on its own.
    life: Option<SessionLife>,
    /// When the running keep-alive was sent, if that is needed.
    sent: Option<BootInstant>,
    /// Requests that the running keep-alive answers.
    in_flight: usize,
    /// Requests for the next one.
    queued: usize,
    interval: Option<Interval>,
    /// The epoch of the leader that got the report of the session while the running keep-alive was under way.
    reported: Option<Revision>,
}

impl KeepAliveScheduler {
    /// With a life, the gateway sends keep-alives on its own, and counts it.
    pub(super) fn new(session: Arc<SessionHandle>, life: Option<SessionLife>) -> Self {
        let interval = life.is_some().then(|| {
            let beat = (Duration::from_millis(session.ttl_ms) / KEEP_ALIVES_PER_TTL).max(MIN_KEEP_ALIVE_INTERVAL);
            let mut interval = interval_at(Instant::now() + beat, beat);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        Self { session, reply: None, life, sent: None, in_flight: 0, queued: 0, interval, reported: None }
    }

    /// The client requests a keep-alive.
    pub(super) fn request(&mut self) {
        self.queued += 1;
    }

    /// The leader of an epoch has the report of the session. A keep-alive that is under way may have come before it.
    /// What the gateway sends on its own goes on at once: the last one may have been refused.
    pub(super) fn record_report(&mut self, table_epoch: Revision) {
        self.reported = self.reply.as_ref().map(|_| table_epoch);
        if let Some(interval) = &mut self.interval {
            interval.reset_immediately();
        }
    }

    /// Returns the outcome of the next keep-alive, and how many requests it answers. A keep-alive that arrived before
    /// the report that the leader asks for is sent again, once. Cancel-safe.
    pub(super) async fn next(&mut self) -> (usize, ApiResult<KeepAliveReply>) {
        loop {
            if let Some(running) = &mut self.reply {
                let outcome = running.await;
                self.reply = None;
                if is_overtaken(self.reported.take(), &outcome) {
                    self.start();
                    continue;
                }
                self.extend_life(&outcome);
                return (std::mem::take(&mut self.in_flight), outcome);
            }
            if self.queued == 0 {
                match &mut self.interval {
                    Some(beats) => drop(beats.tick().await),
                    None => pending().await,
                }
            }
            self.start();
        }
    }

    /// Sends a keep-alive for all requests that have no answer.
    fn start(&mut self) {
        self.in_flight += std::mem::take(&mut self.queued);
        // It is sent later than this, so it counts for no longer than the service promises.
        self.sent = self.life.as_ref().map(SessionLife::now);
        self.reply = Some(Arc::clone(&self.session).keep_alive().boxed());
    }

    fn extend_life(&self, outcome: &ApiResult<KeepAliveReply>) {
        if let (Some(life), Some(sent), Ok(Ok(remaining_ms))) = (&self.life, self.sent, outcome) {
            life.extend(sent, Duration::from_millis(*remaining_ms));
        }
    }
}

/// Returns whether a keep-alive asks for a report that its leader got meanwhile.
fn is_overtaken(reported: Option<Revision>, outcome: &ApiResult<KeepAliveReply>) -> bool {
    match outcome {
        Ok(Err(CommandError::Unreported { table_epoch })) => reported.is_some_and(|reported| *table_epoch <= reported),
        _ => false,
    }
}

impl SessionConnection<'_> {
    /// Handles the outcome of a keep-alive that answers this many requests.
    pub(super) async fn on_keep_alive_reply(
        &mut self,
        owed: usize,
        reply: ApiResult<KeepAliveReply>,
    ) -> Result<(), CloseReason> {
        let error = match reply {
            Ok(Ok(remaining_ms)) => {
                for _ in 0..owed {
                    self.send(ServerMessage::KeptAlive { remaining_ms }).await?;
                }
                return Ok(());
            }
            Ok(Err(CommandError::Unreported { table_epoch })) => {
                self.owed_keep_alives += owed;
                return self.on_unreported(table_epoch).await;
            }
            Ok(Err(refusal)) => return self.on_session_rejected(refusal).await,
            Err(error) => error,
        };
        for _ in 0..owed {
            self.send(ServerMessage::Error { error: error.clone(), request_id: None }).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_before_the_report_is_overtaken() {
        let asks_for = |table_epoch| Ok(Err(CommandError::Unreported { table_epoch }));
        assert!(is_overtaken(Some(7), &asks_for(7)) && is_overtaken(Some(7), &asks_for(6)));
        assert!(!is_overtaken(Some(7), &asks_for(8)), "another leader has begun");
        assert!(!is_overtaken(None, &asks_for(7)), "it was sent after the report");
        assert!(!is_overtaken(Some(7), &Ok(Ok(10))));
    }
}
