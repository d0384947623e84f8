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
use super::events::Event;
use super::hear::{self, Heard};
use super::pulse::Pulse;
use super::shared::Shared;
use crate::client::Client;
use crate::error::{EndReason, Error};

/// After something was not done, it is said again.
const REPEAT_AFTER: Duration = Duration::from_millis(250);
/// Shortest and longest pause between rounds through the gateways.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Pauses after connections that lived for less than that, and at most so many of them.
const STEADY_AFTER: Duration = Duration::from_secs(5);
const MAX_PAUSES: u32 = 6;
/// Shortest and longest time that one gateway is given to resume the session.
const ATTEMPT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How long the service may take to close the session.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct Runner {
    pub(super) shared: Arc<Shared>,
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
enum Next {
    Close,
    Over,
    Heard(Box<v1::ServerMessage>),
    /// The connection has ended.
    Gone,
    TooSilent,
    Room,
    Repeat,
    Look,
}

impl Runner {
    /// Runs until the session is over.
    pub(super) async fn run(mut self, first: Connection, asked_at: Instant) {
        // Also when the runtime stops and drops this task, callers are told.
        let last_word = LastWord(Arc::clone(&self.shared));
        let mut connection = first;
        let mut due_at = asked_at + self.ttl / 3;
        let mut short_lives = 0;
        let reason = loop {
            let began = Instant::now();
            match self.live(&mut connection, due_at).await {
                Some(EndReason::Closed) if self.shared.close.is_cancelled() => {
                    break self.close(Some(connection)).await;
                }
                Some(reason) => {
                    if reason == EndReason::Unreachable {
                        // What it holds is of no use to anybody any more.
                        tokio::spawn(timeout(CLOSE_WITHIN, closed(connection)));
                    }
                    break reason;
                }
                None => {}
            }
            self.gateway += 1;
            short_lives = if began.elapsed() < STEADY_AFTER { short_lives + 1 } else { 0 };
            if !self.in_jeopardy {
                self.in_jeopardy = true;
                self.shared.events.push(Event::Jeopardy(self.shared.lease.until().into_std()));
            }
            match self.resume(short_lives).await {
                Ok(resumed) => connection = resumed,
                Err(EndReason::Closed) => break self.close(None).await,
                Err(reason) => break reason,
            }
            due_at = Instant::now();
        };
        let reason = self.shared.end(reason);
        self.shared.events.push(Event::Ended(reason));
        drop(last_word);
    }

    /// Lives on one connection. Returns why the session is over, or nothing when only the connection is.
    async fn live(&mut self, connection: &mut Connection, due_at: Instant) -> Option<EndReason> {
        let mut pulse = Pulse::new(self.ttl, due_at);
        let mut repeat_at = None;
        loop {
            if self.shared.has_to_repeat() {
                repeat_at.get_or_insert_with(|| Instant::now() + REPEAT_AFTER);
            }
            match self.next(connection, &pulse, repeat_at).await {
                Next::Close => return Some(EndReason::Closed),
                Next::Over => return Some(EndReason::Unreachable),
                Next::TooSilent | Next::Gone => return None,
                Next::Heard(message) => match message.message {
                    Some(Says::KeptAlive(_)) => {
                        let in_time = pulse.answered().is_none_or(|sent| self.shared.lease.extend(sent, self.ttl));
                        if !in_time {
                            return Some(EndReason::Unreachable);
                        }
                        self.safe();
                    }
                    Some(says) => match hear::hear(&self.shared, says) {
                        Heard::Done => {}
                        Heard::NotTaken => pulse.refused(),
                        Heard::Ended(EndReason::Superseded) if std::mem::take(&mut self.may_supersede) => return None,
                        Heard::Ended(reason) => return Some(reason),
                    },
                    None => {}
                },
                Next::Room => self.say(connection, &mut pulse),
                Next::Repeat => {
                    repeat_at = None;
                    self.shared.heard(|table| {
                        table.repeat();
                        Vec::new()
                    });
                }
                Next::Look => {}
            }
        }
    }

    async fn next(&self, connection: &mut Connection, pulse: &Pulse, repeat_at: Option<Instant>) -> Next {
        let wants_to_say = pulse.is_due(Instant::now()) || self.shared.has_to_say();
        tokio::select! {
            biased;
            () = self.shared.close.cancelled() => Next::Close,
            said = connection.from.message() => match said {
                Ok(Some(message)) => Next::Heard(Box::new(message)),
                Ok(None) | Err(_) => Next::Gone,
            },
            _ = self.shared.lease.wait_over() => Next::Over,
            () = sleep_until(pulse.given_up_at()) => Next::TooSilent,
            room = connection.to.reserve(), if wants_to_say => if room.is_ok() { Next::Room } else { Next::Gone },
            () = at(pulse.due_at()), if !wants_to_say => Next::Look,
            () = self.shared.wake.notified() => Next::Look,
            () = at(repeat_at) => Next::Repeat,
        }
    }

    /// There is room for one message.
    fn say(&mut self, connection: &mut Connection, pulse: &mut Pulse) {
        let now = Instant::now();
        let said = if pulse.is_due(now) {
            pulse.sent(now);
            Some(Said::Keepalive(client::KeepAlive {}))
        } else {
            self.shared.say()
        };
        let Some(said) = said else { return };
        connection.seq += 1;
        // This task alone puts messages in, and saw that there is room.
        connection.to.try_send(message(connection.seq, said)).ok();
    }

    fn safe(&mut self) {
        if std::mem::take(&mut self.in_jeopardy) {
            self.shared.events.push(Event::Safe);
        }
    }

    /// Resumes the session at the first gateway that does it in time. So many connections before lived for a moment
    /// only.
    async fn resume(&mut self, short_lives: u32) -> Result<Connection, EndReason> {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            biased;
            () = shared.close.cancelled() => Err(EndReason::Closed),
            _ = shared.lease.wait_over() => Err(EndReason::Unreachable),
            resumed = self.resume_somewhere(short_lives) => resumed,
        }
    }

    /// Ends the session at this gateway or another one. A session that could not be closed in time ends by itself.
    async fn close(&mut self, connection: Option<Connection>) -> EndReason {
        let by = self.shared.lease.until().min(Instant::now() + CLOSE_WITHIN);
        // From now on nobody here counts on what it holds, which another one may have before the answer comes.
        let reason = self.shared.lease.end(EndReason::Closed);
        let _ = timeout_at(by, self.close_somewhere(connection)).await;
        reason
    }

    async fn close_somewhere(&mut self, mut connection: Option<Connection>) {
        loop {
            let open = match connection.take() {
                Some(open) => open,
                None => match self.resume_somewhere(0).await {
                    Ok(resumed) => resumed,
                    // It is over already, or this client is not let in any more.
                    Err(_) => return,
                },
            };
            if closed(open).await {
                return;
            }
        }
    }

    async fn resume_somewhere(&mut self, short_lives: u32) -> Result<Connection, EndReason> {
        let pauses = ExponentialBuilder::default().with_min_delay(PAUSES.0).with_max_delay(PAUSES.1);
        let mut pauses = pauses.without_max_times().with_jitter().build();
        let within = (self.ttl / 4).clamp(ATTEMPT.0, ATTEMPT.1);
        // One that breaks is replaced at once; where it happens again and again nothing is gained by haste.
        for _ in 1..short_lives.min(MAX_PAUSES) {
            sleep(pauses.next().unwrap_or(PAUSES.1)).await;
        }
        loop {
            for _ in 0..self.client.gateway_count() {
                let attempt = Connection::open(&self.client, self.gateway, self.open.clone(), within).await;
                match attempt {
                    Ok((mut connection, ..)) => {
                        connection.seq += 1;
                        let info = Said::LockInfo(self.shared.lock_info());
                        // A new connection has room.
                        connection.to.try_send(message(connection.seq, info)).ok();
                        return Ok(connection);
                    }
                    Err(failed) => {
                        tracing::debug!(error = %failed.error, "the session could not be resumed there");
                        self.may_supersede |= failed.may_be_done;
                        if let Some(reason) = end_by(failed.error) {
                            return Err(reason);
                        }
                    }
                }
                self.gateway += 1;
            }
            sleep(pauses.next().unwrap_or(PAUSES.1)).await;
        }
    }
}

/// Why a session that cannot be resumed is over, unless that may pass.
fn end_by(error: Error) -> Option<EndReason> {
    if error.is_passing() {
        return None;
    }
    Some(match error.code() {
        Some("SESSION_NOT_FOUND") => EndReason::Expired,
        Some("NAMESPACE_NOT_FOUND") => EndReason::NamespaceDeleted,
        _ => EndReason::Denied(error.to_string()),
    })
}

/// Asks to end the session until the service says that it has. Whether it did.
async fn closed(mut connection: Connection) -> bool {
    loop {
        connection.seq += 1;
        if connection.to.send(message(connection.seq, Said::Close(client::Close {}))).await.is_err() {
            return false;
        }
        loop {
            match connection.from.message().await.map(|said| said.map(|said| said.message)) {
                Ok(Some(Some(Says::SessionEnded(_)))) => return true,
                // It may be that this was not done.
                Ok(Some(Some(Says::Error(_)))) => break,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return false,
            }
        }
        sleep(REPEAT_AFTER).await;
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Tells those who wait that nobody serves the session any more.
struct LastWord(Arc<Shared>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.end(EndReason::Closed);
    }
}
