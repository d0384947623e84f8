//! Requests for permits and for members on a connection: their commands, their replies and their updates.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_api::session_message::{AcquirePermits, HeldPermits, RefusalCause, ServerMessage};
use holdfast_api::{ApiResult, LockName, Timestamp, validate};
use holdfast_types::{
    AcquireOutcome, AcquirePermits as AcquireCommand, CommandError, Kind, LocksCommand, Metadata, Owner, PermitCommand,
    PermitHolderView, PermitsReport, Query, Reason, Refused, ReleasePermits as ReleaseCommand, Reply, ReportedPermits,
    RevokedReason, Wait, WaitId,
};

use super::channel::CloseReason;
use super::client_command::ClientCommand;
use super::commands::MAX_RECONCILED_HOLDS;
use super::connection::SessionConnection;
use super::message_bytes::acquire_bytes;
use super::permit_table::{PermitOwner, PermitState};
use crate::view_builder::ViewBuilder;

impl SessionConnection<'_> {
    /// Returns the command of a request for permits, which counts against its account's rate once.
    pub(super) fn admit_permits(&self, acquire: &AcquirePermits, tries: u8) -> ApiResult<LocksCommand> {
        let tenant = self.tenant()?;
        let request_id = acquire.request_id.as_str();
        if self.requests.state(request_id).is_some() || self.arrivals.get(request_id).is_some() {
            return Err(CommandError::RequestIdTaken(acquire.request_id.clone()).into());
        }
        // A repeat requests nothing new: after a rejection its client would forget what it has.
        let is_repeat = tries > 0 || self.is_known(&acquire.request_id);
        let of_existing = validate::limits_for_existing(tenant.limits());
        let limits = if is_repeat { &of_existing } else { tenant.limits() };
        validate::request_id(&acquire.request_id)?;
        if let Some(holder) = &acquire.holder {
            validate::name("holder", holder)?;
        }
        let path = validate::new_thing(&LockName::Path(acquire.path.clone()), limits)?;
        validate::wanted(&acquire.wanted)?;
        let priority = validate::priority(acquire.priority)?;
        validate::transition_ms(acquire.transition_ms, limits)?;
        if !is_repeat {
            self.session.service.inner.rates.admit(tenant.account, acquire_bytes(acquire) as u64)?;
        }
        Ok(LocksCommand::Permit(PermitCommand::Acquire(AcquireCommand {
            namespace: self.session.namespace.clone(),
            path,
            owner: self.permit_owner(acquire.holder.clone()),
            request_id: acquire.request_id.clone(),
            wanted: acquire.wanted.clone(),
            priority,
            ttl_ms: None,
            transition_ms: acquire.transition_ms,
            wait: if acquire.only_try { Wait::No } else { Wait::Unlimited },
            metadata: Metadata::new(),
            fencing_token: None,
            attempt: 0,
            abandoned: Vec::new(),
            message: self.session.message_seq(self.seq + 1),
        })))
    }

    fn permit_owner(&self, holder: Option<String>) -> Owner {
        Owner::Session { session_id: self.session.session_id.clone(), holder }
    }

    /// Returns the command that releases the permits of a request, if the connection knows it.
    pub(super) fn release_permits_command(&self, request_id: &str) -> Option<LocksCommand> {
        let PermitOwner { kind, path, holder } = self.permits.owner(request_id)?;
        Some(LocksCommand::Permit(PermitCommand::Release(ReleaseCommand {
            namespace: self.session.namespace.clone(),
            kind,
            path,
            owner: self.permit_owner(holder),
            request_id: Some(request_id.to_owned()),
            fencing_token: None,
            members: Vec::new(),
            message: self.session.message_seq(self.seq + 1),
        })))
    }

    /// Returns the command that reports holds of permits after a resume.
    pub(super) fn report_permits_command(&self, held: &[HeldPermits]) -> LocksCommand {
        LocksCommand::ReportPermits(PermitsReport {
            namespace: self.session.namespace.clone(),
            session_id: self.session.session_id.clone(),
            message: self.session.message_seq(self.seq + 1),
            held: held.iter().map(|hold| hold.reported.clone()).collect(),
        })
    }

    /// Queries whether holds of permits still exist.
    pub(super) fn query_reconcile_permits(&self, held: &[ReportedPermits]) -> BoxFuture<'static, ApiResult<Reply>> {
        // Since they were listed, some were released.
        let still = held.iter().filter(|hold| self.permits.hold(&hold.request_id).as_ref() == Some(*hold));
        let held = still.cloned().collect();
        let (namespace, session_id) = (self.session.namespace.clone(), self.session.session_id.clone());
        Arc::clone(&self.session).query(Query::ReconcilePermits { namespace, session_id, held }).boxed()
    }

    /// After a change of leader, queries the state of all requests for permits.
    pub(super) fn queue_permit_reconciliation(&mut self) {
        for request_id in self.permits.waiting_request_ids().into_iter().rev() {
            self.queue.push_front(ClientCommand::RequeryPermits(request_id));
        }
        for held in self.permits.holds().chunks(MAX_RECONCILED_HOLDS) {
            self.queue.push_front(ClientCommand::ReconcilePermits(held.to_vec()));
        }
    }

    /// Handles the outcome of a request for permits. Only a client that asked is notified that nothing has changed.
    pub(super) async fn on_permits_outcome(
        &mut self,
        acquire: &Arc<AcquirePermits>,
        (outcome, members): (AcquireOutcome, Vec<String>),
        holders: Vec<PermitHolderView>,
        clock_ms: u64,
        asked: bool,
    ) -> Result<(), CloseReason> {
        let request_id = acquire.request_id.clone();
        match outcome {
            AcquireOutcome::Granted { fencing_token } => {
                self.permits.set(acquire, PermitState::Held(fencing_token));
                self.send(ServerMessage::Acquired { request_id, fencing_token, members, woken: None, receipt: None })
                    .await
            }
            AcquireOutcome::Enqueued(enqueued) => {
                self.permits.set(acquire, PermitState::Waiting(enqueued.wait));
                if !asked {
                    return Ok(());
                }
                let namespace = self.session.namespace.name.clone();
                let shown = ViewBuilder::new(&namespace, clock_ms, Timestamp::now());
                let shown = shown.permit_reason(enqueued.not_granted, holders);
                let (queue_position, blockers, holders) = (shown.queue_position, shown.blockers, shown.holders);
                let woken = None;
                self.send(ServerMessage::Enqueued { request_id, queue_position, blockers, holders, woken, place: None })
                    .await
            }
            AcquireOutcome::Refused(refusal) => {
                // A refused try of a waiting request leaves it waiting, and a hold that may not grow stays.
                let stays = match self.permits.state(&request_id) {
                    Some(PermitState::Waiting(_)) => refusal.reason == Reason::Queued,
                    Some(PermitState::Held(_)) => true,
                    Some(PermitState::Lost) => refusal.reason == Reason::NotHeld,
                    None => false,
                };
                if !stays {
                    self.permits.remove(&request_id);
                } else if !asked {
                    return Ok(());
                }
                self.send_permits_refused(request_id, *refusal, holders, clock_ms).await
            }
        }
    }

    async fn send_permits_refused(
        &mut self,
        request_id: String,
        refusal: Refused,
        holders: Vec<PermitHolderView>,
        clock_ms: u64,
    ) -> Result<(), CloseReason> {
        let namespace = self.session.namespace.name.clone();
        let shown = ViewBuilder::new(&namespace, clock_ms, Timestamp::now()).permit_reason(refusal, holders);
        self.send(ServerMessage::Refused { request_id, why: RefusalCause::Reason(shown) }).await
    }

    /// Handles the end of a wait. Only the wait of the current request counts: an earlier one of the same name was
    /// released.
    pub(super) async fn on_permits_resolved(
        &mut self,
        request_id: String,
        wait: WaitId,
        (outcome, members): (AcquireOutcome, Vec<String>),
        clock_ms: u64,
    ) -> Result<(), CloseReason> {
        if self.permits.state(&request_id) != Some(PermitState::Waiting(wait)) {
            return Ok(());
        }
        self.unanswered.remove(&request_id);
        match outcome {
            AcquireOutcome::Granted { fencing_token } => {
                if let Some(acquire) = self.permits.waiting(&request_id) {
                    self.permits.set(&acquire, PermitState::Held(fencing_token));
                }
                self.send(ServerMessage::Acquired { request_id, fencing_token, members, woken: None, receipt: None })
                    .await
            }
            // The client ends it, and is notified of that instead.
            AcquireOutcome::Refused(_) if self.in_flight.as_ref().is_some_and(|it| it.ends(&request_id)) => Ok(()),
            AcquireOutcome::Refused(refusal) => {
                self.permits.remove(&request_id);
                self.send_permits_refused(request_id, *refusal, Vec::new(), clock_ms).await
            }
            AcquireOutcome::Enqueued(_) => Ok(()),
        }
    }

    /// Handles the loss of a hold of permits.
    pub(super) async fn on_permits_lost(
        &mut self,
        hold: ReportedPermits,
        reason: RevokedReason,
    ) -> Result<(), CloseReason> {
        if !self.permits.lose(&hold) {
            return Ok(());
        }
        let holder = self.permits.owner(&hold.request_id).and_then(|owner| owner.holder);
        self.send_permits_revoked(hold, holder, reason).await
    }

    async fn send_permits_revoked(
        &mut self,
        hold: ReportedPermits,
        holder: Option<String>,
        reason: RevokedReason,
    ) -> Result<(), CloseReason> {
        let (path, fencing_token) = (hold.path.0, hold.fencing_token);
        self.send(ServerMessage::Revoked { path, reason, current_owner: None, holder, fencing_token }).await
    }

    /// Handles the reply to a report of holds. Adds only existing holds: a client may list any others.
    pub(super) async fn on_permits_reported(
        &mut self,
        held: &[HeldPermits],
        lost: Vec<ReportedPermits>,
    ) -> Result<(), CloseReason> {
        let missing: HashSet<&ReportedPermits> = lost.iter().collect();
        let kept = held.iter().filter(|held| held.reported.kind != Kind::Barrier && !missing.contains(&held.reported));
        kept.for_each(|held| self.permits.add_reported(held));
        self.add_reported_arrivals(held);
        // What became of an arrival is asked.
        for hold in lost.into_iter().filter(|hold| hold.kind != Kind::Barrier) {
            let listed = held.iter().find(|held| held.reported == hold);
            let holder = listed.and_then(|held| held.holder.clone());
            self.send_permits_revoked(hold, holder, RevokedReason::Duplicate).await?;
        }
        Ok(())
    }
}
