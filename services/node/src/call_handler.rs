//! Handles one call of a gateway, or of a node that delivers its outbox, from its body to its reply.

use std::future::ready;
use std::sync::Weak;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_core::Application;
use holdfast_core::limit::{self, Reached};
use holdfast_core::{BarrierQuery, Command, JobState, LatchQuery, LocksCommand, Query, Reply, codec};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Answer, Application as NamedApplication, Call, NotLeader, StatusAnswer};
use holdfast_replication::ProposeError;
use holdfast_rpc::{CallHandler, ReplyHandle};
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, timeout_at};
use tracing::{Instrument, Span, info_span};

use crate::acquire_wait::AcquireWait;
use crate::admission::{Admission, admit, merge_rejected};
use crate::batch::propose_batch;
use crate::deferred_query::{AwaitedStatus, DeferredQuery};
use crate::leader::WaitingCall;
use crate::lock_info::{Report, propose_permits};
use crate::node::NodeInner;
use crate::replica::{Replica, ShardReplica};
use crate::subscribe::Subscription;
use crate::{keep_alives, query, soft_calls, status};

/// Handles the calls to a node for as long as it exists.
pub(crate) struct NodeCalls(pub(crate) Weak<NodeInner>);

impl CallHandler for NodeCalls {
    fn call(&self, mut call: Call) -> BoxFuture<'static, Answer> {
        let (node, received, id) = (Weak::clone(&self.0), Instant::now(), call.id);
        async move {
            let answer = handle_on(&node, &mut call, received, None).await;
            // Only a caller whose reply may be deferred disconnects.
            answer.unwrap_or_else(|| Answer { id, ..Answer::default() })
        }
        .boxed()
    }

    fn call_deferrable(&self, mut call: Call, caller: ReplyHandle) -> BoxFuture<'static, Option<Answer>> {
        let (node, received) = (Weak::clone(&self.0), Instant::now());
        async move { handle_on(&node, &mut call, received, Some(&caller)).await }.boxed()
    }

    fn status(&self) -> StatusAnswer {
        self.0.upgrade().map(|node| status::collect(&node, false)).unwrap_or_default()
    }

    fn not_ready(&self) -> Option<String> {
        self.0.upgrade().and_then(|node| status::not_ready(&node))
    }

    fn failing_task(&self) -> Option<String> {
        self.0.upgrade().and_then(|node| status::failing_task(&node))
    }
}

/// Handles a call with the replica that it is for. It is passed by reference, since whatever takes it by value has room
/// for it twice.
async fn handle_on(
    node: &Weak<NodeInner>,
    call: &mut Call,
    received: Instant,
    caller: Option<&ReplyHandle>,
) -> Option<Answer> {
    // The node is not kept alive by its calls.
    let node = node.upgrade();
    let replica = node.as_ref().and_then(|node| node.replica(call.replica));
    let application = application_of(call);
    let shard = replica.as_ref().zip(application).and_then(|(replica, named)| replica.shard_for(named, call.key));
    let span = call_span(call, shard);
    if let (Some(Body::Subscribe(bytes)), Some(caller)) = (&call.body, caller) {
        let configs = node.map(|node| node.map.subscribe());
        let subscription = Subscription { shard, has_replica: replica.is_some(), configs, caller };
        let outcome = Box::pin(subscription.run(bytes)).instrument(span).await;
        return Some(Answer { id: call.id, outcome: Some(outcome), ..Answer::default() });
    }
    drop(node);
    let Some(target) = replica.as_deref().zip(shard) else {
        return Some(Answer { id: call.id, outcome: Some(not_here(replica.is_some())), ..Answer::default() });
    };
    handle_call(target, call, received, caller).instrument(span).await
}

/// Returns the answer of a node without the shard. If it has no such replica it had one, unless the caller's config is a
/// later one: the caller is to look for the leader among the others.
pub(crate) fn not_here(has_replica: bool) -> Outcome {
    if has_replica {
        Outcome::NotProposed("the replica has no such shard".into())
    } else {
        Outcome::NotLeader(NotLeader { leader: 0, term: 0 })
    }
}

/// Returns the application of a call; `None` for an application that this release does not know.
fn application_of(call: &Call) -> Option<Application> {
    match call.application() {
        NamedApplication::Unspecified => None,
        NamedApplication::Accounts => Some(Application::Accounts),
        NamedApplication::Namespaces => Some(Application::Namespaces),
        NamedApplication::Locks => Some(Application::Locks),
    }
}

/// Creates the span that carries the client's request id, where something may use it. Calls of sessions have no request
/// id.
fn call_span(call: &Call, shard: Option<&ShardReplica>) -> Span {
    if call.request_id.is_empty() || !holdfast_telemetry::uses_call_spans() {
        return Span::none();
    }
    let shard = shard.map_or("", |shard| shard.id.as_str());
    let span = info_span!("node call", request_id = call.request_id, shard);
    if !call.trace_parent.is_empty() {
        holdfast_telemetry::continue_trace(&span, &call.trace_parent);
    }
    span
}

