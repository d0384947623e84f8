//! The task of a session: keeps the session alive, sends its messages, and finds another gateway when one fails.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{self as client, Message as Said};
use holdfast_proto::v1::server_message::{Message as Says, session_ended};
use http::uri::Authority;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::connection::{Connection, message};
use super::dispatch::{self, Dispatched};
use super::events::Event;
use super::inner::SessionInner;
use super::keep_alive::KeepAliveTimer;
use super::lease::SendTime;
use super::moving::{Move, MoveResult, wait_moved};
use crate::client::Client;
use crate::error::{EndReason, Error};
use crate::leader_hint::MovePlan;

/// Delay before a failed message is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Shortest and longest delay between rounds through the gateways.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A delay follows connections that lived for less than this; at most `MAX_BACKOFF_STEPS` delays.
const STABLE_AFTER: Duration = Duration::from_secs(5);
const MAX_BACKOFF_STEPS: u32 = 6;
/// Shortest and longest timeout of one gateway's attempt to resume the session.
const ATTEMPT_TIMEOUT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Timeout of closing the session at the service.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a gateway may take for an attempt to open a session that its client has given up: it waits for a leader for
/// some seconds, as often as it is redirected.
const MAX_OPENING_TIME: Duration = Duration::from_secs(30);

pub(super) struct SessionDriver {
    pub(super) inner: Arc<SessionInner>,
    pub(super) client: Client,
    /// Contains the session's id.
    pub(super) open: client::Open,
    pub(super) ttl: Duration,
    /// The configured gateway to use, or to use after the leader's.
    pub(super) gateway: usize,
    pub(super) in_jeopardy: bool,
    /// Until when abandoned gateways may still complete attempts to resume the session, each of which would supersede
    /// the current connection.
    pub(super) may_supersede_until: Option<Instant>,
    pub(super) move_plan: MovePlan,
    /// The move in progress. The current connection serves the session until it is done.
    pub(super) moving: Option<Move>,
}

/// How the service of one connection ends.
pub(super) enum ConnectionEnd {
    /// The session has ended.
    Session(EndReason),
    /// Only the connection has ended.
    Lost,
    /// The session goes on with this connection.
    Moved(Box<Connection>),
}

/// The next event on a connection.
enum ConnectionEvent {
    Close,
    LeaseExpired,
    Message(Box<v1::ServerMessage>),
    /// The connection has ended.
    Disconnected,
    Unresponsive,
    Moved(Box<MoveResult>),
    Writable,
    Retry,
    Wakeup,
}

impl SessionDriver {
    /// Runs until the session has ended.
    pub(super) async fn run(mut self, first: Connection, asked_at: SendTime) {
        // Callers are notified even if the runtime stops and drops this task.
        let last_word = TerminationGuard(Arc::clone(&self.inner));
        let mut connection = first;
        let mut due_at = asked_at.monotonic + self.ttl / 3;
        let mut short_lives = 0;
        let reason = loop {
            let began = Instant::now();
            match self.run_connection(&mut connection, due_at).await {
                ConnectionEnd::Session(EndReason::Closed) if self.inner.close.is_cancelled() => {
                    break self.close(Some(connection)).await;
                }
                ConnectionEnd::Session(reason) => {
                    if reason == EndReason::Unreachable {
                        // Its locks are of no more use to any caller.
                        tokio::spawn(timeout(CLOSE_TIMEOUT, request_close(connection)));
                    }
                    break reason;
                }
                ConnectionEnd::Moved(moved) => connection = *moved,
                ConnectionEnd::Lost => {
                    self.leave_gateway(&connection.gateway);
                    short_lives = if began.elapsed() < STABLE_AFTER { short_lives + 1 } else { 0 };
                    match self.resume(short_lives).await {
                        Ok(resumed) => connection = resumed,
                        Err(EndReason::Closed) => break self.close(None).await,
                        Err(reason) => break reason,
                    }
                }
            }
            due_at = Instant::now();
        };
        let reason = self.inner.end(reason);
        self.inner.events.push(Event::Ended(reason));
        drop(last_word);
    }

