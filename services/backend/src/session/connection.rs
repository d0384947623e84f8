//! A connection with an open session: one task that handles every event and runs one command at a time.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use holdfast_api::ApiResult;
use holdfast_api::session_message::{ClientPayload, EndReason, Pending, ServerMessage};
use holdfast_routing::{Subscription, SubscriptionError, Update};
use holdfast_types::{Reply, Revision, SessionEnd, SessionUpdate};
use tokio::sync::mpsc;
use tokio::task::coop::consume_budget;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::arrival_table::ArrivalTable;
use super::asked::DeferredAsks;
use super::await_table::AwaitTable;
use super::channel::{CloseReason, Inbound, OutboundQueue, slow_client_error, stopping_error};
use super::client_command::{ClientCommand, InFlightBatch};
use super::command_queue::CommandQueue;
use super::deferred_updates::DeferredUpdates;
use super::epoch_report::{EpochReport, await_report};
use super::handle::{KeepAliveReply, SessionHandle};
use super::keep_alive::KeepAliveScheduler;
use super::life::{SessionLife, life_over_error};
use super::permit_table::PermitTable;
use super::protocol::MessageSequence;
use super::rare_events::{RareEvent, RareEvents};
use super::receipts::{ReceiptedList, unlisted_error};
use super::request_table::RequestTable;
use crate::AuthContext;
use crate::access_watch::{AccessWatch, is_final};

/// Queued messages of the client. At the limit, the connection stops reading from the client.
const MAX_QUEUED_COMMANDS: usize = 1_024;
/// Time to finish the messages that the client sent before it disconnected.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the leader may take to report why a missing session ended.
const END_REASON_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct SessionConnection<'a> {
    pub(super) session: Arc<SessionHandle>,
    /// The caller as of the last check of its credential, or why the check was inconclusive.
    pub(super) caller: ApiResult<AuthContext>,
    sequence: MessageSequence,
    incoming: Option<mpsc::Receiver<Inbound>>,
    pub(super) outgoing: &'a OutboundQueue,
    pub(super) queue: CommandQueue,
    pub(super) in_flight: Option<InFlightBatch>,
    /// The number of the last command of this epoch.
    pub(super) seq: u64,
    pub(super) requests: RequestTable,
    /// Whether there may be requests without a place at the leader.
    pub(super) has_unqueued: bool,
    /// Whether the leader's table was not complete when it was last asked what the session has: it is asked again
    /// later.
    pub(super) is_early: bool,
    /// Whether all that the client has is known: from the start, or once a resumed one has listed it.
    pub(super) is_complete: bool,
    /// The last epoch that was heard of since the start: nothing of a lower one counts.
    pub(super) promised: Revision,
    /// The last epoch whose leader has the report; 0 before the first.
    pub(super) reported: Revision,
    /// The report to the leader of that epoch. No command is sent, and no update is taken, before its end.
    pub(super) report: Option<EpochReport>,
    /// What a resumed client has shown so far.
    pub(super) shown: ReceiptedList,
    /// The epoch of a leader that waits for the report, while the list of a resumed client is not there.
    pub(super) owes_report: Option<Revision>,
    /// Whether the session has ended, or was resumed by another connection.
    pub(super) has_ended: bool,
    /// Keep-alives of the client that wait for the report.
    pub(super) owed_keep_alives: usize,
    pub(super) permits: PermitTable,
    pub(super) arrivals: ArrivalTable,
    pub(super) awaits: AwaitTable,
    /// The messages of the client, in the parts of `lock_info` so far, that have no response.
    pub(super) pending: Vec<Pending>,
    /// The requests that may have been executed, and whose outcome the client does not know: requests for which a
    /// resumed client has no response, and requests whose outcome this connection could not send.
    pub(super) unanswered: BTreeSet<String>,
    /// Whether updates may be missing about holds in the list that is being compared.
    pub(super) missed_updates: bool,
    /// Updates about the running request that arrived before its reply.
    pub(super) deferred_updates: DeferredUpdates,
    /// Requests to release holds that arrived before the reply to what may have added them.
    pub(super) deferred_asks: DeferredAsks,
    pub(super) keep_alive: KeepAliveScheduler,
    pub(super) subscription: Subscription<SessionUpdate>,
    /// How long the session is certain to live, if the gateway keeps it alive.
    life: Option<SessionLife>,
    rare_events: RareEvents<'a>,
    /// Set when the client has disconnected: its messages are processed until then.
    finish_deadline: Option<Instant>,
    /// Set when the session is missing: the leader has until then to report how it ended.
    end_reason_deadline: Option<Instant>,
}

