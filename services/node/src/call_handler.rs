//! Handles one call of a gateway, or of a node that delivers its outbox, from its body to its reply.

use std::sync::Weak;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_core::Application;
use holdfast_core::{Command, JobState, LocksCommand, Reply, codec};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Answer, Call, NotLeader, StatusAnswer};
use holdfast_replication::ProposeError;
use holdfast_rpc::{CallHandler, ReplyHandle};
use tokio::time::{Duration, Instant, timeout_at};
use tracing::{Instrument, Span, info_span};

use crate::acquire_wait::AcquireWait;
use crate::admission::{Admission, admit, merge_rejected};
use crate::lock_info::Report;
use crate::node::NodeInner;
use crate::replica::Replica;
use crate::subscribe::Subscription;
use crate::{query, status};

/// Handles the calls to a node for as long as it exists.
pub(crate) struct NodeCalls(pub(crate) Weak<NodeInner>);

impl CallHandler for NodeCalls {
    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        let (node, received, id) = (Weak::clone(&self.0), Instant::now(), call.id);
        async move {
            let answer = handle_on(&node, call, received, None).await;
            // Only a caller whose reply may be deferred disconnects.
            answer.unwrap_or_else(|| Answer { id, ..Answer::default() })
        }
        .boxed()
    }

    fn call_deferrable(&self, call: Call, caller: ReplyHandle) -> BoxFuture<'static, Option<Answer>> {
        let (node, received) = (Weak::clone(&self.0), Instant::now());
        async move { handle_on(&node, call, received, Some(&caller)).await }.boxed()
    }

    fn status(&self) -> StatusAnswer {
        self.0.upgrade().map(|node| status::collect(&node, false)).unwrap_or_default()
    }

    fn not_ready(&self) -> Option<String> {
        self.0.upgrade().and_then(|node| status::not_ready(&node))
    }
}

async fn handle_on(
    node: &Weak<NodeInner>,
    call: Call,
    received: Instant,
    caller: Option<&ReplyHandle>,
) -> Option<Answer> {
    // The node is not kept alive by its calls.
    let node = node.upgrade();
    let replica = node.as_ref().and_then(|node| node.replica(call.replica));
    let span = call_span(&call, replica.as_deref());
    if let (Some(Body::Subscribe(bytes)), Some(caller)) = (&call.body, caller) {
        let configs = node.map(|node| node.map.subscribe());
        let subscription = Subscription { replica: replica.as_deref(), configs, caller };
        let outcome = subscription.run(bytes).instrument(span).await;
        return Some(Answer { id: call.id, outcome: Some(outcome), ..Answer::default() });
    }
    drop(node);
    handle_call(replica.as_deref(), call, received, caller).instrument(span).await
}

/// Creates the span that carries the client's request id. Calls without a request id, by far the most, get no span.
fn call_span(call: &Call, replica: Option<&Replica>) -> Span {
    if call.request_id.is_empty() {
        return Span::none();
    }
    let shard = replica.map_or("", |replica| replica.group.shard());
    let span = info_span!("node call", request_id = call.request_id, shard);
    if !call.trace_parent.is_empty() {
        holdfast_telemetry::continue_trace(&span, &call.trace_parent);
    }
    span
}

/// Handles a call. Returns `None` if the caller has disconnected. `replica` is the addressed replica, if this node
/// hosts it.
async fn handle_call(
    replica: Option<&Replica>,
    call: Call,
    received: Instant,
    caller: Option<&ReplyHandle>,
) -> Option<Answer> {
    let deadline = received + Duration::from_millis(call.deadline_ms.into());
    let until = deadline.min(received + Duration::from_millis(call.hold_ms.into()));
    let rules = replica.map_or(0, |replica| replica.group.rules().into());
    let outcome = match (replica, call.body, caller) {
        (None, ..) => Outcome::NotProposed(format!("replica {} is not on this node", call.replica)),
        (Some(_), None, _) => Outcome::NotProposed("the call has neither a command nor a query".into()),
        (Some(replica), Some(Body::Command(bytes)), None) => handle_command(replica, call.term, bytes, deadline).await,
        (Some(replica), Some(Body::Command(bytes)), Some(caller)) => {
            let waiting = AcquireWait { replica, term: call.term, caller, poll_deadline: until, deadline };
            let (outcome, attempt) = handle_acquire(waiting, bytes).await?;
            return Some(Answer { id: call.id, outcome: Some(outcome), attempt, rules });
        }
        (Some(replica), Some(Body::Query(bytes)), _) => handle_query(replica, &bytes, deadline).await,
        (Some(_), Some(Body::Subscribe(_)), _) => Outcome::NotProposed("a subscription has no subscriber".into()),
    };
    tracing::debug!(took_ms = received.elapsed().as_millis() as u64, "a call is answered");
    Some(Answer { id: call.id, outcome: Some(outcome), attempt: 0, rules })
}

