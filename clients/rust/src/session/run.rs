//! The task of a session: it keeps the session alive, says what there is to say, and finds another gateway when one is
//! gone.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{self as client, Message as Said};
use holdfast_proto::v1::server_message::Message as Says;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::connection::{Connection, message};
use super::dispatch::{self, Dispatched};
use super::events::Event;
use super::inner::SessionInner;
use super::keep_alive::KeepAliveTimer;
use crate::client::Client;
use crate::error::{EndReason, Error};

/// After something was not done, it is said again.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Shortest and longest pause between rounds through the gateways.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Pauses after connections that lived for less than that, and at most so many of them.
const STABLE_AFTER: Duration = Duration::from_secs(5);
const MAX_BACKOFF_STEPS: u32 = 6;
/// Shortest and longest time that one gateway is given to resume the session.
const ATTEMPT_TIMEOUT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How long the service may take to close the session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct SessionDriver {
    pub(super) inner: Arc<SessionInner>,
    pub(super) client: Client,
    /// With the session's id.
    pub(super) open: client::Open,
    pub(super) ttl: Duration,
    /// The gateway that serves now.
    pub(super) gateway: usize,
    pub(super) in_jeopardy: bool,
    /// An attempt to resume the session may still be done by a gateway that was given up. It then supersedes whatever
    /// connection is there.
    pub(super) may_supersede: bool,
}

/// What happens next on a connection.
enum ConnectionEvent {
    Close,
    LeaseExpired,
    Message(Box<v1::ServerMessage>),
    /// The connection has ended.
    Disconnected,
    Unresponsive,
    Writable,
    Retry,
    Wakeup,
}

impl SessionDriver {
    /// Runs until the session is over.
    pub(super) async fn run(mut self, first: Connection, asked_at: Instant) {
        // Also when the runtime stops and drops this task, callers are told.
        let last_word = TerminationGuard(Arc::clone(&self.inner));
        let mut connection = first;
        let mut due_at = asked_at + self.ttl / 3;
        let mut short_lives = 0;
        let reason = loop {
            let began = Instant::now();
            match self.run_connection(&mut connection, due_at).await {
                Some(EndReason::Closed) if self.inner.close.is_cancelled() => {
                    break self.close(Some(connection)).await;
                }
                Some(reason) => {
                    if reason == EndReason::Unreachable {
                        // What it holds is of no use to anybody any more.
                        tokio::spawn(timeout(CLOSE_TIMEOUT, request_close(connection)));
                    }
                    break reason;
                }
                None => {}
            }
            self.gateway += 1;
            short_lives = if began.elapsed() < STABLE_AFTER { short_lives + 1 } else { 0 };
            if !self.in_jeopardy {
                self.in_jeopardy = true;
                self.inner.events.push(Event::Jeopardy(self.inner.lease.deadline().into_std()));
            }
            match self.resume(short_lives).await {
                Ok(resumed) => connection = resumed,
                Err(EndReason::Closed) => break self.close(None).await,
                Err(reason) => break reason,
            }
            due_at = Instant::now();
        };
        let reason = self.inner.end(reason);
        self.inner.events.push(Event::Ended(reason));
        drop(last_word);
    }