/// The next event of the connection.
enum ConnectionEvent {
    Subscription(Result<Update<SessionUpdate>, SubscriptionError>),
    Reply(ApiResult<Reply>),
    KeepAlive(usize, ApiResult<KeepAliveReply>),
    Reported(ApiResult<Reply>),
    Rare(RareEvent),
    Inbound(Option<Inbound>),
    FinishTimeout,
    EndReasonTimeout,
    ListTimeout,
}

impl<'a> SessionConnection<'a> {
    pub(super) fn new(
        session: Arc<SessionHandle>,
        access_watch: AccessWatch,
        caller: AuthContext,
        life: Option<SessionLife>,
        sequence: MessageSequence,
        incoming: mpsc::Receiver<Inbound>,
        outgoing: &'a OutboundQueue,
    ) -> Self {
        let rare_events = RareEvents::new(session.service.stopping(), outgoing, access_watch, life.clone());
        Self {
            caller: Ok(caller),
            sequence,
            incoming: Some(incoming),
            outgoing,
            queue: CommandQueue::default(),
            in_flight: None,
            seq: 0,
            requests: RequestTable::new(&session.session_id),
            permits: PermitTable::default(),
            arrivals: ArrivalTable::default(),
            awaits: AwaitTable::default(),
            pending: Vec::new(),
            unanswered: BTreeSet::new(),
            missed_updates: false,
            has_unqueued: false,
            is_early: false,
            is_complete: !session.is_resumed,
            // It was opened by a leader of this epoch or a later one.
            promised: session.table_epoch.filter(|_| session.is_resumed).unwrap_or_default(),
            reported: 0,
            report: None,
            shown: ReceiptedList::default(),
            owes_report: None,
            has_ended: false,
            owed_keep_alives: 0,
            deferred_updates: DeferredUpdates::default(),
            deferred_asks: DeferredAsks::default(),
            keep_alive: KeepAliveScheduler::new(Arc::clone(&session), life.clone()),
            subscription: session.subscribe(),
            life,
            rare_events,
            finish_deadline: None,
            end_reason_deadline: None,
            session,
        }
    }

    /// Runs the connection to its end.
    pub(super) async fn run(mut self, opened: ServerMessage) -> CloseReason {
        let ending = match self.event_loop(opened).await {
            Err(ending) => ending,
            Ok(never) => match never {},
        };
        self.retain_ledger();
        ending
    }

    async fn event_loop(&mut self, opened: ServerMessage) -> Result<Infallible, CloseReason> {
        // Polled once, which sends the subscription: it reaches the leader before anything that the client does with
        // the session. A session that ends earlier than its subscription begins would end without a reason.
        let first_update = self.subscription.next().now_or_never();
        self.send(opened).await?;
        if let Some(update) = first_update {
            self.on_event(ConnectionEvent::Subscription(update)).await?;
        }
        loop {
            self.start_next().await?;
            let is_idle = self.in_flight.is_none() && self.queue.is_empty() && self.report.is_none();
            if self.incoming.is_none() && is_idle {
                return Err(CloseReason::Done);
            }
            let next = self.next_event().await;
            self.on_event(next).await?;
        }
    }

