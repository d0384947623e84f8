//! What the shard answers to commands, as the client is told.

use std::sync::Arc;

use holdfast_core::{
    AcquireOutcome, Answer, LockView, LostHold, NotGranted, Reason, Refusal, Reply, RevokedReason, SessionEnd,
};

use super::channel::Ending;
use super::jobs::{Job, Running};
use super::ledger::Standing;
use super::live::Live;
use super::message::{EndReason, Lock, RefusedFor, ServerMessage};
use crate::error::{ApiError, ApiResult, Code};
use crate::service::Timestamp;
use crate::service::ask::unexpected;
use crate::service::show::Shown;

/// How often a command is sent again that the shard took for a copy of itself.
const TRIES: u8 = 3;

impl Live<'_> {
    /// The command under way was answered.
    pub(super) async fn replied(&mut self, reply: ApiResult<Reply>) -> Result<(), Ending> {
        let Some(Running { jobs, tries, .. }) = self.running.take() else { return Ok(()) };
        match reply {
            Err(error) => {
                for job in &jobs {
                    self.failed(job, error.clone()).await?;
                }
            }
            Ok(Reply { outcome: Ok(Answer::InOrder(outcomes)), clock_ms, .. }) => {
                self.all_answered(jobs, tries, outcomes, clock_ms).await?;
            }
            Ok(Reply { outcome, clock_ms, .. }) => self.all_answered(jobs, tries, vec![outcome], clock_ms).await?,
        }
        if self.running.is_none() {
            for notice in std::mem::take(&mut self.early) {
                self.noticed(notice).await?;
            }
        }
        Ok(())
    }

    async fn all_answered(
        &mut self,
        jobs: Vec<Job>,
        tries: u8,
        outcomes: Vec<Result<Answer, Refusal>>,
        clock_ms: u64,
    ) -> Result<(), Ending> {
        // A copy came first, and what it came to was lost with the answer to it.
        let is_copy = outcomes.contains(&Ok(Answer::Ignored));
        let mut again = Vec::new();
        for (at, (job, outcome)) in jobs.iter().zip(outcomes).enumerate() {
            let end = if is_copy { end_of(job, &jobs[at + 1..]) } else { None };
            match (end, outcome) {
                (Some(Job::ReleaseAll), _) => {
                    // Of requests that are known it is told when the answer to that has its turn.
                    if let Some(request_id) = job.asks_for().filter(|id| self.ledger.standing(id).is_none()) {
                        self.tell(ServerMessage::Ready { request_id: Some(request_id.to_owned()) }).await?;
                    }
                }
                (Some(_), _) => {}
                (None, Err(refusal)) => self.refused(job, refusal).await?,
                (None, Ok(Answer::Ignored)) if job.needs_answer() => again.push(job.clone()),
                (None, Ok(answer)) => self.done(job, answer, clock_ms).await?,
            }
        }
        if tries < TRIES && !again.is_empty() {
            return self.start(again, tries + 1).await;
        }
        for job in &again {
            self.failed(job, unknown()).await?;
        }
        Ok(())
    }

    async fn done(&mut self, job: &Job, answer: Answer, clock_ms: u64) -> Result<(), Ending> {
        match (job, answer) {
            (Job::Lock(lock), Answer::Acquired { outcome, locks }) => {
                let lock = Arc::clone(lock);
                self.acquired(&lock, outcome, &locks, clock_ms, true).await
            }
            (Job::Again(request_id), Answer::Acquired { outcome, locks }) => {
                let Some(lock) = self.ledger.waiting(request_id) else { return Ok(()) };
                self.acquired(&lock, outcome, &locks, clock_ms, false).await
            }
            (Job::Release(release), answer) => {
                match answer {
                    Answer::Released { locks, released: true } => self.ledger.released(&release.request_id, &locks),
                    _ => self.ledger.released_unseen(&release.request_id),
                }
                self.tell(ServerMessage::Ready { request_id: Some(release.request_id.clone()) }).await
            }
            (Job::ReleaseAll, _) => self.all_released().await,
            (Job::LockInfo(info), Answer::Reconciled { lost, .. }) => {
                info.held.iter().for_each(|held| self.ledger.remember(held.clone()));
                self.lost(lost, clock_ms).await?;
                self.do_pending(&info.pending);
                Ok(())
            }
            (Job::Believed(_), Answer::Reconciled { lost, .. }) => self.lost(lost, clock_ms).await,
            (Job::Close, Answer::Done) => self.end(EndReason::Ended(SessionEnd::Closed)).await,
            (_, answer) => Err(Ending::Failed(unexpected(&answer))),
        }
    }

    /// What a request came to. That it still waits is told to a client that asked only.
    async fn acquired(
        &mut self,
        lock: &Arc<Lock>,
        outcome: AcquireOutcome,
        locks: &[LockView],
        clock_ms: u64,
        asked: bool,
    ) -> Result<(), Ending> {
        let request_id = lock.request_id.clone();
        match outcome {
            AcquireOutcome::Granted { fencing_token } => {
                self.ledger.granted(lock, fencing_token, locks);
                self.tell(ServerMessage::Acquired { request_id, fencing_token }).await
            }
            AcquireOutcome::Enqueued(enqueued) => {
                self.ledger.enqueued(lock, enqueued.wait);
                if !asked {
                    return Ok(());
                }
                let namespace = self.place.namespace.name.clone();
                let shown = Shown::new(&namespace, clock_ms, Timestamp::now()).reason(enqueued.not_granted);
                let (queue_position, blockers) = (shown.queue_position, shown.blockers);
                self.tell(ServerMessage::Enqueued { request_id, queue_position, blockers }).await
            }
            AcquireOutcome::Refused(refusal) => {
                // A try of a request that waits leaves it waiting; one that lost a hold has to be released.
                let stays = match self.ledger.standing(&request_id) {
                    Some(Standing::Waits(_)) => refusal.reason == Reason::Queued,
                    Some(Standing::Holds) => refusal.reason == Reason::NotHeld,
                    None => false,
                };
                if !stays {
                    self.ledger.forget(&request_id);
                }
                self.tell_refused(request_id, *refusal, clock_ms).await
            }
        }
    }

    pub(super) async fn tell_refused(
        &mut self,
        request_id: String,
        refusal: NotGranted,
        clock_ms: u64,
    ) -> Result<(), Ending> {
        let namespace = self.place.namespace.name.clone();
        let why = RefusedFor::Reason(Shown::new(&namespace, clock_ms, Timestamp::now()).reason(refusal));
        self.tell(ServerMessage::Refused { request_id, why }).await
    }

    async fn all_released(&mut self) -> Result<(), Ending> {
        let released = self.ledger.released_all();
        if released.is_empty() {
            return self.tell(ServerMessage::Ready { request_id: None }).await;
        }
        for request_id in released {
            self.tell(ServerMessage::Ready { request_id: Some(request_id) }).await?;
        }
        Ok(())
    }

    /// Holds that the client believed in.
    async fn lost(&mut self, lost: Vec<LostHold>, clock_ms: u64) -> Result<(), Ending> {
        for hold in lost {
            if !self.ledger.lost(&hold.path, hold.fencing_token) {
                continue;
            }
            let namespace = self.place.namespace.name.clone();
            let shown = Shown::new(&namespace, clock_ms, Timestamp::now());
            let current_owner = hold.current_owner.map(|holder| shown.holder(holder));
            let reason = RevokedReason::Duplicate;
            self.tell(ServerMessage::Revoked { path: hold.path.0, reason, current_owner }).await?;
        }
        Ok(())
    }

    /// How many signs of life were answered, and how.
    pub(super) async fn kept(&mut self, owed: usize, reply: ApiResult<Reply>) -> Result<(), Ending> {
        let error = match reply.map(|reply| reply.outcome) {
            Ok(Ok(Answer::Session(session))) => {
                for _ in 0..owed {
                    self.tell(ServerMessage::KeptAlive { remaining_ms: session.remaining_ms }).await?;
                }
                return Ok(());
            }
            Ok(Ok(answer)) => return Err(Ending::Failed(unexpected(&answer))),
            Ok(Err(refusal)) => return self.lost_by(refusal).await,
            Err(error) => error,
        };
        for _ in 0..owed {
            self.tell(ServerMessage::Error { error: error.clone(), request_id: None }).await?;
        }
        Ok(())
    }

    /// No answer came, or none that says what was done.
    async fn failed(&mut self, job: &Job, error: ApiError) -> Result<(), Ending> {
        let request_id = match job {
            Job::Lock(lock) if error.code.has_no_side_effects() => {
                let why = RefusedFor::Fault(error);
                return self.tell(ServerMessage::Refused { request_id: lock.request_id.clone(), why }).await;
            }
            Job::Lock(lock) => Some(lock.request_id.clone()),
            Job::Release(release) => Some(release.request_id.clone()),
            // All of it is asked about once more when a leader is followed again.
            Job::Again(_) | Job::Believed(_) => {
                self.ear.listen_anew();
                return Ok(());
            }
            // What the client is to believe is not known: it has to resume once more.
            Job::LockInfo(_) => return Err(Ending::Failed(error)),
            Job::ReleaseAll | Job::Close | Job::Malformed(_) => None,
        };
        self.tell(ServerMessage::Error { error, request_id }).await
    }

    async fn refused(&mut self, job: &Job, refusal: Refusal) -> Result<(), Ending> {
        match (job, refusal) {
            // An earlier copy of the very message may have been the one that ended it.
            (Job::Close, Refusal::SessionNotFound(_)) => self.end(EndReason::Ended(SessionEnd::Closed)).await,
            (_, refusal @ (Refusal::SessionNotFound(_) | Refusal::Superseded { .. } | Refusal::NamespaceNotFound)) => {
                self.lost_by(refusal).await
            }
            (Job::Again(request_id), refusal) => {
                self.ledger.forget(request_id);
                let (request_id, why) = (request_id.clone(), RefusedFor::Fault(ApiError::from(refusal)));
                self.tell(ServerMessage::Refused { request_id, why }).await
            }
            (job, refusal) => self.failed(job, ApiError::from(refusal)).await,
        }
    }

    /// A refusal of everything that this connection may ask.
    pub(super) async fn lost_by(&mut self, refusal: Refusal) -> Result<(), Ending> {
        match refusal {
            Refusal::SessionNotFound(_) => {
                self.session_is_gone();
                Ok(())
            }
            Refusal::Superseded { .. } => self.end(EndReason::Superseded).await,
            Refusal::NamespaceNotFound => self.end(EndReason::Ended(SessionEnd::NamespaceDeleted)).await,
            other => Err(Ending::Failed(ApiError::from(other))),
        }
    }
}

/// What ended a job's request, of those that went to the shard with it and were done after it. To ask for the request
/// again would be to do it a second time: its caller is told of the end only, by the release of that name if there is one.
fn end_of<'a>(job: &Job, later: &'a [Job]) -> Option<&'a Job> {
    let request_id = job.asks_for()?;
    let is_its_release = |other: &&Job| matches!(other, Job::Release(release) if release.request_id == request_id);
    later.iter().find(is_its_release).or_else(|| later.iter().find(|other| other.ends(request_id)))
}

fn unknown() -> ApiError {
    ApiError::new(Code::DeadlineExceeded, "the shard may have done it before, and does not tell; ask again")
}