    /// Lives on one connection. Returns why the session is over, or nothing when only the connection is.
    async fn run_connection(&mut self, connection: &mut Connection, due_at: Instant) -> Option<EndReason> {
        let mut pulse = KeepAliveTimer::new(self.ttl, due_at);
        let mut repeat_at = None;
        loop {
            if self.inner.has_retries() {
                repeat_at.get_or_insert_with(|| Instant::now() + RETRY_DELAY);
            }
            match self.next_event(connection, &pulse, repeat_at).await {
                ConnectionEvent::Close => return Some(EndReason::Closed),
                ConnectionEvent::LeaseExpired => return Some(EndReason::Unreachable),
                ConnectionEvent::Unresponsive | ConnectionEvent::Disconnected => return None,
                ConnectionEvent::Message(message) => match message.message {
                    Some(Says::KeptAlive(_)) => {
                        let in_time = pulse.on_answer().is_none_or(|sent| self.inner.lease.extend(sent, self.ttl));
                        if !in_time {
                            return Some(EndReason::Unreachable);
                        }
                        self.leave_jeopardy();
                    }
                    Some(says) => match dispatch::handle_message(&self.inner, says) {
                        Dispatched::Done => {}
                        Dispatched::KeepAliveFailed => pulse.on_failure(),
                        Dispatched::Ended(EndReason::Superseded) if std::mem::take(&mut self.may_supersede) => {
                            return None;
                        }
                        Dispatched::Ended(reason) => return Some(reason),
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
        &self,
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
            room = connection.outbound.reserve(), if wants_to_say => if room.is_ok() { ConnectionEvent::Writable } else { ConnectionEvent::Disconnected },
            () = maybe_sleep_until(pulse.due_at()), if !wants_to_say => ConnectionEvent::Wakeup,
            () = self.inner.wake.notified() => ConnectionEvent::Wakeup,
            () = maybe_sleep_until(repeat_at) => ConnectionEvent::Retry,
        }
    }

    /// There is room for one message.
    fn send_next(&mut self, connection: &mut Connection, pulse: &mut KeepAliveTimer) {
        let now = Instant::now();
        let said = if pulse.is_due(now) {
            pulse.on_sent(now);
            Some(Said::Keepalive(client::KeepAlive {}))
        } else {
            self.inner.next_message()
        };
        let Some(said) = said else { return };
        connection.seq += 1;
        // This task alone puts messages in, and saw that there is room.
        connection.outbound.try_send(message(connection.seq, said)).ok();
    }

    fn leave_jeopardy(&mut self) {
        if std::mem::take(&mut self.in_jeopardy) {
            self.inner.events.push(Event::Safe);
        }
    }

    /// Resumes the session at the first gateway that does it in time. So many connections before lived for a moment
    /// only.
    async fn resume(&mut self, short_lives: u32) -> Result<Connection, EndReason> {
        let shared = Arc::clone(&self.inner);
        tokio::select! {
            biased;
            () = shared.close.cancelled() => Err(EndReason::Closed),
            _ = shared.lease.wait_ended() => Err(EndReason::Unreachable),
            resumed = self.resume_at_any_gateway(short_lives) => resumed,
        }
    }

    /// Ends the session at this gateway or another one. A session that could not be closed in time ends by itself.
    async fn close(&mut self, connection: Option<Connection>) -> EndReason {
        let by = self.inner.lease.deadline().min(Instant::now() + CLOSE_TIMEOUT);
        // From now on nobody here counts on what it holds, which another one may have before the answer comes.
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
                    // It is over already, or this client is not let in any more.
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
        let within = (self.ttl / 4).clamp(ATTEMPT_TIMEOUT.0, ATTEMPT_TIMEOUT.1);
        // One that breaks is replaced at once; where it happens again and again nothing is gained by haste.
        for _ in 1..short_lives.min(MAX_BACKOFF_STEPS) {
            sleep(pauses.next().unwrap_or(BACKOFF.1)).await;
        }
        loop {
            for _ in 0..self.client.gateway_count() {
                let attempt = Connection::open(&self.client, self.gateway, self.open.clone(), within).await;
                match attempt {
                    Ok((mut connection, ..)) => {
                        connection.seq += 1;
                        let info = Said::LockInfo(self.inner.lock_info());
                        // A new connection has room.
                        connection.outbound.try_send(message(connection.seq, info)).ok();
                        return Ok(connection);
                    }
                    Err(failed) => {
                        tracing::debug!(error = %failed.error, "the session could not be resumed there");
                        self.may_supersede |= failed.may_have_opened;
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
}

/// Why a session that cannot be resumed is over, unless that may pass.
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

/// Asks to end the session until the service says that it has. Whether it did.
async fn request_close(mut connection: Connection) -> bool {
    loop {
        connection.seq += 1;
        if connection.outbound.send(message(connection.seq, Said::Close(client::Close {}))).await.is_err() {
            return false;
        }
        loop {
            match connection.inbound.message().await.map(|said| said.map(|said| said.message)) {
                Ok(Some(Some(Says::SessionEnded(_)))) => return true,
                // It may be that this was not done.
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

/// Tells those who wait that nobody serves the session any more.
struct TerminationGuard(Arc<SessionInner>);

impl Drop for TerminationGuard {
    fn drop(&mut self) {
        self.0.end(EndReason::Closed);
    }
}
