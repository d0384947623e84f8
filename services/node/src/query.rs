//! Queries: answered under the leader lease.

use bytes::Bytes;
use holdfast_core::locks::SoftTable;
use holdfast_core::shard::{PendingReply, ShardState};
use holdfast_core::{Query, Reply, Response, SessionView, codec};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::answer::Outcome;
use holdfast_replication::{Group, NotLeader, ReadMode};
use tokio::time::{Instant, timeout_at};

use crate::call_handler::not_leader_outcome;
use crate::leader::{KeepAlive, LeaderState};
use crate::mutations;
use crate::replica::ShardReplica;

/// Answers a query.
pub(crate) async fn execute(shard: &ShardReplica, query: &Query, deadline: Instant) -> Outcome {
    loop {
        // The leader of the group is the right one all the same.
        if let Err(failed) = shard.machine.check_health() {
            return Outcome::NotProposed(failed.0);
        }
        // Registered before the evaluation, so that no later outcome is missed.
        let mut resolved = std::pin::pin!(shard.machine.expiry_resolved().notified());
        resolved.as_mut().enable();
        match evaluate(shard, query, deadline).await {
            Ok(Some(reply)) => return Outcome::Reply(Bytes::from(codec::encode(&reply))),
            Err(error) => return not_leader_outcome(error),
            Ok(None) => {
                if timeout_at(deadline, resolved).await.is_err() {
                    return Outcome::NotProposed(why_unknown(query).into());
                }
            }
        }
    }
}

/// Returns why a query has no answer at its deadline.
fn why_unknown(query: &Query) -> &'static str {
    match query.lock_table() {
        Some(_) => "the leader of the lock table builds its state again",
        None => "it is not known yet whether the session expires",
    }
}

/// Evaluates a query on the state; returns `None` while the session is expiring, or while the leader state is built
/// again, which alone knows the answer. The lease is checked after the read, so that a node that was paused in between
/// returns no stale reply.
pub(crate) async fn evaluate(
    shard: &ShardReplica,
    query: &Query,
    deadline: Instant,
) -> Result<Option<Reply>, NotLeader> {
    let look = |term, clock_ms| -> Result<Option<PendingReply>, NotLeader> {
        let of_table = shard.machine.with_leader_state(term, |core, table| {
            if let Some(pending) = table.query_tables(core, clock_ms, query) {
                return Some(pending);
            }
            let pending = mutations::query(core, clock_ms, query);
            match query {
                Query::Session { .. } | Query::Sessions { .. } | Query::KeepAlive { .. } => {
                    complete_sessions(core, table, query, pending.finish()).map(PendingReply::from)
                }
                Query::AccountUsage { .. } | Query::AccountState { .. } | Query::TableState { .. } => {
                    let mut reply = pending.finish();
                    table.complete_with_tables(core, query, &mut reply);
                    Some(reply.into())
                }
                Query::Latch(of_latch) => {
                    let mut reply = pending.finish();
                    if let Ok(response) = &mut reply.outcome {
                        table.questions.complete(of_latch.namespace(), response);
                    }
                    Some(reply.into())
                }
                _ => Some(pending),
            }
        });
        // While the leader state is built again, nothing else knows the time of a session, records a keep-alive or has
        // the lock tables that are in no log. The events that the log has of these are in another order. Namespaces
        // whose tables are in the log don't wait for it.
        let is_of_session = matches!(query, Query::Session { .. } | Query::Sessions { .. } | Query::KeepAlive { .. });
        let is_of_tables = |core: &ShardState| query.lock_table().is_some_and(|it| SoftTable::is_of_tables(core, it));
        let waits = |core: &ShardState| is_of_session || is_of_tables(core);
        let answer = |core: &ShardState| (!waits(core)).then(|| mutations::query(core, clock_ms, query));
        let of_state = || shard.machine.inspect(answer);
        let seen = of_table.or_else(of_state);
        // A failed state answers nothing; another replica will.
        seen.ok_or(NotLeader { leader: None, term: 0 })
    };
    let (group, reads) = (&shard.group, shard.reads);
    let pending = match query {
        Query::KeepAlive { .. } => read_for_keep_alives(group, reads, deadline, look).await??,
        _ => group.read(reads, deadline, |permit| look(permit.term, permit.clock_ms)).await??,
    };
    Ok(pending.map(PendingReply::finish))
}

/// Reads the state as [`Group::read`] does, with the term and the clock.
pub(crate) async fn read_for_keep_alives<T>(
    group: &Group,
    reads: ReadMode,
    deadline: Instant,
    look: impl FnOnce(u64, u64) -> T,
) -> Result<T, NotLeader> {
    if is_enabled(Mutation::KeepAliveByDeposed) {
        let leads = *group.subscribe_leadership().borrow();
        if let Some(leads) = leads {
            return Ok(look(leads.term, leads.clock.now_ms()));
        }
    }
    group.read(reads, deadline, |permit| look(permit.term, permit.clock_ms)).await
}

/// Adds what only the leader knows of sessions: their remaining times. Records a keep-alive. Returns `None` if that one
/// waits for an expiry.
fn complete_sessions(core: &ShardState, table: &mut LeaderState, query: &Query, mut reply: Reply) -> Option<Reply> {
    table.complete_with_tables(core, query, &mut reply);
    let now = Instant::now();
    let of_table = |session: &mut SessionView| {
        let remaining_ms = table.heartbeats.remaining_ms(session.number, now);
        session.remaining_ms = remaining_ms.unwrap_or(session.remaining_ms);
    };
    match (&mut reply.outcome, query) {
        (Ok(Response::Session(session)), Query::KeepAlive { .. }) => {
            // A keep-alive counts only after the session has reported its holds.
            if let Some(unreported) = table.unreported(core, session.number) {
                reply.outcome = Err(unreported);
                return Some(reply);
            }
            match table.heartbeats.keep_alive(session.number, now) {
                Some(KeepAlive::Expiring) => return None,
                Some(KeepAlive::Accepted(remaining_ms)) => session.remaining_ms = remaining_ms,
                None => {}
            }
        }
        (Ok(Response::Session(session)), _) => of_table(session),
        (Ok(Response::Sessions { sessions, .. }), _) => sessions.iter_mut().for_each(of_table),
        _ => {}
    }
    Some(reply)
}
