//! Reports what a session holds and waits for to the leader of a new epoch of its lock table, which grants nothing
//! before. From the moment at which the report is made, the connection takes nothing of earlier epochs.

use holdfast_api::ApiResult;
use holdfast_supervise::spawn_alongside;
use holdfast_types::{CommandError, Reply, Response, Revision};

use super::asked::DeferredAsks;
use super::channel::CloseReason;
use super::client_command::ClientCommand;
use super::connection::SessionConnection;
use super::deferred_updates::DeferredUpdates;
use super::epoch_report::{EpochReport, Reported};
use super::retained_ledger::RetainedLedger;

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
    /// Handles the notice that a leader needs a report. Commands in flight at an earlier leader are sent to this leader
    /// after the report.
    pub(super) async fn on_unreported(&mut self, table_epoch: Revision) -> Result<(), CloseReason> {
        let is_under_way = self.report.is_some() && table_epoch <= self.promised;
        if self.is_session_gone() || is_under_way {
            return Ok(());
        }
        self.promised = self.promised.max(table_epoch);
        self.deferred_updates = DeferredUpdates::default();
        self.deferred_asks = DeferredAsks::default();
        self.subscription = self.session.subscribe();
        if let Some(in_flight) = self.in_flight.take() {
            self.send_again(in_flight.commands).await?;
        }
        self.queue.remove_reconciliation();
        self.has_unqueued |= self.requests.displace();
        if !self.is_complete {
            // The list of the client is the report.
            self.owe_report();
            return Ok(());
        }
        self.unqueue_listed();
        let is_known = self.requests.knows_requests();
        let parts =
            if is_known { self.requests.report(self.session.empty_report(self.promised, self.seq)) } else { None };
        let Some(parts) = parts else {
            // The leader waits for its end.
            self.on_session_gone();
            return Ok(());
        };
        self.report = Some(EpochReport::start(&self.session, parts, self.promised <= self.reported));
        Ok(())
    }

    /// Handles the reply to a part of the report.
    pub(super) async fn on_reported(&mut self, reply: ApiResult<Reply>) -> Result<(), CloseReason> {
        match self.report.as_mut().map(|report| report.on_reply(reply)) {
            None | Some(Reported::Partly) => Ok(()),
            Some(Reported::Whole) => {
                self.end_report();
                Ok(())
            }
            Some(Reported::Elsewhere(table_epoch)) => {
                self.report = None;
                self.on_unreported(table_epoch).await
            }
            Some(Reported::Rejected(refused)) => {
                self.report = None;
                self.on_session_rejected(refused).await
            }
            Some(Reported::Failed(error)) => {
                self.report = None;
                Err(CloseReason::Failed(error))
            }
        }
    }

    /// Keeps the ledger of the session after the end of its connection, so that it can be reported.
    pub(super) fn retain_ledger(mut self) {
        let is_open = !self.has_ended && !self.is_session_gone();
        if self.session.table_epoch.is_some() && is_open && self.is_complete && self.requests.knows_requests() {
            let unanswered = self.in_flight.take().map(|in_flight| in_flight.commands).unwrap_or_default();
            unanswered.into_iter().rev().for_each(|command| self.queue.push_front(command));
            self.remove_released_positions();
            self.unqueue_listed();
            self.requests.clear_counts();
            let Self { session, requests, promised, reported, report, .. } = self;
            RetainedLedger { session, requests, promised, reported, report }.spawn();
        } else {
            spawn_alongside("session_end", self.requests.free());
        }
    }

    /// The session is as alive as ever: it goes on at the leader that has its report.
    fn end_report(&mut self) {
        (self.report, self.reported) = (None, self.promised);
        self.keep_alive.record_report(self.promised);
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
                    self.wait_for_table(lock).await?;
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
}
