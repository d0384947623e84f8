//! The commands of a connection to its shard, sent one after the other.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_api::session_message::{CountDown, Lock, LockInfo, Pending, ServerMessage};
use holdfast_api::{ApiResult, LockName, validate};
use holdfast_types::{
    CommandError, CountDown as CountDownCommand, LatchCommand, LatchRef, Limits, LocksCommand, Query,
    Release as ReleaseCommand, ReleaseTarget, Reply, ReportedHold, Scopes, SessionAcquire, SessionRequest,
    SessionTerms, Wait,
};
use tokio::time::sleep;

use super::channel::CloseReason;
use super::client_command::{ClientCommand, InFlightBatch};
use super::connection::SessionConnection;
use super::handle::SessionHandle;
use super::message_bytes::{acquire_bytes, arrive_bytes, await_bytes, count_down_bytes, lock_bytes};
use super::protocol;
use super::unanswered::unknown_outcome;
use crate::auth::TenantContext;

/// Maximum holds in one query after a change of leader.
pub(super) const MAX_RECONCILED_HOLDS: usize = 1_000;
/// Limits of one command to the shard: a number of client commands, fewer when they have many claims, and a bound on
/// the bytes of their paths. The shard executes a command as a whole while other calls wait.
pub(super) const MAX_BATCH_COMMANDS: usize = 32;
pub(super) const MAX_BATCH_CLAIMS: usize = 64;
const MAX_BATCH_BYTES: usize = 32 * 1_024;
/// Entries of a `lock_info` that is no more work than a call or two; and the maximum holds of permits in one report.
const MAX_LIGHT_REPORT: usize = 512;

/// Delay before a leader is asked again whose table was not complete.
const EARLY_DELAY: Duration = Duration::from_millis(250);