/// Handles a call to a shard with the replica of its group. Returns `None` if the caller has disconnected.
async fn handle_call(
    (replica, shard): (&Replica, &ShardReplica),
    call: &mut Call,
    received: Instant,
    caller: Option<&ReplyHandle>,
) -> Option<Answer> {
    let deadline = received + Duration::from_millis(call.deadline_ms.into());
    let until = deadline.min(received + Duration::from_millis(call.max_wait_ms.into()));
    let rules = replica.group.rules().into();
    // Calls that wait are bounded by their connections.
    let counted = caller.is_none().then(|| shard.open_call());
    if matches!(counted, Some(None)) {
        let reached = Reached { limit: &limit::CALLS_IN_SHARD, max: limit::MAX_SHARD_CALLS };
        let outcome = Outcome::NotProposed(format!("{reached}; try again later"));
        return Some(Answer { id: call.id, outcome: Some(outcome), attempt: 0, rules });
    }
    let outcome = match (call.body.take(), caller) {
        (None, _) => Outcome::NotProposed("the call has neither a command nor a query".into()),
        (Some(Body::Command(bytes)), None) => {
            // Boxed, so that a call that waits for minutes does not reserve memory for it.
            Box::pin(handle_command(shard, call.term, bytes, deadline)).await
        }
        (Some(Body::Command(bytes)), Some(caller)) => {
            let waiting = AcquireWait { shard, term: call.term, caller, poll_deadline: until, deadline };
            let (outcome, attempt) = handle_acquire(waiting, bytes).await?;
            return Some(Answer { id: call.id, outcome: Some(outcome), attempt, rules });
        }
        (Some(Body::Query(bytes)), caller) => {
            let held = caller.map(|caller| DeferredQuery { shard, caller, until, deadline });
            handle_query((replica, shard), &bytes, deadline, held).await?
        }
        (Some(Body::Subscribe(_)), _) => Outcome::NotProposed("a subscription has no subscriber".into()),
    };
    tracing::debug!(took_ms = received.elapsed().as_millis() as u64, "call completed");
    Some(Answer { id: call.id, outcome: Some(outcome), attempt: 0, rules })
}

/// Handles an acquire. Commands other than an acquire of a locks shard never wait.
async fn handle_acquire(waiting: AcquireWait<'_>, bytes: Bytes) -> Option<(Outcome, u64)> {
    let call = match soft_calls::may_be_for_table(&bytes) {
        true => None,
        false => match codec::decode(&bytes) {
            Ok(Command::Locks(command)) => WaitingCall::of_command(command).map(Box::new),
            _ => None,
        },
    };
    match call {
        Some(call) => Box::pin(waiting.acquire(call)).await,
        None => Some((Box::pin(handle_command(waiting.shard, waiting.term, bytes, waiting.deadline)).await, 0)),
    }
}

/// What few commands do is boxed, so that the others need not move the memory for it.
async fn handle_command(shard: &ShardReplica, term: u64, bytes: Bytes, deadline: Instant) -> Outcome {
    let decoded = match soft_calls::apply(shard, term, &bytes, deadline).await {
        Ok(outcome) => return outcome,
        Err(decoded) => decoded,
    };
    if LocksCommand::is_batch(&bytes) {
        return propose_batch(shard, term, (bytes, decoded), deadline).await;
    }
    if !LocksCommand::is_report(&bytes) {
        return propose_command(shard, term, bytes, deadline).await;
    }
    Box::pin(propose_report(shard, term, (bytes, decoded), deadline)).await
}

/// Proposes what the client of a resumed session lists; it may be decoded already. That may be thousands of holds, and
/// each step with all of them takes milliseconds: others are served in between.
async fn propose_report(
    shard: &ShardReplica,
    term: u64,
    (bytes, decoded): (Bytes, Option<Box<Command>>),
    deadline: Instant,
) -> Outcome {
    yield_now().await;
    let decoded = decoded.or_else(|| codec::decode(&bytes).ok().map(Box::new));
    yield_now().await;
    match decoded.map(|command| *command) {
        Some(Command::Locks(LocksCommand::LockInfo(info))) => {
            Report { info, is_last: true }.propose(shard, term, deadline).await
        }
        Some(Command::Locks(LocksCommand::LockInfoPart(info))) => {
            Report { info, is_last: false }.propose(shard, term, deadline).await
        }
        Some(Command::Locks(LocksCommand::ReportPermits(report))) => {
            propose_permits(report, shard, term, deadline).await
        }
        _ => propose_command(shard, term, bytes, deadline).await,
    }
}

