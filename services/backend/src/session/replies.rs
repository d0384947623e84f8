//! Converts the shard's replies to commands into messages for the client.

use std::sync::Arc;

use holdfast_api::session_message::{EndReason, Lock, RefusalCause, Release, ServerMessage};
use holdfast_api::{ApiError, ApiResult, Code, Timestamp};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_types::{
    AcquireOutcome, BarrierOutcome, CommandError, FencingToken, LockView, LostHold, Reason, Refused, Reply, Response,
    RevokedReason, SessionEnd,
};
use tokio::task::yield_now;

use super::arrivals::is_inside;
use super::awaits::AwaitOutcome;
use super::channel::CloseReason;
use super::client_command::{ClientCommand, InFlightBatch};
use super::connection::SessionConnection;
use super::permit_table::PermitState;
use super::reports::unreported_epoch;
use super::request_table::RequestState;
use super::unanswered::unknown_outcome;
use crate::shard_call::unexpected;
use crate::view_builder::ViewBuilder;

/// How often a command is sent again that the shard took for a copy of itself.
const MAX_ATTEMPTS: u8 = 3;
/// Holds that are added to the client's view before other tasks run.
const MAX_REPORTED_AT_ONCE: usize = 512;

impl SessionConnection<'_> {
    /// Handles the reply to the command in flight.
    pub(super) async fn on_reply(&mut self, reply: ApiResult<Reply>) -> Result<(), CloseReason> {
        let Some(InFlightBatch { commands, attempts, .. }) = self.in_flight.take() else { return Ok(()) };
        if let Some(table_epoch) = unreported_epoch(&reply) {
            self.send_again(commands).await?;
            return self.on_unreported(table_epoch).await;
        }
        match reply {
            Err(error) => {
                for job in &commands {
                    let error = if self.may_be_done(job, attempts) { unknown_outcome() } else { error.clone() };
                    self.on_command_failed(job, error).await?;
                }
            }
            Ok(Reply { outcome: Ok(Response::Batch(outcomes)), clock_ms, .. }) => {
                self.on_outcomes(commands, attempts, outcomes, clock_ms).await?;
            }
            Ok(Reply { outcome, clock_ms, .. }) => {
                self.on_outcomes(commands, attempts, vec![outcome], clock_ms).await?
            }
        }
        if self.in_flight.is_none() {
            match std::mem::take(&mut self.deferred_updates).into_updates() {
                Some(updates) => {
                    for notice in updates {
                        self.on_update(notice).await?;
                    }
                }
                None => self.queue_reconciliation(),
            }
            self.send_deferred_asks().await?;
        }
        Ok(())
    }

    async fn on_outcomes(
        &mut self,
        jobs: Vec<ClientCommand>,
        tries: u8,
        outcomes: Vec<Result<Response, CommandError>>,
        clock_ms: u64,
    ) -> Result<(), CloseReason> {
        // A copy arrived first, and its outcome was lost with its reply.
        let is_copy = outcomes.contains(&Ok(Response::Ignored));
        let mut again = Vec::new();
        for (at, (job, outcome)) in jobs.iter().zip(outcomes).enumerate() {
            let end = if is_copy { ended_by(job, &jobs[at + 1..]) } else { None };
            match (end, outcome) {
                (Some(ClientCommand::ReleaseAll), _) => {
                    // For a known request, the reply to the release of everything sends this message.
                    let has_table = |id: &str| self.permits.state(id).is_some() || self.arrivals.get(id).is_some();
                    let is_unknown = |id: &&str| self.requests.state(id).is_none() && !has_table(id);
                    if let Some(request_id) = job.acquire_request_id().filter(is_unknown) {
                        self.send(ServerMessage::Ready { request_id: Some(request_id.to_owned()) }).await?;
                    }
                }
                (Some(_), _) => {}
                (None, Err(refusal)) => self.on_command_rejected(job, tries, refusal).await?,
                // Repeated under another number, the last part ends what the others list: the client resumes again.
                (None, Ok(Response::Ignored)) if job.is_one_of_several_parts() => {
                    return Err(CloseReason::Failed(unknown_outcome()));
                }
                // The copy has signalled, and a repeat would wake one more.
                (None, Ok(Response::Ignored)) if job.is_done_once() => {
                    self.on_command_failed(job, unknown_outcome()).await?;
                }
                (None, Ok(Response::Ignored)) if job.needs_reply() => again.push(job.clone()),
                (None, Ok(Response::ReconciledAsked { lost, ended_holds, ended_waits, asked })) => {
                    let answer = Response::Reconciled { lost, ended_holds, ended_waits };
                    self.on_answer(job, answer, clock_ms).await?;
                    self.send_asked(asked).await?;
                }
                (None, Ok(answer)) => self.on_answer(job, answer, clock_ms).await?,
            }
        }
        if tries < MAX_ATTEMPTS && !again.is_empty() {
            return self.start(again, tries + 1).await;
        }
        for job in &again {
            self.on_command_failed(job, unknown_outcome()).await?;
        }
        Ok(())
    }

    async fn on_answer(&mut self, job: &ClientCommand, answer: Response, clock_ms: u64) -> Result<(), CloseReason> {
        self.remove_unanswered(job);
        match (job, answer) {
            (ClientCommand::Lock(lock), Response::Acquired { outcome, locks }) => {
                let lock = Arc::clone(lock);
                self.on_acquire_outcome(&lock, outcome, &locks, clock_ms, true).await
            }
            (ClientCommand::Lock(lock), Response::Granted { fencing_token }) => {
                let lock = Arc::clone(lock);
                self.shown.take_position(&lock.request_id);
                self.on_granted(&lock, fencing_token).await
            }
            (ClientCommand::Requery(request_id), Response::Granted { fencing_token }) => {
                let Some(lock) = self.requests.waiting(request_id) else { return Ok(()) };
                self.on_granted(&lock, fencing_token).await
            }
            (ClientCommand::Requery(request_id), Response::Acquired { outcome, locks }) => {
                let Some(lock) = self.requests.waiting(request_id) else { return Ok(()) };
                self.on_acquire_outcome(&lock, outcome, &locks, clock_ms, false).await
            }
            (ClientCommand::Release(release), answer) => {
                self.permits.remove(&release.request_id);
                self.arrivals.remove(&release.request_id);
                self.awaits.remove(&release.request_id);
                match answer {
                    Response::Released { locks, released: true } => self.requests.released(&release.request_id, &locks),
                    Response::Done => self.requests.released_completely(&release.request_id),
                    _ => self.requests.released_without_views(&release.request_id),
                }
                self.send(ServerMessage::Ready { request_id: Some(release.request_id.clone()) }).await
            }
            (ClientCommand::ReleaseAll, _) => self.on_all_released().await,
            (ClientCommand::LockInfo { info, .. }, Response::Reconciled { lost, .. }) => {
                // Where receipts are shown, they are known already.
                let held = if self.session.table_epoch.is_none() { info.held.as_slice() } else { &[] };
                for held in held.chunks(MAX_REPORTED_AT_ONCE) {
                    held.iter().for_each(|held| self.requests.add_reported(held.clone()));
                    yield_now().await;
                }
                self.on_holds_lost(lost, clock_ms).await?;
                if std::mem::take(&mut self.missed_updates) {
                    self.queue_reconciliation();
                }
                self.pending.extend_from_slice(&info.pending);
                if info.part.is_last() {
                    self.is_complete = true;
                    self.queue_pending();
                }
                Ok(())
            }
            (ClientCommand::ReconcileHolds(_), Response::Reconciled { lost, .. }) => {
                self.on_holds_lost(lost, clock_ms).await
            }
            (ClientCommand::Close, Response::Done) => self.end_with(EndReason::Ended(SessionEnd::Closed)).await,
            (job, answer) => self.on_answer_about_things(job, answer, clock_ms).await,
        }
    }

    /// Handles the reply to a command about other kinds of things than locks.
    async fn on_answer_about_things(
        &mut self,
        job: &ClientCommand,
        answer: Response,
        clock_ms: u64,
    ) -> Result<(), CloseReason> {
        match (job, answer) {
            (ClientCommand::CountDown(count), Response::CountedDown { counted, latch }) => {
                let (request_id, total, done) = (count.request_id.clone(), latch.total, latch.done);
                self.send(ServerMessage::Counted { request_id, counted, total, done }).await
            }
            (ClientCommand::AcquirePermits(acquire), Response::PermitsAcquired { outcome, members, holders, .. }) => {
                let acquire = Arc::clone(acquire);
                self.on_permits_outcome(&acquire, (outcome, members), holders, clock_ms, true).await
            }
            (
                ClientCommand::RequeryPermits(request_id),
                Response::PermitsAcquired { outcome, members, holders, .. },
            ) => {
                let Some(acquire) = self.permits.waiting(request_id) else { return Ok(()) };
                self.on_permits_outcome(&acquire, (outcome, members), holders, clock_ms, false).await
            }
            (ClientCommand::Await(_) | ClientCommand::RequeryAwait(_), Response::Awaited { outcome, woken, locks }) => {
                let asked = matches!(job, ClientCommand::Await(_));
                let request_id = job.acquire_request_id().unwrap_or_default();
                self.on_await_outcome(request_id, AwaitOutcome { outcome, woken, locks }, clock_ms, asked).await
            }
            (ClientCommand::Signal(signal), Response::Signalled { success, signalled, .. }) => {
                self.on_signalled(signal, (success, signalled)).await
            }
            (ClientCommand::ReconcilePermits(_), Response::PermitsReconciled { lost, asked }) => {
                for hold in lost {
                    self.on_permits_lost(hold, RevokedReason::Duplicate).await?;
                }
                self.send_asked(asked).await
            }
            (ClientCommand::ReportPermits(held), Response::PermitsReconciled { lost, asked }) => {
                self.on_permits_reported(held, lost).await?;
                self.send_asked(asked).await
            }
            (ClientCommand::Arrive(arrive), Response::AtBarrier { answer, barrier }) => {
                self.on_arrived(arrive, answer, &barrier).await
            }
            (ClientCommand::Leave(leave), Response::AtBarrier { answer, .. }) => {
                self.on_leave(&leave.request_id, answer).await
            }
            (ClientCommand::Leave(leave), Response::Released { .. }) => {
                self.on_unanswered_left(leave.request_id.clone()).await
            }
            (ClientCommand::RequeryArrival(request_id), Response::AtBarrier { answer, barrier }) => {
                // Also if all have left: the reply to its own leave may have been lost, and the answer to the next one says
                // how the generation ended.
                let is_to_leave = answer.outcome == BarrierOutcome::Tripped && barrier.double;
                self.on_met(request_id.clone(), answer, is_to_leave || is_inside(&answer, &barrier)).await
            }
            (_, answer) => Err(CloseReason::Failed(unexpected(&answer))),
        }
    }

    /// Handles a grant that gave each claim a new token.
    async fn on_granted(&mut self, lock: &Arc<Lock>, fencing_token: FencingToken) -> Result<(), CloseReason> {
        let is_late = is_enabled(Mutation::SoftLedgerLate);
        if !is_late {
            self.requests.granted_anew(lock, fencing_token);
        }
        let (request_id, members) = (lock.request_id.clone(), Vec::new());
        self.send(ServerMessage::Acquired { request_id, fencing_token, members, woken: None, receipt: None }).await?;
        if is_late {
            self.requests.granted_anew(lock, fencing_token);
        }
        Ok(())
    }

    /// Handles the outcome of a request. Only a client that asked is notified that it still waits.
    async fn on_acquire_outcome(
        &mut self,
        lock: &Arc<Lock>,
        outcome: AcquireOutcome,
        locks: &[LockView],
        clock_ms: u64,
        asked: bool,
    ) -> Result<(), CloseReason> {
        let request_id = lock.request_id.clone();
        let first_position = self.shown.take_position(&request_id);
        match outcome {
            AcquireOutcome::Granted { fencing_token } => {
                self.requests.granted(lock, fencing_token, locks);
                let (members, woken) = (Vec::new(), None);
                self.send(ServerMessage::Acquired { request_id, fencing_token, members, woken, receipt: None }).await
            }
            AcquireOutcome::Enqueued(enqueued) => {
                // Its place is new.
                let tells = asked || self.requests.is_unqueued(&request_id);
                self.requests.enqueued(lock, enqueued.wait, first_position);
                if !tells {
                    return Ok(());
                }
                let namespace = self.session.namespace.name.clone();
                let shown = ViewBuilder::new(&namespace, clock_ms, Timestamp::now()).reason(enqueued.not_granted);
                let (queue_position, blockers) = (shown.queue_position, shown.blockers);
                let (holders, woken) = (Vec::new(), None);
                self.send(ServerMessage::Enqueued { request_id, queue_position, blockers, holders, woken, place: None })
                    .await
            }
            AcquireOutcome::Refused(refusal) => {
                // A refused try of a waiting request leaves it waiting; a request that lost a hold must be released.
                let stays = match self.requests.state(&request_id) {
                    Some(RequestState::Waiting(_) | RequestState::Unqueued(_)) => refusal.reason == Reason::Queued,
                    Some(RequestState::Granted) => refusal.reason == Reason::NotHeld,
                    None => false,
                };
                if !stays {
                    self.requests.remove(&request_id);
                }
                self.send_refused(request_id, *refusal, clock_ms).await
            }
        }
    }

    pub(super) async fn send_refused(
        &mut self,
        request_id: String,
        refusal: Refused,
        clock_ms: u64,
    ) -> Result<(), CloseReason> {
        let namespace = self.session.namespace.name.clone();
        let why = RefusalCause::Reason(ViewBuilder::new(&namespace, clock_ms, Timestamp::now()).reason(refusal));
        self.send(ServerMessage::Refused { request_id, why }).await
    }

    async fn on_all_released(&mut self) -> Result<(), CloseReason> {
        self.shown.clear_positions();
        let mut released = self.requests.clear();
        released.extend(self.permits.clear());
        released.extend(self.arrivals.clear());
        released.extend(self.awaits.clear());
        released.sort_unstable();
        // One that gives its lock up is in two tables until the reply.
        released.dedup();
        if released.is_empty() {
            return self.send(ServerMessage::Ready { request_id: None }).await;
        }
        for request_id in released {
            self.send(ServerMessage::Ready { request_id: Some(request_id) }).await?;
        }
        Ok(())
    }

    /// Handles the loss of holds that the client believed to have.
    async fn on_holds_lost(&mut self, lost: Vec<LostHold>, clock_ms: u64) -> Result<(), CloseReason> {
        for hold in lost {
            let Some(lost) = self.requests.remove_hold(&hold.path, hold.fencing_token) else { continue };
            let namespace = self.session.namespace.name.clone();
            let shown = ViewBuilder::new(&namespace, clock_ms, Timestamp::now());
            let current_owner = hold.current_owner.map(|holder| Box::new(shown.holder(holder)));
            let reason = RevokedReason::Duplicate;
            let (path, holder, fencing_token) = (hold.path.0, lost.into_holder(), hold.fencing_token);
            self.send(ServerMessage::Revoked { path, reason, current_owner, holder, fencing_token }).await?;
        }
        Ok(())
    }

    /// Handles a missing reply, or a reply without a known outcome.
    pub(super) async fn on_command_failed(&mut self, job: &ClientCommand, error: ApiError) -> Result<(), CloseReason> {
        if let Some(request_id) = self.refused_request(job, &error) {
            let (request_id, why) = (request_id.to_owned(), RefusalCause::Fault(error));
            self.shown.take_position(&request_id);
            self.unanswered.remove(&request_id);
            return self.send(ServerMessage::Refused { request_id, why }).await;
        }
        if !error.code.has_no_side_effects() {
            self.remember_unanswered(job)?;
        }
        let request_id = match job {
            ClientCommand::Arrive(arrive) => Some(arrive.request_id.clone()),
            ClientCommand::AcquirePermits(acquire) => Some(acquire.request_id.clone()),
            ClientCommand::Lock(lock) => Some(lock.request_id.clone()),
            ClientCommand::Invalid(invalid) => Some(invalid.request_id.clone()),
            ClientCommand::Release(release) | ClientCommand::Leave(release) => Some(release.request_id.clone()),
            ClientCommand::CountDown(count) => Some(count.request_id.clone()),
            // The request keeps its lock, or what has become of it is not known.
            ClientCommand::Await(awaits) => {
                if error.code.has_no_side_effects() {
                    self.awaits.remove_unanswered(&awaits.request_id);
                    self.unanswered.remove(&awaits.request_id);
                }
                Some(awaits.request_id.clone())
            }
            ClientCommand::Signal(signal) => Some(signal.request_id.clone()),
            // The next subscription to a leader queries all of it again.
            ClientCommand::Requery(_)
            | ClientCommand::RequeryPermits(_)
            | ClientCommand::RequeryArrival(_)
            | ClientCommand::RequeryAwait(_)
            | ClientCommand::ReconcileHolds(_)
            | ClientCommand::ReconcilePermits(_) => {
                self.subscription.restart(None);
                return Ok(());
            }
            // The client's view is unknown, so it must resume again.
            ClientCommand::ReportPermits(_) | ClientCommand::LockInfo { .. } => return Err(CloseReason::Failed(error)),
            ClientCommand::ReleaseAll | ClientCommand::Close | ClientCommand::Malformed(_) => None,
        };
        self.send(ServerMessage::Error { error, request_id }).await
    }

    /// Returns the request that an error refuses. A rejected repeat leaves what the request has, and `refused` would
    /// say that it has nothing.
    fn refused_request<'a>(&self, job: &'a ClientCommand, error: &ApiError) -> Option<&'a str> {
        let (request_id, may_have) = match job {
            ClientCommand::Lock(lock) => (&lock.request_id, true),
            ClientCommand::AcquirePermits(acquire) => (&acquire.request_id, true),
            ClientCommand::Invalid(invalid) => (&invalid.request_id, true),
            ClientCommand::CountDown(count) => (&count.request_id, false),
            ClientCommand::Arrive(arrive) => (&arrive.request_id, false),
            _ => return None,
        };
        // A try that the leader could not decide in time: its table is not complete.
        let is_try = matches!(job, ClientCommand::Lock(lock) if lock.only_try);
        let is_early = is_try && error.code == Code::Unavailable && self.session.table_epoch.is_some();
        let is_refused = !is_early && error.code.has_no_side_effects() && !(may_have && self.has_or_awaits(request_id));
        is_refused.then_some(request_id.as_str())
    }

    /// Returns whether a request of any kind holds something or waits, as far as the client was told.
    fn has_or_awaits(&self, request_id: &str) -> bool {
        let of_permits = self.permits.state(request_id).is_some_and(|state| state != PermitState::Lost);
        let of_others = self.arrivals.get(request_id).is_some() || self.awaits.state(request_id).is_some();
        of_permits || of_others || self.requests.has_or_awaits(request_id)
    }

    async fn on_command_rejected(
        &mut self,
        job: &ClientCommand,
        tries: u8,
        refusal: CommandError,
    ) -> Result<(), CloseReason> {
        match (job, refusal) {
            (ClientCommand::Lock(lock), CommandError::Busy(_)) if self.may_be_unqueued(lock, tries) => {
                self.wait_for_table(lock).await
            }
            // It is sent again.
            (ClientCommand::Requery(request_id), CommandError::Busy(_)) if self.requests.is_unqueued(request_id) => {
                self.is_early = true;
                Ok(())
            }
            // Nor is the table complete of which it asks. What the client says meanwhile does not wait for that.
            (ClientCommand::Requery(_) | ClientCommand::ReconcileHolds(_), CommandError::Busy(_))
                if self.session.table_epoch.is_some() =>
            {
                self.is_early = true;
                if !self.is_client_gone() {
                    self.queue.push_own(job.clone());
                }
                Ok(())
            }
            // Nor can the list of a resumed client be compared before.
            (ClientCommand::LockInfo { info, .. }, CommandError::Busy(_)) if self.may_compare_later(info) => {
                self.is_early = true;
                self.queue.push_front(job.clone());
                Ok(())
            }
            // An earlier copy of it may be done: this one was not applied, or found that what the request got is being
            // released.
            (_, CommandError::NotProposed(_) | CommandError::Busy(_)) if self.may_be_done(job, tries) => {
                self.on_command_failed(job, unknown_outcome()).await
            }
            (
                ClientCommand::Requery(_) | ClientCommand::RequeryPermits(_) | ClientCommand::RequeryAwait(_),
                refusal @ (CommandError::NotProposed(_) | CommandError::Busy(_)),
            ) => self.on_command_failed(job, ApiError::from(refusal)).await,
            // An earlier copy of this message may have ended it.
            (ClientCommand::Close, CommandError::SessionNotFound(_)) => {
                self.end_with(EndReason::Ended(SessionEnd::Closed)).await
            }
            (
                _,
                refusal @ (CommandError::SessionNotFound(_)
                | CommandError::Superseded { .. }
                | CommandError::NamespaceNotFound),
            ) => self.on_session_rejected(refusal).await,
            (ClientCommand::Requery(request_id) | ClientCommand::RequeryPermits(request_id), refusal) => {
                self.requests.remove(request_id);
                self.permits.remove(request_id);
                let (request_id, why) = (request_id.clone(), RefusalCause::Fault(ApiError::from(refusal)));
                self.send(ServerMessage::Refused { request_id, why }).await
            }
            (
                ClientCommand::RequeryArrival(request_id) | ClientCommand::Leave(Release { request_id, .. }),
                refusal @ (CommandError::PrimitiveNotFound { .. } | CommandError::InvalidArgument(_)),
            ) => self.on_arrival_gone(request_id, refusal).await,
            (ClientCommand::RequeryAwait(request_id), refusal) => {
                self.on_await_rejected(request_id, ApiError::from(refusal)).await
            }
            (job, refusal) => self.on_command_failed(job, ApiError::from(refusal)).await,
        }
    }

    /// Handles an error that rejects every command of this connection.
    pub(super) async fn on_session_rejected(&mut self, refusal: CommandError) -> Result<(), CloseReason> {
        match refusal {
            CommandError::SessionNotFound(_) => {
                self.on_session_gone();
                Ok(())
            }
            CommandError::Superseded { .. } => self.end_with(EndReason::Superseded).await,
            CommandError::NamespaceNotFound => self.end_with(EndReason::Ended(SessionEnd::NamespaceDeleted)).await,
            other => Err(CloseReason::Failed(ApiError::from(other))),
        }
    }
}

/// Returns the later command in the same batch that ended the request of this one. Sending the request again would
/// execute it a second time. So the client is notified of the end only, by the release of that name if there is one.
fn ended_by<'a>(job: &ClientCommand, later: &'a [ClientCommand]) -> Option<&'a ClientCommand> {
    let request_id = job.acquire_request_id()?;
    let is_its_release =
        |other: &&ClientCommand| matches!(other, ClientCommand::Release(release) if release.request_id == request_id);
    later.iter().find(is_its_release).or_else(|| later.iter().find(|other| other.ends(request_id)))
}
