//! Queries: answered under the leader lease; some are deferred until there is a result.

use bytes::Bytes;
use holdfast_core::shard::PendingReply;
use holdfast_core::{Query, Reply, Response, codec};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::answer::Outcome;
use holdfast_replication::NotLeader;
use holdfast_rpc::ReplyHandle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::call_handler::{not_leader, not_leader_outcome};
use crate::leader::{KeepAlive, LeaderState, SessionKey};
use crate::mutations;
use crate::replica::Replica;

/// Answers a query.
pub(crate) async fn execute(replica: &Replica, query: &Query, deadline: Instant) -> Outcome {
    loop {
        // Registered before the evaluation, so that no later outcome is missed.
        let mut resolved = std::pin::pin!(replica.machine.expiry_resolved().notified());
        resolved.as_mut().enable();
        match evaluate(replica, query, deadline).await {
            Ok(Some(reply)) => return Outcome::Reply(Bytes::from(codec::encode(&reply))),
            Err(error) => return not_leader_outcome(error),
            Ok(None) => {
                if timeout_at(deadline, resolved).await.is_err() {
                    return Outcome::NotProposed("the session is expiring".into());
                }
            }
        }
    }
}

/// Answers a query of events or account changes. Without a result, it waits for one, or returns an empty reply at
/// `until`.
pub(crate) async fn long_poll(replica: &Replica, query: &Query, caller: &ReplyHandle, until: Instant) -> Outcome {
    if !supports_long_poll(query) {
        return execute(replica, query, until).await;
    }
    let mut query = query.clone();
    let mut is_held = false;
    loop {
        let Some(mut changes) = subscribe(replica, &query) else { return not_leader(replica) };
        let reply = match evaluate(replica, &query, until).await {
            Ok(Some(reply)) => reply,
            Ok(None) => return not_leader(replica),
            Err(error) => return not_leader_outcome(error),
        };
        let found = advance(&mut query, &reply);
        if found == PollResult::Ready || Instant::now() >= until {
            return Outcome::Reply(Bytes::from(codec::encode(&reply)));
        }
        if found == PollResult::Incomplete {
            // Many evaluations may follow; other tasks go first.
            tokio::task::yield_now().await;
            continue;
        }
        if !is_held {
            caller.defer().await;
            is_held = true;
        }
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return not_leader(replica);
                }
            }
            () = tokio::time::sleep_until(until) => {}
            () = caller.control.cancelled.cancelled() => return not_leader(replica),
            () = caller.disconnected.cancelled() => return not_leader(replica),
        }
    }
}

/// Returns true if the query may be deferred. A query of the current revision is answered at once.
fn supports_long_poll(query: &Query) -> bool {
    matches!(query, Query::Events { from_revision: Some(_), .. } | Query::AccountChanges { .. })
}

/// Result of evaluating a deferred query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollResult {
    /// The reply is ready.
    Ready,
    /// No match in the examined part; more remains to be examined.
    Incomplete,
    /// No match, and nothing remains to be examined.
    Empty,
}

/// Advances the query past the examined events, so that later evaluations do not examine them again.
fn advance(query: &mut Query, reply: &Reply) -> PollResult {
    match (&reply.outcome, query) {
        (Ok(Response::Events { events, next_revision, more }), Query::Events { from_revision, .. })
            if events.is_empty() =>
        {
            *from_revision = Some(*next_revision);
            if *more { PollResult::Incomplete } else { PollResult::Empty }
        }
        (Ok(Response::AccountChanges { changes, .. }), _) if changes.is_empty() => PollResult::Empty,
        _ => PollResult::Ready,
    }
}

fn subscribe(replica: &Replica, query: &Query) -> Option<watch::Receiver<()>> {
    let leads = (*replica.group.subscribe_leadership().borrow())?;
    let receiver = |table: &mut LeaderState| match query {
        Query::Events { namespace, .. } => table.subscriptions.subscribe(Some(namespace)),
        _ => table.subscriptions.subscribe(None),
    };
    replica.machine.with_leader_state(leads.term, |_, table| receiver(table))
}

