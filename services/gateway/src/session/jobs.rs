//! What a connection has to do at its shard, one thing after the other.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_core::{
    Acquire, BelievedHold, Limits, LocksCommand, Metadata, Query, Release as ReleaseCommand, Reply, Scopes, ToRelease,
    Wait,
};

use super::channel::Ending;
use super::checks;
use super::live::Live;
use super::message::{Lock, LockInfo, Pending, RefusedFor, Release, ServerMessage};
use super::place::Place;
use crate::error::{ApiError, ApiResult};
use crate::service::Tenant;
use crate::validate;

/// Holds asked about at once after a change of leader.
const BELIEVED_AT_ONCE: usize = 1_000;
/// What goes into one command: so many jobs, and as long as it has fewer bytes of paths.
const JOBS_AT_ONCE: usize = 128;
const BYTES_AT_ONCE: usize = 64 * 1_024;

/// One thing to do.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Lock(Arc<Lock>),
    /// How a request that waits stands with a new leader.
    Again(String),
    Release(Release),
    ReleaseAll,
    LockInfo(LockInfo),
    /// Whether these holds are still there, after a change of leader.
    Believed(Vec<BelievedHold>),
    Close,
    /// The client broke the protocol.
    Malformed(ApiError),
}

/// Jobs that one command does, in their order.
pub(super) struct Running {
    pub(super) jobs: Vec<Job>,
    /// How often they were sent before, as far as the shard ignored them.
    pub(super) tries: u8,
    pub(super) answer: BoxFuture<'static, ApiResult<Reply>>,
}

impl Running {
    /// Whether it asks for the request.
    pub(super) fn asks_for(&self, request_id: &str) -> bool {
        self.jobs.iter().any(|job| job.asks_for() == Some(request_id))
    }

    /// Whether it may bring holds that are not known yet: it asks for some, or lists those of before a resume.
    pub(super) fn brings_holds(&self) -> bool {
        self.jobs.iter().any(|job| job.asks_for().is_some() || matches!(job, Job::LockInfo(_)))
    }

    /// Whether it ends the request.
    pub(super) fn ends(&self, request_id: &str) -> bool {
        self.jobs.iter().any(|job| job.ends(request_id))
    }
}

impl Job {
    /// The request that it asks for.
    pub(super) fn asks_for(&self) -> Option<&str> {
        match self {
            Self::Lock(lock) => Some(&lock.request_id),
            Self::Again(request_id) => Some(request_id),
            _ => None,
        }
    }

    /// Whether it ends the request.
    pub(super) fn ends(&self, request_id: &str) -> bool {
        match self {
            Self::Release(release) => release.request_id == request_id,
            Self::ReleaseAll | Self::Close => true,
            _ => false,
        }
    }

    /// Whether its answer says more than that it was done.
    pub(super) fn needs_answer(&self) -> bool {
        !matches!(self, Self::Release(_) | Self::ReleaseAll)
    }

    /// Whether others like it may go to the shard in the same command.
    fn goes_with_others(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Again(_) | Self::Release(_) | Self::ReleaseAll)
    }

    /// About how much it adds to a command.
    fn bytes(&self) -> usize {
        match self {
            Self::Lock(lock) => lock.resources.iter().flat_map(|resource| &resource.path).map(String::len).sum(),
            _ => 0,
        }
    }
}

