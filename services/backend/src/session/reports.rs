//! Reports what a session holds and waits for to the leader of a new epoch of its lock table, which grants nothing
//! before. From the moment at which the report is made, the connection takes nothing of earlier epochs.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use holdfast_api::{ApiError, ApiResult};
use holdfast_types::{
    AcquireOutcome, CommandError, FencingToken, LocksCommand, Reply, Response, Revision, TableCommand, TableReport,
};
use std::sync::Arc;
use tokio::time::{Instant, sleep};

use super::asked::DeferredAsks;
use super::channel::CloseReason;
use super::client_command::ClientCommand;
use super::connection::SessionConnection;
use super::replies::unknown_outcome;
use crate::shard_call::unexpected;

/// Delay before a part is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// How long beyond the time to live of its session a report is repeated.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// A report that is under way.
pub(super) struct EpochReport {
    /// The parts, all of one moment.
    parts: Vec<TableReport>,
    /// The part that is under way.
    at: usize,
    until: Instant,
    reply: BoxFuture<'static, ApiResult<Reply>>,
}

/// Waits for the reply to a part; returns each once. Cancel-safe.
pub(super) async fn await_report(report: &mut Option<EpochReport>) -> ApiResult<Reply> {
    match report {
        Some(report) => (&mut report.reply).await,
        None => pending().await,
    }
}

/// Returns the epoch of the leader, if it executes nothing before the report of the session.
pub(super) fn unreported_epoch(reply: &ApiResult<Reply>) -> Option<Revision> {
    let epoch_of = |outcome: &Result<Response, CommandError>| match outcome {
        Err(CommandError::Unreported { table_epoch }) => Some(*table_epoch),
        _ => None,
    };
    match reply {
        Ok(Reply { outcome: Ok(Response::Batch(outcomes)), .. }) => outcomes.iter().find_map(epoch_of),
        Ok(Reply { outcome, .. }) => epoch_of(outcome),
        Err(_) => None,
    }
}