    /// Serves one connection until it ends, or the session moves to another one.
    async fn run_connection(&mut self, connection: &mut Connection, due_at: Instant) -> ConnectionEnd {
        let mut pulse = KeepAliveTimer::new(self.ttl, due_at);
        let mut repeat_at = None;
        self.plan_move(connection);
        loop {
            self.start_due_move();
            if self.inner.has_retries() {
                repeat_at.get_or_insert_with(|| Instant::now() + RETRY_DELAY);
            }
            match self.next_event(connection, &pulse, repeat_at).await {
                ConnectionEvent::Close => return ConnectionEnd::Session(EndReason::Closed),
                ConnectionEvent::LeaseExpired => return ConnectionEnd::Session(EndReason::Unreachable),
                ConnectionEvent::Unresponsive | ConnectionEvent::Disconnected => return ConnectionEnd::Lost,
                ConnectionEvent::Moved(result) => match self.finish_move(*result) {
                    Some(moved) => return ConnectionEnd::Moved(Box::new(moved)),
                    None => self.plan_move(connection),
                },
                ConnectionEvent::Message(message) => match message.message {
                    Some(Says::KeptAlive(_)) => {
                        let in_time = pulse.on_answer().is_none_or(|sent| self.inner.lease.extend(sent, self.ttl));
                        if !in_time {
                            return ConnectionEnd::Session(EndReason::Unreachable);
                        }
                        self.leave_jeopardy();
                    }
                    Some(says) => match dispatch::handle_message(&self.inner, says) {
                        Dispatched::Done => {}
                        Dispatched::KeepAliveFailed => pulse.on_failure(),
                        Dispatched::Ended(EndReason::Superseded) if self.moving.is_some() => {
                            return self.complete_move().await;
                        }
                        Dispatched::Ended(EndReason::Superseded) if self.may_be_superseded() => {
                            return ConnectionEnd::Lost;
                        }
                        Dispatched::Ended(reason) => return ConnectionEnd::Session(reason),
                    },
                    None => {}
                },
                ConnectionEvent::Writable => self.send_next(connection, &mut pulse),
                ConnectionEvent::Retry => {
                    repeat_at = None;
                    self.inner.update_table(|table| {
                        table.retry_all();
                        Vec::new()
                    });
                }
                ConnectionEvent::Wakeup => {}
            }
        }
    }

    async fn next_event(
        &mut self,
        connection: &mut Connection,
        pulse: &KeepAliveTimer,
        repeat_at: Option<Instant>,
    ) -> ConnectionEvent {
        let wants_to_say = pulse.is_due(Instant::now()) || self.inner.has_outgoing();
        tokio::select! {
            biased;
            () = self.inner.close.cancelled() => ConnectionEvent::Close,
            said = connection.inbound.message() => match said {
                Ok(Some(message)) => ConnectionEvent::Message(Box::new(message)),
                Ok(None) | Err(_) => ConnectionEvent::Disconnected,
            },
            _ = self.inner.lease.wait_ended() => ConnectionEvent::LeaseExpired,
            () = sleep_until(pulse.deadline()) => ConnectionEvent::Unresponsive,
            result = wait_moved(&mut self.moving) => ConnectionEvent::Moved(Box::new(result)),
            room = connection.outbound.reserve(), if wants_to_say => if room.is_ok() { ConnectionEvent::Writable } else { ConnectionEvent::Disconnected },
            () = maybe_sleep_until(pulse.due_at()), if !wants_to_say => ConnectionEvent::Wakeup,
            () = maybe_sleep_until(self.move_plan.due_at()) => ConnectionEvent::Wakeup,
            () = self.inner.wake.notified() => ConnectionEvent::Wakeup,
            () = maybe_sleep_until(repeat_at) => ConnectionEvent::Retry,
        }
    }

    /// Sends one message; the channel has capacity for it.
    fn send_next(&mut self, connection: &mut Connection, pulse: &mut KeepAliveTimer) {
        let now = self.inner.lease.send_time();
        let said = if pulse.is_due(now.monotonic) {
            pulse.on_sent(now);
            Some(Said::Keepalive(client::KeepAlive {}))
        } else {
            self.inner.next_message()
        };
        let Some(said) = said else { return };
        connection.seq += 1;
        // Only this task sends messages, and it has checked the capacity.
        connection.outbound.try_send(message(connection.seq, said)).ok();
    }

    fn leave_jeopardy(&mut self) {
        if std::mem::take(&mut self.in_jeopardy) {
            self.inner.events.push(Event::Safe);
        }
    }

    /// Notes that an abandoned attempt to resume the session may still be completed.
    pub(super) fn expect_late_opening(&mut self) {
        self.may_supersede_until = Some(Instant::now() + MAX_OPENING_TIME);
    }

    fn may_be_superseded(&self) -> bool {
        self.may_supersede_until.is_some_and(|until| Instant::now() < until)
    }

    /// Leaves a gateway whose connection has ended.
    fn leave_gateway(&mut self, gateway: &Authority) {
        self.gateway += 1;
        self.avoid_leader(gateway);
        // The service may complete the move nevertheless.
        if self.moving.take().is_some() {
            self.expect_late_opening();
        }
        if !self.in_jeopardy {
            self.in_jeopardy = true;
            self.inner.events.push(Event::Jeopardy(self.inner.lease.deadline().into_std()));
        }
    }

