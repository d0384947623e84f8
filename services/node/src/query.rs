//! Queries: answered under the leader lease.

use bytes::Bytes;
use holdfast_core::shard::PendingReply;
use holdfast_core::{Query, Reply, Response, codec};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::answer::Outcome;
use holdfast_replication::NotLeader;
use tokio::time::{Instant, timeout_at};

use crate::call_handler::not_leader_outcome;
use crate::leader::{KeepAlive, LeaderState, SessionKey};
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
                    return Outcome::NotProposed("the session is expiring".into());
                }
            }
        }
    }
}

/// Evaluates a query on the state; returns `None` while the session is expiring. The lease is checked after the read,
/// so that a node that was paused in between returns no stale reply.
pub(crate) async fn evaluate(
    shard: &ShardReplica,
    query: &Query,
    deadline: Instant,
) -> Result<Option<Reply>, NotLeader> {
    let look = |term, clock_ms| -> Result<Option<PendingReply>, NotLeader> {
        let of_table = shard.machine.with_leader_state(term, |core, table| {
            let pending = mutations::query(core, clock_ms, query);
            match query {
                Query::Session { .. } | Query::KeepAlive { .. } => {
                    complete_session(table, query, pending.finish()).map(PendingReply::from)
                }
                _ => Some(pending),
            }
        });
        let seen = of_table.or_else(|| shard.machine.begin_query(clock_ms, query).map(Some));
        // A failed state answers nothing; another replica will.
        seen.ok_or(NotLeader { leader: None, term: 0 })
    };
    let leads = *shard.group.subscribe_leadership().borrow();
    if let (true, Some(leads), Query::KeepAlive { .. }) = (is_enabled(Mutation::KeepAliveByDeposed), leads, query) {
        return Ok(look(leads.term, leads.clock.now_ms())?.map(PendingReply::finish));
    }
    let pending = shard.group.read(shard.reads, deadline, |permit| look(permit.term, permit.clock_ms)).await??;
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