impl SessionConnection<'_> {
    /// Handles the news that a leader needs a report. What is under way at an earlier leader is sent to this one after
    /// the report.
    pub(super) async fn on_unreported(&mut self, table_epoch: Revision) -> Result<(), CloseReason> {
        let is_under_way = self.report.is_some() && table_epoch <= self.promised;
        if self.is_session_gone() || is_under_way {
            return Ok(());
        }
        self.promised = self.promised.max(table_epoch);
        self.deferred_updates.clear();
        self.deferred_asks = DeferredAsks::default();
        self.subscription = self.session.subscribe();
        if let Some(in_flight) = self.in_flight.take() {
            self.send_again(in_flight.commands).await?;
        }
        self.queue.remove_reconciliation();
        self.has_unplaced |= self.requests.displace();
        let is_known = self.is_complete && self.requests.knows_requests();
        let parts = if is_known { self.requests.report(&self.session, self.promised) } else { None };
        let Some(parts) = parts else {
            // The leader waits for its end.
            self.on_session_gone();
            return Ok(());
        };
        let until = Instant::now() + MAX_WAIT + Duration::from_millis(self.session.ttl_ms);
        self.report = Some(EpochReport { parts, at: 0, until, reply: pending().boxed() });
        self.send_part(Duration::ZERO);
        Ok(())
    }

    /// Sends the next part of the report, after a while.
    fn send_part(&mut self, after: Duration) {
        let Some(report) = &mut self.report else { return };
        let Some(part) = report.parts.get(report.at) else { return };
        let command = LocksCommand::Table(TableCommand::Report(part.clone()));
        let session = Arc::clone(&self.session);
        report.reply = async move {
            if !after.is_zero() {
                sleep(after).await;
            }
            session.command(command).await
        }
        .boxed();
    }

    /// Handles the reply to a part of the report.
    pub(super) async fn on_reported(&mut self, reply: ApiResult<Reply>) -> Result<(), CloseReason> {
        let Some(report) = &mut self.report else { return Ok(()) };
        let error = match reply.map(|reply| reply.outcome) {
            Ok(Ok(Response::Done | Response::Ignored)) => {
                report.at += 1;
                if report.at < report.parts.len() {
                    self.send_part(Duration::ZERO);
                } else {
                    self.end_report();
                }
                return Ok(());
            }
            Ok(Ok(other)) => return Err(CloseReason::Failed(unexpected(&other))),
            Ok(Err(CommandError::Unreported { table_epoch })) if table_epoch > self.promised => {
                self.report = None;
                return self.on_unreported(table_epoch).await;
            }
            Ok(Err(
                refused @ (CommandError::SessionNotFound(_)
                | CommandError::Superseded { .. }
                | CommandError::NamespaceNotFound),
            )) => {
                self.report = None;
                return self.on_session_rejected(refused).await;
            }
            Ok(Err(refused)) => {
                if matches!(refused, CommandError::InvalidArgument(_)) {
                    report.at = 0;
                }
                ApiError::from(refused)
            }
            Err(error) => error,
        };
        // The leader may not have begun its epoch, or be one of before, or wait for the outcome of an expiry.
        if Instant::now() >= report.until {
            return Err(CloseReason::Failed(error));
        }
        self.send_part(RETRY_DELAY);
        Ok(())
    }

    /// The session is as alive as ever: it goes on at the leader that has its report.
    fn end_report(&mut self) {
        self.report = None;
        for _ in 0..std::mem::take(&mut self.owed_keep_alives) {
            self.keep_alive.request();
        }
    }

    /// Puts commands back that the leader has not executed, or one of before has. Requests wait, as they do while a
    /// table is not complete, so that they are reported.
    pub(super) async fn send_again(&mut self, commands: Vec<ClientCommand>) -> Result<(), CloseReason> {
        let mut again = Vec::new();
        for command in commands {
            match &command {
                ClientCommand::Lock(lock) if !lock.only_try && self.requests.state(&lock.request_id).is_none() => {
                    self.wait_for_table(&Arc::clone(lock)).await?;
                }
                command if command.is_reconciliation() => {}
                _ => again.push(command),
            }
        }
        for command in again.into_iter().rev() {
            self.queue.push_front(command);
        }
        Ok(())
    }

    /// Returns whether the answer to a request is one of an epoch before that of the last report.
    pub(super) fn is_of_before(&self, command: &ClientCommand, answer: &Response) -> bool {
        if self.promised == 0 {
            return false;
        }
        match answer {
            Response::Granted { fencing_token }
            | Response::Acquired { outcome: AcquireOutcome::Granted { fencing_token }, .. } => {
                self.is_token_of_before(command.acquire_request_id(), *fencing_token)
            }
            Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. } => enqueued.wait.0 < self.promised,
            _ => false,
        }
    }

    /// Returns whether a grant of this token was made in an epoch before that of the last report. One of a hold that is
    /// known is not: it was reported.
    pub(super) fn is_token_of_before(&self, request_id: Option<&str>, token: FencingToken) -> bool {
        let lock = request_id.and_then(|request_id| self.requests.lock(request_id));
        token < self.promised && !lock.is_some_and(|lock| self.requests.holds_claim_under(lock, token))
    }

    /// Handles an answer of an earlier epoch: nothing of it counts, and the request goes on at the leader that has the
    /// report.
    pub(super) async fn on_answer_of_before(&mut self, command: &ClientCommand) -> Result<(), CloseReason> {
        match command {
            ClientCommand::Lock(lock) if !lock.only_try && self.requests.state(&lock.request_id).is_none() => {
                self.wait_for_table(&Arc::clone(lock)).await
            }
            // It still waits, and is sent again.
            ClientCommand::Requery(_) => {
                self.has_unplaced |= self.requests.displace();
                Ok(())
            }
            command => self.on_command_failed(command, unknown_outcome()).await,
        }
    }
}