    async fn next_event(&mut self) -> ConnectionEvent {
        let can_queue = self.can_queue();
        let follows = self.report.is_none() && self.owes_report.is_none();
        tokio::select! {
            biased;
            update = self.subscription.next(), if follows => ConnectionEvent::Subscription(update),
            reply = await_report(&mut self.report) => ConnectionEvent::Reported(reply),
            reply = await_reply(&mut self.in_flight) => ConnectionEvent::Reply(reply),
            (owed, reply) = self.keep_alive.next() => ConnectionEvent::KeepAlive(owed, reply),
            // Before the messages, so that a client that sends without a pause delays none.
            event = self.rare_events.next() => ConnectionEvent::Rare(event),
            said = receive(&mut self.incoming), if can_queue => ConnectionEvent::Inbound(said),
            () = maybe_sleep_until(self.finish_deadline) => ConnectionEvent::FinishTimeout,
            () = maybe_sleep_until(self.end_reason_deadline) => ConnectionEvent::EndReasonTimeout,
            () = maybe_sleep_until(self.shown.deadline) => ConnectionEvent::ListTimeout,
        }
    }

    async fn on_event(&mut self, next: ConnectionEvent) -> Result<(), CloseReason> {
        match next {
            ConnectionEvent::Subscription(Ok(update)) => self.on_subscription_update(update).await,
            ConnectionEvent::Subscription(Err(error)) => self.on_subscription_error(error).await,
            ConnectionEvent::Reply(reply) => self.on_reply(reply).await,
            ConnectionEvent::KeepAlive(owed, reply) => self.on_keep_alive_reply(owed, reply).await,
            ConnectionEvent::Reported(reply) => self.on_reported(reply).await,
            ConnectionEvent::Rare(event) => self.on_rare_event(event),
            ConnectionEvent::Inbound(Some(incoming)) => {
                self.on_client_message(incoming)?;
                self.drain_ready().await
            }
            ConnectionEvent::Inbound(None) => {
                self.incoming = None;
                self.on_client_gone();
                Ok(())
            }
            ConnectionEvent::FinishTimeout => Err(CloseReason::Done),
            ConnectionEvent::ListTimeout => Err(CloseReason::Failed(unlisted_error())),
            ConnectionEvent::EndReasonTimeout => self.end_with(EndReason::Ended(SessionEnd::Expired)).await,
        }
    }

    fn on_rare_event(&mut self, event: RareEvent) -> Result<(), CloseReason> {
        match event {
            RareEvent::Stop => return Err(CloseReason::Failed(stopping_error())),
            RareEvent::ClientGone => self.on_client_gone(),
            RareEvent::LifeOver => return Err(CloseReason::Failed(life_over_error())),
            RareEvent::AccessChecked(Err(error)) if is_final(&error) => return Err(CloseReason::Failed(error)),
            RareEvent::AccessChecked(checked) => {
                // What was asked of the leader meanwhile was not sent.
                let is_known_again = self.caller.is_err() && checked.is_ok();
                self.caller = checked;
                if is_known_again {
                    self.queue_reconciliation();
                }
            }
        }
        Ok(())
    }

    fn on_client_message(&mut self, incoming: Inbound) -> Result<(), CloseReason> {
        let (message, bytes) = match incoming {
            Inbound::Message(message, bytes) => (*message, bytes),
            Inbound::Malformed(error) => {
                self.queue.push_malformed(ClientCommand::Malformed(*error));
                return Ok(());
            }
        };
        if !self.sequence.advance(message.seq) {
            return Ok(());
        }
        if let Err(error) = self.sequence.check(&message.payload) {
            self.queue.push_malformed(ClientCommand::Malformed(error));
            return Ok(());
        }
        let job = match message.payload {
            ClientPayload::KeepAlive => {
                self.keep_alive.request();
                return Ok(());
            }
            ClientPayload::Lock(lock) => ClientCommand::Lock(Arc::new(lock)),
            ClientPayload::Release(release) => ClientCommand::Release(release),
            ClientPayload::AcquirePermits(acquire) => ClientCommand::AcquirePermits(Arc::new(acquire)),
            ClientPayload::Invalid(invalid) => ClientCommand::Invalid(invalid),
            ClientPayload::CountDown(count) => ClientCommand::CountDown(Arc::new(count)),
            ClientPayload::Arrive(arrive) => ClientCommand::Arrive(Arc::new(arrive)),
            ClientPayload::Leave(leave) => ClientCommand::Leave(leave),
            ClientPayload::Await(awaits) => ClientCommand::Await(Arc::new(awaits)),
            ClientPayload::Signal(signal) => ClientCommand::Signal(Arc::new(signal)),
            ClientPayload::ReleaseAll => ClientCommand::ReleaseAll,
            ClientPayload::LockInfo(info) => ClientCommand::LockInfo { info, reported: 0 },
            ClientPayload::Close | ClientPayload::Open(_) => ClientCommand::Close,
        };
        self.queue.push_back(job, bytes);
        Ok(())
    }