/// Proposes a command and waits until it is done.
pub(crate) async fn propose_command(shard: &ShardReplica, term: u64, bytes: Bytes, deadline: Instant) -> Outcome {
    let (bytes, left_out) = match admit(&shard.machine, term, bytes) {
        Admission::Admitted(bytes) => (bytes, Vec::new()),
        Admission::Partial(bytes, left_out) => (bytes, left_out),
        Admission::Rejected(reply) => return Outcome::Reply(reply),
    };
    let outcome = match shard.propose(term, bytes, deadline).await {
        Ok(reply) => wait_for_completion(shard, reply, deadline).await,
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
        ProposeError::Limited(limit) => Outcome::NotProposed(limit.to_string()),
        ProposeError::UnsupportedCommand(reason) => Outcome::NotProposed(reason),
        ProposeError::Unknown(reason) => Outcome::Unknown(reason.into()),
    }
}

/// Defers a reply until its work is complete: in a locks shard, by later entries; otherwise, by confirmations of other
/// shards.
async fn wait_for_completion(shard: &ShardReplica, bytes: Bytes, deadline: Instant) -> Outcome {
    if Reply::awaits_nothing(&bytes) {
        return Outcome::Reply(bytes);
    }
    let reply: Reply = match codec::decode(&bytes) {
        Ok(reply) => reply,
        Err(error) => return Outcome::Unknown(format!("the reply can't be read: {error}")),
    };
    let Some(number) = reply.awaits else { return Outcome::Reply(bytes) };
    Box::pin(wait_for_number(shard, (bytes, reply), number, deadline)).await
}

/// Waits until the work of this number is complete.
async fn wait_for_number(
    shard: &ShardReplica,
    (bytes, mut reply): (Bytes, Reply),
    number: u64,
    deadline: Instant,
) -> Outcome {
    let mut completions = shard.machine.completions();
    let mut leadership = shard.group.subscribe_leadership();
    loop {
        completions.borrow_and_update();
        match job_state(shard, number) {
            JobState::Running => {}
            JobState::Done { .. } if shard.application != Application::Locks => return Outcome::Reply(bytes),
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
                changed = completions.changed() => changed.is_ok(),
                changed = leadership.changed() => changed.is_ok(),
            }
        };
        if !matches!(timeout_at(deadline, wait).await, Ok(true)) {
            return Outcome::Unknown("the deadline passed before it was done".into());
        }
    }
}

fn job_state(shard: &ShardReplica, number: u64) -> JobState {
    if shard.application == Application::Locks {
        return shard.machine.job_state(number);
    }
    match shard.machine.is_settled(number) {
        true => JobState::Done { ended_holds: 0, ended_waits: 0 },
        false => JobState::Running,
    }
}

/// Handles a query. Not an `async` function, for which every call to a shard would have room.
fn handle_query<'a>(
    (replica, shard): (&'a Replica, &'a ShardReplica),
    bytes: &[u8],
    deadline: Instant,
    held: Option<DeferredQuery<'a>>,
) -> BoxFuture<'a, Option<Outcome>> {
    match (codec::decode(bytes), held) {
        (Err(error), _) => ready(Some(Outcome::NotProposed(format!("the query can't be read: {error}")))).boxed(),
        (Ok(Query::KeepAlives { sessions }), _) => {
            async move { Some(keep_alives::record(replica, shard.reads, &sessions, deadline).await) }.boxed()
        }
        (Ok(Query::Latch(LatchQuery::Wait { latch, wait_ms })), Some(held)) => {
            async move { held.wait(AwaitedStatus::of_latch(latch), wait_ms).await }.boxed()
        }
        (Ok(Query::Barrier(BarrierQuery::Wait(wait))), Some(held)) => {
            let wait_ms = wait.wait_ms;
            async move { held.wait(AwaitedStatus::of_barrier(wait), wait_ms).await }.boxed()
        }
        (Ok(query), _) => async move {
            soft_calls::wait_to_answer(shard, &query, deadline).await;
            Some(query::execute(shard, &query, deadline).await)
        }
        .boxed(),
    }
}

/// Redirects the caller to the leader that the replica knows; for a shard that failed here, says so instead: no other
/// leader of the group is known, and it is right for the other shards.
pub(crate) fn not_leader(shard: &ShardReplica) -> Outcome {
    match shard.machine.check_health() {
        Ok(()) => not_leader_outcome(shard.group.not_leader()),
        Err(failed) => Outcome::NotProposed(failed.0),
    }
}

pub(crate) fn not_leader_outcome(not_leader: holdfast_replication::NotLeader) -> Outcome {
    Outcome::NotLeader(NotLeader { leader: not_leader.leader.unwrap_or(0), term: not_leader.term })
}