/// Evaluates a query on the state; returns `None` while the session is expiring. The lease is checked after the read,
/// so that a node that was paused in between returns no stale reply.
pub(crate) async fn evaluate(replica: &Replica, query: &Query, deadline: Instant) -> Result<Option<Reply>, NotLeader> {
    let look = |term, clock_ms| -> Result<Option<PendingReply>, NotLeader> {
        let of_table = replica.machine.with_leader_state(term, |core, table| {
            let pending = mutations::query(core, clock_ms, query);
            match query {
                Query::Session { .. } | Query::KeepAlive { .. } => {
                    complete_session(table, query, pending.finish()).map(PendingReply::from)
                }
                _ => Some(pending),
            }
        });
        let seen = of_table.or_else(|| replica.machine.begin_query(clock_ms, query).map(Some));
        // A failed state answers nothing; another replica will.
        seen.ok_or(NotLeader { leader: None, term: 0 })
    };
    let leads = *replica.group.subscribe_leadership().borrow();
    if let (true, Some(leads), Query::KeepAlive { .. }) = (is_enabled(Mutation::KeepAliveByDeposed), leads, query) {
        return Ok(look(leads.term, leads.clock.now_ms())?.map(PendingReply::finish));
    }
    let pending = replica.group.read(replica.reads, deadline, |permit| look(permit.term, permit.clock_ms)).await??;
    Ok(pending.map(PendingReply::finish))
}

/// Adds what only the leader knows of a session: its remaining time. Records a keep-alive.
fn complete_session(table: &mut LeaderState, query: &Query, mut reply: Reply) -> Option<Reply> {
    if !matches!(reply.outcome, Ok(Response::Session(_))) {
        return Some(reply);
    }
    let now = Instant::now();
    let remaining_ms = match query {
        Query::KeepAlive { namespace, session_id, .. } => {
            match table.heartbeats.keep_alive(&SessionKey::of(namespace, session_id), now) {
                Some(KeepAlive::Expiring) => return None,
                Some(KeepAlive::Accepted(remaining_ms)) => Some(remaining_ms),
                None => None,
            }
        }
        Query::Session { namespace, session_id } => {
            table.heartbeats.remaining_ms(&SessionKey::of(namespace, session_id), now)
        }
        _ => None,
    };
    if let (Some(remaining_ms), Ok(Response::Session(session))) = (remaining_ms, &mut reply.outcome) {
        session.remaining_ms = remaining_ms;
    }
    Some(reply)
}

#[cfg(test)]
mod tests {
    use holdfast_core::shard::{Application, ShardState};
    use holdfast_core::{
        Command, EntryContext, Limits, LocksCommand, MAX_EVENTS_EXAMINED, NamespaceMessage, Path, Rules,
    };

    use super::*;
    use crate::testing::{acquire, namespace};

    struct Shard(ShardState);

    impl Shard {
        fn new() -> Self {
            let mut shard = Self(ShardState::new(Application::Locks, "locks_00"));
            let message = NamespaceMessage::Open { namespace: namespace(), limits: Limits::default() };
            shard.apply(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message });
            shard
        }

        fn apply(&mut self, command: LocksCommand) {
            let context = EntryContext { now_ms: 1_000, wall_ms: 1_000, rules: Rules::ONE };
            self.0.advance(&context);
            assert!(self.0.apply(&context, &Command::Locks(command)).outcome.is_ok());
        }

        /// Applies an event of this path.
        fn event(&mut self, path: &str) {
            self.apply(acquire(path));
        }

        /// Evaluates until there is a reply or nothing remains to be examined, as a deferred query does. Returns the
        /// result and the number of events examined by each evaluation.
        fn poll(&self, query: &mut Query) -> (PollResult, Vec<usize>) {
            let mut looks = Vec::new();
            loop {
                let pending = self.0.begin_query(0, query);
                looks.push(pending.events_examined());
                match advance(query, &pending.finish()) {
                    PollResult::Incomplete => {}
                    found => return (found, looks),
                }
            }
        }
    }

    #[test]
    fn a_held_question_looks_at_each_event_once() {
        let mut shard = Shard::new();
        let behind = 2 * MAX_EVENTS_EXAMINED + 500;
        (0..behind).for_each(|number| shard.event(&format!("l{number}")));
        let (prefix, from_revision) = (Path::flat("mine"), Some(1));
        let mut query = Query::Events { namespace: namespace(), from_revision, prefix, limit: 100 };
        let (found, looks) = shard.poll(&mut query);
        assert_eq!((found, looks.iter().sum::<usize>()), (PollResult::Empty, behind));
        assert!(looks.iter().all(|examined| *examined <= MAX_EVENTS_EXAMINED), "{looks:?}");
        // The cost of the next event does not depend on the number of earlier ones.
        for number in 0..200 {
            shard.event(&format!("m{number}"));
            assert_eq!(shard.poll(&mut query), (PollResult::Empty, vec![1]));
        }
        shard.event("mine");
        assert_eq!(shard.poll(&mut query), (PollResult::Ready, vec![1]));
    }
}
