//! Arrivals at barriers on a connection: their commands, their replies and their updates.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_api::session_message::{Arrive, HeldPermits, RefusalCause, ServerMessage};
use holdfast_api::{ApiError, ApiResult, Code, LockName, validate};
use holdfast_types::{
    ArriveAtBarrier, BarrierAnswer, BarrierCommand, BarrierOutcome, BarrierQuery, BarrierView, CommandError, Kind,
    LeaveBarrier, LocksCommand, Metadata, Owner, Query, Reply, SessionRequest, WaitAtBarrier,
};

use super::arrival_table::ArrivalState;
use super::channel::CloseReason;
use super::client_command::ClientCommand;
use super::connection::SessionConnection;
use super::message_bytes::arrive_bytes;

impl SessionConnection<'_> {
    /// Returns the command of an arrival, which counts against its account's rate once.
    pub(super) fn admit_arrival(&self, arrive: &Arrive, tries: u8) -> ApiResult<LocksCommand> {
        let tenant = self.tenant()?;
        let request_id = &arrive.request_id;
        if self.requests.state(request_id).is_some() || self.permits.state(request_id).is_some() {
            return Err(CommandError::RequestIdTaken(request_id.clone()).into());
        }
        let is_repeat = tries > 0 || self.is_known(request_id);
        let of_existing = validate::limits_for_existing(tenant.limits());
        let limits = if is_repeat { &of_existing } else { tenant.limits() };
        validate::request_id(request_id)?;
        if let Some(holder) = &arrive.holder {
            validate::name("holder", holder)?;
        }
        let path = validate::new_thing(&LockName::Path(arrive.path.clone()), limits)?;
        arrive.parties.map_or(Ok(()), validate::parties)?;
        if !is_repeat {
            self.session.service.inner.rates.admit(tenant.account, arrive_bytes(arrive) as u64)?;
        }
        Ok(LocksCommand::Barrier(BarrierCommand::Arrive(ArriveAtBarrier {
            namespace: self.session.namespace.clone(),
            path,
            owner: self.owner_of_arrival(arrive.holder.clone()),
            // Sent again, it must not arrive in a later generation than the one that it is known to be in.
            generation: arrive.generation.or_else(|| Some(self.arrivals.get(request_id)?.generation)),
            parties: arrive.parties,
            double: arrive.double,
            ttl_ms: None,
            metadata: Metadata::new(),
            request_id: Some(request_id.clone()),
            message: self.session.message_seq(self.seq + 1),
        })))
    }

    fn owner_of_arrival(&self, holder: Option<String>) -> Owner {
        Owner::Session { session_id: self.session.session_id.clone(), holder }
    }

    /// Returns the command that ends an arrival, or leaves a double barrier.
    pub(super) fn leave_command(&self, request_id: &str) -> ApiResult<LocksCommand> {
        let Some(entry) = self.arrivals.get(request_id) else {
            let is_other = self.requests.state(request_id).is_some() || self.permits.state(request_id).is_some();
            if is_other || !self.unanswered.contains(request_id) {
                return Err(ApiError::invalid("request_id", "request_id: names no arrival of this session"));
            }
            // If it has arrived, the generation is not known here.
            return Ok(self.request(SessionRequest::Release { request_id: request_id.to_owned(), is_known: false }));
        };
        Ok(LocksCommand::Barrier(BarrierCommand::Leave(LeaveBarrier {
            namespace: self.session.namespace.clone(),
            path: entry.path.clone(),
            owner: self.owner_of_arrival(entry.holder.clone()),
            generation: entry.generation,
            message: self.session.message_seq(self.seq + 1),
        })))
    }

    /// Queries what became of an arrival.
    pub(super) fn query_arrival(&self, request_id: &str) -> Option<BoxFuture<'static, ApiResult<Reply>>> {
        let entry = self.arrivals.get(request_id)?;
        let query = Query::Barrier(BarrierQuery::Wait(WaitAtBarrier {
            namespace: self.session.namespace.clone(),
            path: entry.path.clone(),
            generation: entry.generation,
            owner: Some(self.owner_of_arrival(entry.holder.clone())),
            leaves: entry.state != ArrivalState::Gathering,
            wait_ms: 0,
        }));
        Some(Arc::clone(&self.session).query(query).boxed())
    }

    /// After a change of leader, queries what became of all arrivals.
    pub(super) fn queue_arrival_reconciliation(&mut self) {
        for request_id in self.arrivals.request_ids().into_iter().rev() {
            self.queue.push_front(ClientCommand::RequeryArrival(request_id));
        }
    }

    /// Adds the arrivals that the client of a resumed session listed, and queries what became of each.
    pub(super) fn add_reported_arrivals(&mut self, held: &[HeldPermits]) {
        for arrival in held.iter().filter(|held| held.reported.kind == Kind::Barrier) {
            self.arrivals.add_reported(arrival);
            self.queue.push_front(ClientCommand::RequeryArrival(arrival.reported.request_id.clone()));
        }
    }

    /// Handles the outcome of an arrival.
    pub(super) async fn on_arrived(
        &mut self,
        arrive: &Arrive,
        answer: BarrierAnswer,
        barrier: &BarrierView,
    ) -> Result<(), CloseReason> {
        let request_id = arrive.request_id.clone();
        let inside = is_inside(&answer, barrier);
        if answer.outcome != BarrierOutcome::Waiting && !inside {
            self.arrivals.remove(&request_id);
            return self.send(ServerMessage::Tripped { request_id, answer }).await;
        }
        if let Some(replaced) = self.arrivals.arrived(arrive, answer.generation) {
            let detail = format!("request_id: the owner arrives by the request {request_id:?} now");
            let why = RefusalCause::Fault(ApiError::invalid("request_id", detail));
            self.send(ServerMessage::Refused { request_id: replaced, why }).await?;
        }
        if answer.outcome == BarrierOutcome::Waiting {
            return self.send(ServerMessage::Arrived { request_id, generation: answer.generation }).await;
        }
        self.arrivals.on_outcome(&request_id, answer.generation, answer.outcome, inside);
        self.send(ServerMessage::Tripped { request_id, answer }).await
    }

    /// Handles the reply to a leave: if others are inside, the client is told once all have left.
    pub(super) async fn on_leave(&mut self, request_id: &str, answer: BarrierAnswer) -> Result<(), CloseReason> {
        if answer.outcome == BarrierOutcome::Waiting {
            self.arrivals.leaves(request_id);
            return Ok(());
        }
        self.arrivals.remove(request_id);
        self.send(ServerMessage::Tripped { request_id: request_id.to_owned(), answer }).await
    }

    /// Handles the end of an arrival of which the connection did not know whether it was one.
    pub(super) async fn on_unanswered_left(&mut self, request_id: String) -> Result<(), CloseReason> {
        let detail = "if it had arrived it has left, and how its generation ended is not known";
        let why = RefusalCause::Fault(ApiError::new(Code::DeadlineExceeded, detail));
        self.send(ServerMessage::Refused { request_id, why }).await
    }

    /// Handles what became of an arrival, as the leader reports or answers it.
    pub(super) async fn on_met(
        &mut self,
        request_id: String,
        answer: BarrierAnswer,
        inside: bool,
    ) -> Result<(), CloseReason> {
        if !self.arrivals.on_outcome(&request_id, answer.generation, answer.outcome, inside) {
            return Ok(());
        }
        self.unanswered.remove(&request_id);
        self.send(ServerMessage::Tripped { request_id, answer }).await
    }

    /// Handles the rejection of a query: the barrier is gone, and with it how the generation ended.
    pub(super) async fn on_arrival_gone(&mut self, request_id: &str, refusal: CommandError) -> Result<(), CloseReason> {
        self.arrivals.remove(request_id);
        let (request_id, why) = (request_id.to_owned(), RefusalCause::Fault(ApiError::from(refusal)));
        self.send(ServerMessage::Refused { request_id, why }).await
    }
}

/// Returns true if the receiver of this answer is inside a double barrier.
pub(super) fn is_inside(answer: &BarrierAnswer, barrier: &BarrierView) -> bool {
    answer.outcome == BarrierOutcome::Tripped && barrier.inside_generation == Some(answer.generation)
}