    /// Resumes the session at the first gateway that does so in time. `short_lives` counts preceding short-lived
    /// connections.
    async fn resume(&mut self, short_lives: u32) -> Result<Connection, EndReason> {
        let shared = Arc::clone(&self.inner);
        tokio::select! {
            biased;
            () = shared.close.cancelled() => Err(EndReason::Closed),
            _ = shared.lease.wait_ended() => Err(EndReason::Unreachable),
            resumed = self.resume_at_any_gateway(short_lives) => resumed,
        }
    }

    /// Ends the session at this gateway or another one. A session that can't be closed in time expires.
    async fn close(&mut self, connection: Option<Connection>) -> EndReason {
        self.moving = None;
        let by = self.inner.lease.deadline().min(Instant::now() + CLOSE_TIMEOUT);
        // From now on no caller relies on its holds, which other owners may get before the reply arrives.
        let reason = self.inner.lease.end(EndReason::Closed);
        let _ = timeout_at(by, self.close_at_any_gateway(connection)).await;
        reason
    }

    async fn close_at_any_gateway(&mut self, mut connection: Option<Connection>) {
        loop {
            let open = match connection.take() {
                Some(open) => open,
                None => match self.resume_at_any_gateway(0).await {
                    Ok(resumed) => resumed,
                    // The session has already ended, or this client is denied access.
                    Err(_) => return,
                },
            };
            if request_close(open).await {
                return;
            }
        }
    }

    async fn resume_at_any_gateway(&mut self, short_lives: u32) -> Result<Connection, EndReason> {
        let pauses = ExponentialBuilder::default().with_min_delay(BACKOFF.0).with_max_delay(BACKOFF.1);
        let mut pauses = pauses.without_max_times().with_jitter().build();
        let within = self.attempt_timeout();
        // A single broken connection is replaced at once; repeated failures are slowed down.
        for _ in 1..short_lives.min(MAX_BACKOFF_STEPS) {
            sleep(pauses.next().unwrap_or(BACKOFF.1)).await;
        }
        loop {
            for _ in 0..self.client.gateway_count() {
                let gateway = self.client.gateway(self.gateway);
                let attempt = Connection::open(&self.client, gateway, self.open.clone(), within).await;
                match attempt {
                    Ok((connection, ..)) => return Ok(self.send_lock_info(connection)),
                    Err(failed) => {
                        tracing::debug!(error = %failed.error, "the session could not be resumed there");
                        if failed.may_have_opened {
                            self.expect_late_opening();
                        }
                        if let Some(reason) = terminal_reason(failed.error) {
                            return Err(reason);
                        }
                    }
                }
                self.gateway += 1;
            }
            sleep(pauses.next().unwrap_or(BACKOFF.1)).await;
        }
    }

    /// Returns how long one gateway may take to resume the session.
    pub(super) fn attempt_timeout(&self) -> Duration {
        (self.ttl / 4).clamp(ATTEMPT_TIMEOUT.0, ATTEMPT_TIMEOUT.1)
    }

    /// Sends everything that the session has, first on a connection that resumed it.
    pub(super) fn send_lock_info(&self, mut connection: Connection) -> Connection {
        for part in self.inner.lock_info() {
            connection.seq += 1;
            // A new connection has capacity: the table's limit of bytes allows few parts.
            connection.outbound.try_send(message(connection.seq, Said::LockInfo(part))).ok();
        }
        connection
    }
}

/// Returns why a session that can't be resumed has ended, unless the error is transient.
fn terminal_reason(error: Error) -> Option<EndReason> {
    if error.is_transient() {
        return None;
    }
    Some(match error.code() {
        Some("SESSION_NOT_FOUND") => EndReason::Expired,
        Some("NAMESPACE_NOT_FOUND") => EndReason::NamespaceDeleted,
        _ => EndReason::Denied(error.to_string()),
    })
}

/// Requests the end of the session until the service confirms it. Returns true on confirmation.
async fn request_close(mut connection: Connection) -> bool {
    loop {
        connection.seq += 1;
        if connection.outbound.send(message(connection.seq, Said::Close(client::Close {}))).await.is_err() {
            return false;
        }
        loop {
            match connection.inbound.message().await.map(|said| said.map(|said| said.message)) {
                // A late attempt to resume the session, or to move it, superseded this connection: it is still open.
                Ok(Some(Some(Says::SessionEnded(ended)))) => {
                    return ended.reason() != session_ended::Reason::Superseded;
                }
                // The close may have failed.
                Ok(Some(Some(Says::Error(_)))) => break,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return false,
            }
        }
        sleep(RETRY_DELAY).await;
    }
}

async fn maybe_sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Notifies waiting callers that the session's task has ended.
struct TerminationGuard(Arc<SessionInner>);

impl Drop for TerminationGuard {
    fn drop(&mut self) {
        self.0.end(EndReason::Closed);
    }
}