/// Handles an acquire. Commands other than an acquire of a locks shard never wait.
async fn handle_acquire(waiting: AcquireWait<'_>, bytes: Bytes) -> Option<(Outcome, u64)> {
    match codec::decode(&bytes) {
        Ok(Command::Locks(LocksCommand::Acquire(acquire))) => waiting.acquire(acquire).await,
        _ => Some((handle_command(waiting.replica, waiting.term, bytes, waiting.deadline).await, 0)),
    }
}

async fn handle_command(replica: &Replica, term: u64, bytes: Bytes, deadline: Instant) -> Outcome {
    if !LocksCommand::is_report(&bytes) {
        return propose_command(replica, term, bytes, deadline).await;
    }
    match codec::decode(&bytes) {
        Ok(Command::Locks(LocksCommand::LockInfo(info))) => {
            Report { info, is_last: true }.propose(replica, term, deadline).await
        }
        Ok(Command::Locks(LocksCommand::LockInfoPart(info))) => {
            Report { info, is_last: false }.propose(replica, term, deadline).await
        }
        _ => propose_command(replica, term, bytes, deadline).await,
    }
}

/// Proposes a command and waits until it is done.
pub(crate) async fn propose_command(replica: &Replica, term: u64, bytes: Bytes, deadline: Instant) -> Outcome {
    let (bytes, left_out) = match admit(&replica.machine, term, bytes) {
        Admission::Admitted(bytes) => (bytes, Vec::new()),
        Admission::Partial(bytes, left_out) => (bytes, left_out),
        Admission::Rejected(reply) => return Outcome::Reply(reply),
    };
    let outcome = match replica.group.propose(term, bytes, deadline).await {
        Ok(reply) => wait_for_completion(replica, reply, deadline).await,
        Err(error) => rejection(error),
    };
    match outcome {
        Outcome::Reply(reply) if !left_out.is_empty() => Outcome::Reply(merge_rejected(reply, left_out)),
        outcome => outcome,
    }
}

/// Returns the outcome for a proposal error.
pub(crate) fn rejection(error: ProposeError) -> Outcome {
    match error {
        ProposeError::NotLeader(not_leader) => not_leader_outcome(not_leader),
        ProposeError::NotProposed(reason) => Outcome::NotProposed(reason.into()),
        ProposeError::UnsupportedCommand(reason) => Outcome::NotProposed(reason),
        ProposeError::Unknown(reason) => Outcome::Unknown(reason.into()),
    }
}

/// Defers a reply until its work is complete: in a locks shard, by later entries; otherwise, by confirmations of other
/// shards.
async fn wait_for_completion(replica: &Replica, bytes: Bytes, deadline: Instant) -> Outcome {
    if Reply::awaits_nothing(&bytes) {
        return Outcome::Reply(bytes);
    }
    let mut reply: Reply = match codec::decode(&bytes) {
        Ok(reply) => reply,
        Err(error) => return Outcome::Unknown(format!("the reply can't be read: {error}")),
    };
    let Some(number) = reply.awaits else { return Outcome::Reply(bytes) };
    let mut signals = replica.machine.signals();
    let mut leadership = replica.group.subscribe_leadership();
    loop {
        signals.borrow_and_update();
        match job_state(replica, number) {
            JobState::Running => {}
            JobState::Done { .. } if replica.application != Application::Locks => return Outcome::Reply(bytes),
            JobState::Done { ended_holds, ended_waits } => {
                reply.set_counts(ended_holds, ended_waits);
                return Outcome::Reply(codec::encode(&reply).into());
            }
            JobState::Unknown => return Outcome::Unknown("what the reply awaits is not known any more".into()),
        }
        // A replica that no longer leads delivers nothing; the caller retries the command at the next leader.
        if leadership.borrow_and_update().is_none() {
            return Outcome::Unknown("leadership ended before it was done".into());
        }
        let wait = async {
            tokio::select! {
                changed = signals.changed() => changed.is_ok(),
                changed = leadership.changed() => changed.is_ok(),
            }
        };
        if !matches!(timeout_at(deadline, wait).await, Ok(true)) {
            return Outcome::Unknown("the deadline passed before it was done".into());
        }
    }
}

fn job_state(replica: &Replica, number: u64) -> JobState {
    if replica.application == Application::Locks {
        return replica.machine.job_state(number);
    }
    match replica.machine.is_settled(number) {
        true => JobState::Done { ended_holds: 0, ended_waits: 0 },
        false => JobState::Running,
    }
}

async fn handle_query(replica: &Replica, bytes: &[u8], deadline: Instant) -> Outcome {
    match codec::decode(bytes) {
        Err(error) => Outcome::NotProposed(format!("the query can't be read: {error}")),
        Ok(query) => query::execute(replica, &query, deadline).await,
    }
}

/// Redirects the caller to the leader that the replica knows.
pub(crate) fn not_leader(replica: &Replica) -> Outcome {
    not_leader_outcome(replica.group.not_leader())
}

pub(crate) fn not_leader_outcome(not_leader: holdfast_replication::NotLeader) -> Outcome {
    Outcome::NotLeader(NotLeader { leader: not_leader.leader.unwrap_or(0), term: not_leader.term })
}