    /// Returns whether to read from the client. A `lock_info` is large, so at most one is queued.
    fn can_queue(&self) -> bool {
        self.queue.len() < MAX_QUEUED_COMMANDS && !matches!(self.queue.back(), Some(ClientCommand::LockInfo { .. }))
    }

    /// Takes all messages of the client that have already arrived, so that one command has all of them. For example,
    /// one thread releases and another requests after one notification: two commands would take two rounds.
    async fn drain_ready(&mut self) -> Result<(), CloseReason> {
        if self.in_flight.is_none() && !self.queue.is_empty() {
            yield_now().await;
        }
        while self.can_queue()
            && let Some(Some(incoming)) = receive(&mut self.incoming).now_or_never()
        {
            self.on_client_message(incoming)?;
        }
        Ok(())
    }

    /// The connection still processes the client's messages, since only the responses may have been lost.
    pub(super) fn on_client_gone(&mut self) {
        self.finish_deadline.get_or_insert_with(|| Instant::now() + FINISH_TIMEOUT);
    }

    /// Sends a message to the client, unless it disconnected. The command in flight goes on meanwhile: it has a permit
    /// that calls of others may wait for.
    pub(super) async fn send(&mut self, mut message: ServerMessage) -> Result<(), CloseReason> {
        self.add_receipt(&mut message);
        // A leader that was deposed may grant to a session that has ended elsewhere.
        let is_grant = matches!(message, ServerMessage::Acquired { .. });
        if is_grant && self.life.as_ref().is_some_and(SessionLife::is_over) {
            return Err(CloseReason::Failed(life_over_error()));
        }
        let is_accepted = tokio::select! {
            biased;
            is_accepted = self.outgoing.send(message) => is_accepted,
            never = progress(&mut self.in_flight) => match never {},
        };
        if is_accepted {
            return Ok(());
        }
        // Thousands may follow, none of which waits for anything.
        consume_budget().await;
        if !self.outgoing.is_closed() {
            return Err(CloseReason::Failed(slow_client_error()));
        }
        self.on_client_gone();
        Ok(())
    }

    /// Ends the connection, because its session ended.
    pub(super) async fn end_with(&mut self, reason: EndReason) -> Result<(), CloseReason> {
        self.has_ended = true;
        self.send(ServerMessage::SessionEnded { reason }).await?;
        Err(CloseReason::Done)
    }

    /// Handles a missing session: the leader reports the reason, if it is reachable.
    pub(super) fn on_session_gone(&mut self) {
        self.end_reason_deadline.get_or_insert_with(|| Instant::now() + END_REASON_TIMEOUT);
        self.queue.clear();
    }

    /// Returns whether the client has disconnected.
    pub(super) fn is_client_gone(&self) -> bool {
        self.incoming.is_none()
    }

    /// Returns whether the session is missing.
    pub(super) fn is_session_gone(&self) -> bool {
        self.end_reason_deadline.is_some()
    }
}

async fn progress(running: &mut Option<InFlightBatch>) -> Infallible {
    match running {
        Some(running) => running.progress().await,
        None => pending().await,
    }
}

async fn await_reply(running: &mut Option<InFlightBatch>) -> ApiResult<Reply> {
    match running {
        Some(running) => running.reply().await,
        None => pending().await,
    }
}

async fn receive(incoming: &mut Option<mpsc::Receiver<Inbound>>) -> Option<Inbound> {
    match incoming {
        Some(incoming) => incoming.recv().await,
        None => pending().await,
    }
}

async fn maybe_sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}