impl SessionConnection<'_> {
    /// Sends the next command, unless one is in flight. It takes in as many queued client commands as it can: the
    /// slower the shard, the larger the batch.
    pub(super) async fn start_next(&mut self) -> Result<(), CloseReason> {
        while self.in_flight.is_none() && self.report.is_none() && !self.is_session_gone() {
            let Some(job) = self.queue.pop_front() else { return self.start_unqueued().await };
            let job = self.first_of(job)?;
            let (mut claims, mut bytes) = self.size_of(&job);
            let destination = self.destination_of(&job);
            let mut jobs = vec![job];
            while jobs[0].is_batchable() && jobs.len() < MAX_BATCH_COMMANDS && bytes < MAX_BATCH_BYTES {
                let fits = |next: &&ClientCommand| next.is_batchable() && self.destination_of(next) == destination;
                let Some(next) = self.queue.front().filter(fits) else { break };
                let (more_claims, more_bytes) = self.size_of(next);
                if claims + more_claims > MAX_BATCH_CLAIMS {
                    break;
                }
                (claims, bytes) = (claims + more_claims, bytes + more_bytes);
                jobs.extend(self.queue.pop_front());
            }
            self.start(jobs, 0).await?;
        }
        Ok(())
    }

    /// Returns what to send first of a command. A `lock_info` goes back to the queue until the shard has all its holds
    /// of permits.
    fn first_of(&mut self, mut job: ClientCommand) -> Result<ClientCommand, CloseReason> {
        if let ClientCommand::LockInfo { info, .. } = &job {
            let tenant = self.tenant().map_err(CloseReason::Failed)?;
            let entries = info.held.len() + info.permits.len() + info.granted.len() + info.pending.len();
            protocol::check_lock_info(entries, tenant.limits()).map_err(CloseReason::Malformed)?;
        }
        let Some(held) = job.next_permits(MAX_LIGHT_REPORT) else { return Ok(job) };
        self.queue.push_front(job);
        Ok(ClientCommand::ReportPermits(held))
    }

    /// Returns whether the command is one of rules 2, and whether it is for a lock table in the leader's memory. Others
    /// are not sent with it: they would be refused with it where these rules do not apply yet, or by the log.
    fn destination_of(&self, job: &ClientCommand) -> (bool, bool) {
        use ClientCommand::{Lock, Release, ReleaseAll, Requery};
        let is_for_table = matches!(job, Lock(_) | Requery(_) | Release(_) | ReleaseAll);
        (self.needs_later_rules(job), self.session.table_epoch.is_some() && is_for_table)
    }

    /// Returns whether the command is one of rules 2.
    fn needs_later_rules(&self, job: &ClientCommand) -> bool {
        let has_terms = |lock: &Lock| lock.at_least_ms > 0 || !lock.metadata.is_empty();
        match job {
            ClientCommand::Lock(lock) => has_terms(lock),
            ClientCommand::Requery(request_id) => self.requests.lock(request_id).is_some_and(has_terms),
            ClientCommand::Release(release) => release.unheard || self.permits.state(&release.request_id).is_some(),
            job => job.is_about_things(),
        }
    }

    /// Returns how many claims a command makes or ends, or what work is as much, and roughly how many bytes of paths it
    /// adds.
    fn size_of(&self, job: &ClientCommand) -> (usize, usize) {
        let lock = match job {
            ClientCommand::Lock(lock) => Some(&**lock),
            ClientCommand::Requery(request_id) => self.requests.lock(request_id),
            // Only its claims go to the shard.
            ClientCommand::Release(release) => {
                let claims = self.requests.lock(&release.request_id).map_or(1, |lock| lock.resources.len());
                return (claims.max(self.permits.units(&release.request_id)).min(MAX_BATCH_CLAIMS), 0);
            }
            ClientCommand::RequeryPermits(request_id) => {
                return (self.permits.units(request_id).clamp(1, MAX_BATCH_CLAIMS), 0);
            }
            ClientCommand::AcquirePermits(acquire) => {
                let units = usize::try_from(acquire.wanted.units()).unwrap_or(MAX_BATCH_CLAIMS);
                return (units.min(MAX_BATCH_CLAIMS), acquire.path.iter().map(String::len).sum());
            }
            ClientCommand::Arrive(arrive) => return (1, arrive.path.iter().map(String::len).sum()),
            ClientCommand::CountDown(count) => {
                let bytes = count.ids.iter().flatten().chain(&count.path).map(String::len).sum();
                let units =
                    validate::jobs(count.ids.as_deref(), count.ranges.as_deref()).map_or(1, |jobs| jobs.units());
                return (usize::try_from(units).unwrap_or(MAX_BATCH_CLAIMS).min(MAX_BATCH_CLAIMS), bytes);
            }
            ClientCommand::Await(awaits) => return (1, awaits.condition.len()),
            ClientCommand::Signal(signal) => return (1, signal.condition.len()),
            // Ends all holds of the session.
            ClientCommand::ReleaseAll => return (MAX_BATCH_CLAIMS, 0),
            _ => None,
        };
        let Some(lock) = lock else { return (1, 0) };
        let bytes = lock.resources.iter().flat_map(|resource| &resource.path).map(String::len).sum();
        (lock.resources.len(), bytes)
    }

    /// Sends a command under the next numbers, or reports why it was not sent.
    pub(super) async fn start(&mut self, jobs: Vec<ClientCommand>, attempts: u8) -> Result<(), CloseReason> {
        let mut sent = Vec::with_capacity(jobs.len());
        let mut commands = Vec::with_capacity(jobs.len());
        for job in jobs {
            if let Some(reply) = self.query_for(&job) {
                let reply = self.not_too_early(&job, reply);
                self.in_flight = Some(InFlightBatch::new(vec![job], attempts, reply));
                return Ok(());
            }
            if let Some(command) = self.command_for(&job, attempts).await? {
                self.seq += 1;
                sent.push(job);
                commands.push(command);
            }
        }
        let command = match commands.len() {
            0 => return Ok(()),
            1 => commands.remove(0),
            _ => LocksCommand::Batch(commands),
        };
        let session = Arc::clone(&self.session);
        let reply =
            if is_heavy(&command) { session.heavy_command(command).boxed() } else { session.command(command).boxed() };
        let reply = self.not_too_early(&sent[0], reply);
        self.in_flight = Some(InFlightBatch::new(sent, attempts, reply));
        Ok(())
    }

    /// Delays what asks a leader what the session has whose table was not complete at the last time. A leader may
    /// wait itself before it refuses it.
    fn not_too_early(
        &mut self,
        first: &ClientCommand,
        reply: BoxFuture<'static, ApiResult<Reply>>,
    ) -> BoxFuture<'static, ApiResult<Reply>> {
        let compares = first.is_reconciliation() || matches!(first, ClientCommand::LockInfo { .. });
        if !compares || !std::mem::take(&mut self.is_early) {
            return reply;
        }
        async move {
            sleep(EARLY_DELAY).await;
            reply.await
        }
        .boxed()
    }

    /// Returns the shard command of a client command. Returns none when the client was notified of a rejection, or when
    /// no reply is needed any more.
    async fn command_for(&mut self, job: &ClientCommand, tries: u8) -> Result<Option<LocksCommand>, CloseReason> {
        let command = match job {
            ClientCommand::Malformed(error) => return Err(CloseReason::Malformed(error.clone())),
            ClientCommand::Lock(lock) => match self.admit(lock, tries) {
                // Behind those that came before it.
                Ok(_) if self.has_unqueued && self.may_be_unqueued(lock, tries) => {
                    self.wait_for_table(lock).await?;
                    return Ok(None);
                }
                Ok(request) => self.request(request),
                Err(error) => {
                    let error = self.unsent_error(job, tries, error);
                    self.on_command_failed(job, error).await?;
                    return Ok(None);
                }
            },
            ClientCommand::Requery(request_id) => {
                match self.requests.waiting(request_id).map(|lock| self.repeat_acquire_command(&lock)) {
                    Some(Ok(request)) => self.request(request),
                    // It was resolved meanwhile; or its caller lost access, which is reported elsewhere.
                    _ => return Ok(None),
                }
            }
            ClientCommand::Release(release) => {
                if let Err(error) = validate::request_id(&release.request_id) {
                    let request_id = Some(release.request_id.clone());
                    self.send(ServerMessage::Error { error, request_id }).await?;
                    return Ok(None);
                }
                if let Some(command) = self.release_permits_command(&release.request_id) {
                    return Ok(Some(command));
                }
                let request_id = release.request_id.clone();
                self.requests.mark_released(&request_id);
                self.shown.take_position(&request_id);
                if release.unheard {
                    return Ok(Some(self.request(SessionRequest::ReleaseUnheard { request_id })));
                }
                let is_known = self.requests.state(&request_id).is_some();
                self.request(SessionRequest::Release { request_id, is_known })
            }
            ClientCommand::ReleaseAll => {
                self.requests.mark_all_released();
                self.release_all_command()
            }
            ClientCommand::LockInfo { info, .. } => {
                if !self.take_list(info).await? {
                    return Ok(None);
                }
                self.lock_info_command(info)
            }
            ClientCommand::ReportPermits(held) => self.report_permits_command(held),
            ClientCommand::Close => {
                let (namespace, session_id) = (self.session.namespace.clone(), self.session.session_id.clone());
                LocksCommand::CloseSession { namespace, session_id, message: self.session.message_seq(self.seq + 1) }
            }
            other => return self.command_about_things(other, tries).await,
        };
        Ok(Some(command))
    }

    /// As [`Self::command_for`], for other kinds of things than locks.
    async fn command_about_things(
        &mut self,
        job: &ClientCommand,
        tries: u8,
    ) -> Result<Option<LocksCommand>, CloseReason> {
        let command = match job {
            ClientCommand::Invalid(invalid) => Err(invalid.error.clone()),
            ClientCommand::CountDown(count) => self.count_down_command(count, tries),
            ClientCommand::AcquirePermits(acquire) => self.admit_permits(acquire, tries),
            ClientCommand::Arrive(arrive) => self.admit_arrival(arrive, tries),
            ClientCommand::Leave(leave) => self.leave_command(&leave.request_id),
            ClientCommand::Await(awaits) => self.admit_await(awaits, tries),
            ClientCommand::Signal(signal) => self.admit_signal(signal, tries),
            ClientCommand::RequeryAwait(request_id) => return Ok(self.await_command(request_id, true)),
            // If its caller lost access, that is reported elsewhere.
            ClientCommand::RequeryPermits(request_id) => match self.permits.waiting(request_id) {
                Some(acquire) => return Ok(self.admit_permits(&acquire, 1).ok()),
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        match command {
            Ok(command) => Ok(Some(command)),
            Err(error) => {
                let error = self.unsent_error(job, tries, error);
                self.on_command_failed(job, error).await?;
                Ok(None)
            }
        }
    }

    /// Returns the reply to a command of the client that is a query.
    fn query_for(&self, job: &ClientCommand) -> Option<BoxFuture<'static, ApiResult<Reply>>> {
        match job {
            ClientCommand::ReconcileHolds(held) => Some(self.query_reconcile_holds(held)),
            ClientCommand::ReconcilePermits(held) => Some(self.query_reconcile_permits(held)),
            ClientCommand::RequeryArrival(request_id) => self.query_arrival(request_id),
            _ => None,
        }
    }

    fn query_reconcile_holds(&self, held: &[ReportedHold]) -> BoxFuture<'static, ApiResult<Reply>> {
        // Takes their current state: since they were listed, some were released or changed their mode.
        let still = |hold: &ReportedHold| {
            let mode = self.requests.mode(&hold.path, hold.fencing_token)?;
            Some(ReportedHold { mode, ..hold.clone() })
        };
        let held: Vec<ReportedHold> = held.iter().filter_map(still).collect();
        let (namespace, session_id) = (self.session.namespace.clone(), self.session.session_id.clone());
        Arc::clone(&self.session).query(Query::ReconcileHolds { namespace, session_id, held }).boxed()
    }

    /// After a change of leader, queries the state of everything that the client waits for and believes to hold.
    pub(super) fn queue_reconciliation(&mut self) {
        self.queue.remove_reconciliation();
        for request_id in self.requests.waiting_request_ids().into_iter().rev() {
            self.queue.push_front(ClientCommand::Requery(request_id));
        }
        for held in self.requests.client_view().chunks(MAX_RECONCILED_HOLDS) {
            self.queue.push_front(ClientCommand::ReconcileHolds(held.to_vec()));
        }
        self.queue_permit_reconciliation();
        self.queue_arrival_reconciliation();
        self.queue_await_reconciliation();
    }

    /// Queues the messages for which a resumed client has no reply, before all its new ones. Its requests count against
    /// the rate of the account, but none is refused for it: the client would forget what it may have.
    pub(super) fn queue_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        if let Ok(tenant) = self.tenant() {
            let bytes = pending.iter().filter_map(|message| match message {
                Pending::Lock(lock) => Some(lock_bytes(lock)),
                Pending::AcquirePermits(acquire) => Some(acquire_bytes(acquire)),
                Pending::Arrive(arrive) => Some(arrive_bytes(arrive)),
                Pending::Await(awaits) => Some(await_bytes(awaits)),
                Pending::Release(_) | Pending::Invalid(_) => None,
            });
            bytes.for_each(|bytes| self.session.service.inner.rates.count(tenant.account, bytes as u64));
        }
        let locks = pending.iter().filter_map(|message| match message {
            Pending::Lock(lock) => Some(lock.request_id.clone()),
            Pending::AcquirePermits(acquire) => Some(acquire.request_id.clone()),
            Pending::Arrive(arrive) => Some(arrive.request_id.clone()),
            Pending::Await(awaits) => Some(awaits.request_id.clone()),
            Pending::Release(_) | Pending::Invalid(_) => None,
        });
        self.unanswered.extend(locks);
        for message in pending.into_iter().rev() {
            self.queue.push_front(match message {
                Pending::Lock(lock) => ClientCommand::Lock(Arc::new(lock)),
                Pending::AcquirePermits(acquire) => ClientCommand::AcquirePermits(Arc::new(acquire)),
                Pending::Arrive(arrive) => ClientCommand::Arrive(Arc::new(arrive)),
                Pending::Await(awaits) => ClientCommand::Await(Arc::new(awaits)),
                Pending::Release(release) => ClientCommand::Release(release),
                Pending::Invalid(invalid) => ClientCommand::Invalid(invalid),
            });
        }
    }

    /// Counts a request of the client against its account's rate, once.
    fn admit(&self, lock: &Lock, tries: u8) -> ApiResult<SessionRequest> {
        let tenant = self.tenant()?;
        let request_id = &lock.request_id;
        let has_other = self.permits.state(request_id).is_some() || self.arrivals.get(request_id).is_some();
        if has_other || self.awaits.state(request_id).is_some() {
            return Err(CommandError::RequestIdTaken(lock.request_id.clone()).into());
        }
        // A repeat requests nothing new: after a rejection its client would forget what it has.
        if tries > 0 || self.is_known(&lock.request_id) {
            // It is new to the table after a resume or a release, and may be granted already.
            if tries == 0 && self.session.table_epoch.is_some() && self.requests.check_bytes(lock).is_err() {
                return Err(unknown_outcome());
            }
            return self.repeat_acquire_command(lock);
        }
        validate::at_least_ms(lock.at_least_ms, tenant.limits())?;
        validate::metadata(&lock.metadata, tenant.limits())?;
        if self.session.table_epoch.is_some() {
            self.requests.check_bytes(lock)?;
        }
        let request = Self::acquire_request(lock, tenant.limits(), lock.at_least_ms)?;
        self.session.service.inner.rates.admit(tenant.account, lock_bytes(lock) as u64)?;
        Ok(request)
    }

    fn repeat_acquire_command(&self, lock: &Lock) -> ApiResult<SessionRequest> {
        let tenant = self.tenant()?;
        let limits = tenant.limits();
        let at_least_ms = validate::repeated_at_least_ms(lock.at_least_ms, limits);
        Self::acquire_request(lock, &validate::limits_for_existing(limits), at_least_ms)
    }

    pub(super) fn tenant(&self) -> ApiResult<TenantContext<'_>> {
        self.caller.as_ref().map_err(Clone::clone)?.require(Scopes::LOCKS_WRITE)
    }

    fn acquire_request(lock: &Lock, limits: &Limits, at_least_ms: u64) -> ApiResult<SessionRequest> {
        let acquire = SessionAcquire {
            holder: lock.holder.clone(),
            claims: protocol::validate_claims(lock, limits)?,
            transition_ms: lock.transition_ms,
            wait: if lock.only_try { Wait::No } else { Wait::Unlimited },
            allow_upgrade: lock.allow_upgrade,
            request_id: lock.request_id.clone(),
        };
        if at_least_ms == 0 && lock.metadata.is_empty() {
            return Ok(SessionRequest::Acquire(acquire));
        }
        let terms = SessionTerms { at_least_ms, metadata: lock.metadata.clone() };
        Ok(SessionRequest::AcquireWith { acquire, terms })
    }

    /// Returns the command of a count-down, which counts against its account's rate once. It has no number: each job
    /// counts once however often it is reported.
    fn count_down_command(&self, count: &CountDown, tries: u8) -> ApiResult<LocksCommand> {
        let tenant = self.tenant()?;
        validate::request_id(&count.request_id)?;
        let path = validate::existing_thing(&LockName::Path(count.path.clone()), tenant.limits())?;
        let jobs = validate::jobs(count.ids.as_deref(), count.ranges.as_deref())?;
        if tries == 0 {
            self.session.service.inner.rates.admit(tenant.account, count_down_bytes(count) as u64)?;
        }
        let latch = LatchRef { namespace: self.session.namespace.clone(), path, id: count.id };
        Ok(LocksCommand::Latch(LatchCommand::CountDown(CountDownCommand { latch, jobs })))
    }

    /// Returns the command of a request, under the next number.
    pub(super) fn request(&self, request: SessionRequest) -> LocksCommand {
        self.session.request(self.seq + 1, request)
    }

    /// Releases for the whole session, whichever thread acquired.
    fn release_all_command(&self) -> LocksCommand {
        LocksCommand::Release(ReleaseCommand {
            namespace: self.session.namespace.clone(),
            owner: self.session.owner(),
            what: ReleaseTarget::All,
            message: self.session.message_seq(self.seq + 1),
        })
    }

    fn lock_info_command(&self, info: &LockInfo) -> LocksCommand {
        let SessionHandle { namespace, session_id, .. } = &*self.session;
        let request_id = |message: &Pending| match message {
            Pending::Lock(lock) => lock.request_id.clone(),
            Pending::AcquirePermits(acquire) => acquire.request_id.clone(),
            Pending::Arrive(arrive) => arrive.request_id.clone(),
            Pending::Await(awaits) => awaits.request_id.clone(),
            Pending::Release(release) => release.request_id.clone(),
            Pending::Invalid(invalid) => invalid.request_id.clone(),
        };
        let command = holdfast_types::LockInfo {
            namespace: namespace.clone(),
            session_id: session_id.clone(),
            message: self.session.message_seq(self.seq + 1),
            held: info.held.clone(),
            pending: info.pending.iter().map(request_id).collect(),
        };
        if info.part.is_last() { LocksCommand::LockInfo(command) } else { LocksCommand::LockInfoPart(command) }
    }
}

/// Returns whether a command lists so much that reading and writing it takes milliseconds.
fn is_heavy(command: &LocksCommand) -> bool {
    match command {
        LocksCommand::LockInfo(info) | LocksCommand::LockInfoPart(info) => {
            info.held.len() + info.pending.len() > MAX_LIGHT_REPORT
        }
        _ => false,
    }
}