impl Live<'_> {
    /// Sends the next command, unless one is under way. Whatever waits goes into it, as far as it can: the longer
    /// the shard takes, the more it is asked at once.
    pub(super) async fn start_next(&mut self) -> Result<(), Ending> {
        while self.running.is_none() && !self.is_gone() {
            let Some(job) = self.queue.pop_front() else { return Ok(()) };
            let mut bytes = job.bytes();
            let mut jobs = vec![job];
            while jobs[0].goes_with_others() && jobs.len() < JOBS_AT_ONCE && bytes < BYTES_AT_ONCE {
                if !self.queue.front().is_some_and(Job::goes_with_others) {
                    break;
                }
                jobs.extend(self.queue.pop_front().inspect(|job| bytes += job.bytes()));
            }
            self.start(jobs, 0).await?;
        }
        Ok(())
    }

    /// Sends a command under the next numbers, or tells why it is not sent.
    pub(super) async fn start(&mut self, jobs: Vec<Job>, tries: u8) -> Result<(), Ending> {
        let mut sent = Vec::with_capacity(jobs.len());
        let mut commands = Vec::with_capacity(jobs.len());
        for job in jobs {
            if let Job::Believed(held) = &job {
                let answer = self.ask_believed(held);
                self.running = Some(Running { jobs: vec![job], tries, answer });
                return Ok(());
            }
            if let Some(command) = self.command_for(&job, tries).await? {
                self.seq += 1;
                sent.push(job);
                commands.push(command);
            }
        }
        let command = match commands.len() {
            0 => return Ok(()),
            1 => commands.remove(0),
            _ => LocksCommand::InOrder(commands),
        };
        self.running = Some(Running { jobs: sent, tries, answer: Arc::clone(&self.place).command(command).boxed() });
        Ok(())
    }

    /// What a job asks of the shard; nothing when the client was told why it does not, or nobody waits for it.
    async fn command_for(&mut self, job: &Job, tries: u8) -> Result<Option<LocksCommand>, Ending> {
        let command = match job {
            Job::Malformed(error) => return Err(Ending::Malformed(error.clone())),
            Job::Lock(lock) => match self.admit(lock, tries) {
                Ok(acquire) => LocksCommand::Acquire(acquire),
                Err(error) => {
                    let request_id = lock.request_id.clone();
                    self.tell(ServerMessage::Refused { request_id, why: RefusedFor::Fault(error) }).await?;
                    return Ok(None);
                }
            },
            Job::Again(request_id) => match self.ledger.waiting(request_id).map(|lock| self.acquire_again(&lock)) {
                Some(Ok(acquire)) => LocksCommand::Acquire(acquire),
                // It was settled meanwhile; or its caller is no longer let in, which is told elsewhere.
                _ => return Ok(None),
            },
            Job::Release(release) => {
                if let Err(error) = validate::request_id(&release.request_id) {
                    let request_id = Some(release.request_id.clone());
                    self.tell(ServerMessage::Error { error, request_id }).await?;
                    return Ok(None);
                }
                self.release(ToRelease::Request { request_id: release.request_id.clone() })
            }
            Job::ReleaseAll => self.release(ToRelease::All),
            Job::LockInfo(info) => self.lock_info(info),
            Job::Close => {
                let (namespace, session_id) = (self.place.namespace.clone(), self.place.session_id.clone());
                LocksCommand::CloseSession { namespace, session_id, message: self.place.stamp(self.seq + 1) }
            }
            Job::Believed(_) => return Ok(None),
        };
        Ok(Some(command))
    }

    fn ask_believed(&self, held: &[BelievedHold]) -> BoxFuture<'static, ApiResult<Reply>> {
        // As they are now: since they were listed some were released, or are held in another mode.
        let still = |hold: &BelievedHold| {
            let mode = self.ledger.mode(&hold.path, hold.fencing_token)?;
            Some(BelievedHold { mode, ..hold.clone() })
        };
        let held: Vec<BelievedHold> = held.iter().filter_map(still).collect();
        let (namespace, session_id) = (self.place.namespace.clone(), self.place.session_id.clone());
        Arc::clone(&self.place).query(Query::Believed { namespace, session_id, held }).boxed()
    }

    /// After a change of leader: what became of all that the client waits for and believes to hold.
    pub(super) fn ask_what_changed(&mut self) {
        for request_id in self.ledger.all_waiting().into_iter().rev() {
            self.queue.push_front(Job::Again(request_id));
        }
        for held in self.ledger.believed().chunks(BELIEVED_AT_ONCE) {
            self.queue.push_front(Job::Believed(held.to_vec()));
        }
    }

    /// The messages that a resumed client has no answer to, before all that it says now.
    pub(super) fn do_pending(&mut self, pending: &[Pending]) {
        let locks = pending.iter().filter_map(|message| match message {
            Pending::Lock(lock) => Some(lock.request_id.clone()),
            Pending::Release(_) => None,
        });
        self.taken_up = locks.collect();
        for message in pending.iter().rev() {
            self.queue.push_front(match message {
                Pending::Lock(lock) => Job::Lock(Arc::new(lock.clone())),
                Pending::Release(release) => Job::Release(release.clone()),
            });
        }
    }

    /// A request of the client counts against its account's rate, once.
    fn admit(&self, lock: &Lock, tries: u8) -> ApiResult<Acquire> {
        let tenant = self.tenant()?;
        // A repeat asks for nothing new: refused, its client would forget what it has.
        let is_new = tries == 0 && self.ledger.standing(&lock.request_id).is_none();
        if !is_new || self.taken_up.contains(&lock.request_id) {
            return self.acquire_again(lock);
        }
        let acquire = self.acquire(lock, tenant.limits())?;
        self.place.service.inner.rates.admit(tenant.account)?;
        Ok(acquire)
    }

    fn acquire_again(&self, lock: &Lock) -> ApiResult<Acquire> {
        self.acquire(lock, &validate::known(self.tenant()?.limits()))
    }

    fn tenant(&self) -> ApiResult<Tenant<'_>> {
        self.caller.as_ref().map_err(Clone::clone)?.require(Scopes::LOCKS_WRITE)
    }

    fn acquire(&self, lock: &Lock, limits: &Limits) -> ApiResult<Acquire> {
        Ok(Acquire {
            namespace: self.place.namespace.clone(),
            owner: self.place.owner(lock.holder.clone()),
            claims: checks::claims(lock, limits)?,
            ttl_ms: None,
            transition_ms: lock.transition_ms,
            metadata: Metadata::new(),
            fencing_token: None,
            asked_expires_at_ns: None,
            wait: if lock.only_try { Wait::No } else { Wait::Unlimited },
            allow_upgrade: lock.allow_upgrade,
            request_id: Some(lock.request_id.clone()),
            attempt: 0,
            message: self.place.stamp(self.seq + 1),
        })
    }

    /// Of the whole session: request ids are its own, whichever thread of it used them.
    fn release(&self, what: ToRelease) -> LocksCommand {
        LocksCommand::Release(ReleaseCommand {
            namespace: self.place.namespace.clone(),
            owner: self.place.owner(None),
            what,
            message: self.place.stamp(self.seq + 1),
        })
    }

    fn lock_info(&self, info: &LockInfo) -> LocksCommand {
        let Place { namespace, session_id, .. } = &*self.place;
        let request_id = |message: &Pending| match message {
            Pending::Lock(lock) => lock.request_id.clone(),
            Pending::Release(release) => release.request_id.clone(),
        };
        LocksCommand::LockInfo(holdfast_core::LockInfo {
            namespace: namespace.clone(),
            session_id: session_id.clone(),
            message: self.place.stamp(self.seq + 1),
            held: info.held.clone(),
            pending: info.pending.iter().map(request_id).collect(),
        })
    }
}
