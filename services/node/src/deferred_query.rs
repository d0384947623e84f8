//! Queries whose reply the leader holds back: waits for latches, and at barriers.

use bytes::Bytes;
use holdfast_core::limit::Limit;
use holdfast_core::{
    BarrierQuery, CommandError, Kind, LatchQuery, LatchRef, NamespaceRef, Path, Query, Reply, Response, WaitAtBarrier,
    codec,
};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::answer::Outcome;
use holdfast_replication::NotLeader;
use holdfast_rpc::ReplyHandle;
use tokio::time::{Duration, Instant, sleep_until};

use crate::call_handler::{not_leader, not_leader_outcome};
use crate::leader::DeferredReply;
use crate::replica::ShardReplica;

/// A query that its caller lets the leader hold back.
pub(crate) struct DeferredQuery<'a> {
    pub(crate) shard: &'a ShardReplica,
    pub(crate) caller: &'a ReplyHandle,
    /// Until when.
    pub(crate) until: Instant,
    pub(crate) deadline: Instant,
}

/// A query that waits for an outcome. A final outcome never changes.
pub(crate) struct AwaitedStatus {
    query: Query,
    namespace: NamespaceRef,
    kind: Kind,
    path: Path,
}

/// What a leader knows of it now.
enum StatusRead {
    /// The reply is final.
    Final(Reply),
    /// It may still change.
    Held(Reply, DeferredReply),
    /// The replica can't tell.
    Rejected(Outcome),
}

impl AwaitedStatus {
    /// Waits until the status of a latch is final.
    pub(crate) fn of_latch(latch: LatchRef) -> Self {
        let (namespace, path) = (latch.namespace.clone(), latch.path.clone());
        Self { query: Query::Latch(LatchQuery::Wait { latch, wait_ms: 0 }), namespace, kind: Kind::Latch, path }
    }

    /// Waits until a generation of a barrier has ended, or all have left it.
    pub(crate) fn of_barrier(wait: WaitAtBarrier) -> Self {
        let (namespace, path) = (wait.namespace.clone(), wait.path.clone());
        let query = Query::Barrier(BarrierQuery::Wait(WaitAtBarrier { wait_ms: 0, ..wait }));
        Self { query, namespace, kind: Kind::Barrier, path }
    }
}

impl DeferredQuery<'_> {
    /// Replies once the outcome is final, or the time is over. Returns `None` if the caller has disconnected.
    pub(crate) async fn wait(&self, question: AwaitedStatus, wait_ms: u64) -> Option<Outcome> {
        let until = Instant::now().checked_add(Duration::from_millis(wait_ms)).unwrap_or(self.until).min(self.until);
        let (mut is_deferred, mut turn) = (false, None);
        loop {
            let read = self.read(&question).await;
            let is_elsewhere = !matches!(read, Ok(StatusRead::Final(_) | StatusRead::Held(..)));
            if is_deferred && is_elsewhere && is_enabled(Mutation::LatchCompleteLost) {
                sleep_until(until).await;
            }
            let (reply, mut held) = match read {
                Err(error) => return Some(not_leader_outcome(error)),
                Ok(StatusRead::Rejected(outcome)) => return Some(outcome),
                Ok(StatusRead::Final(reply)) => return Some(encoded(&reply)),
                Ok(StatusRead::Held(reply, held)) => (reply, held),
            };
            if Instant::now() >= until {
                return Some(encoded(&reply));
            }
            // It ends with the reply.
            drop(turn.take());
            if !is_deferred {
                self.caller.defer().await;
                is_deferred = true;
            }
            tokio::select! {
                biased;
                // It is settled, or this replica leads no more: the next read tells.
                its_turn = held.settled() => turn = its_turn,
                () = self.caller.control.cancelled.cancelled() => {
                    return Some(Outcome::NotProposed("the caller gave up".into()));
                }
                () = self.caller.disconnected.cancelled() => return None,
                () = sleep_until(until) => {}
            }
        }
    }

    /// Reads under the lease and, unless the outcome is final, holds the reply back in the same step.
    async fn read(&self, question: &AwaitedStatus) -> Result<StatusRead, NotLeader> {
        let shard = self.shard;
        if let Err(failed) = shard.machine.check_health() {
            return Ok(StatusRead::Rejected(Outcome::NotProposed(failed.0)));
        }
        let answer = |term, clock_ms| {
            shard.machine.with_leader_state(term, |core, table| {
                let mut reply = core.query(clock_ms, &question.query);
                if let Ok(response) = &mut reply.outcome {
                    table.questions.complete(&question.namespace, response);
                }
                let is_final = match &reply.outcome {
                    Ok(Response::Latch(latch)) => latch.status.is_final(),
                    Ok(Response::AtBarrier { answer, .. }) => answer.outcome.is_final(),
                    _ => true,
                };
                if is_final {
                    return StatusRead::Final(reply);
                }
                match table.questions.hold(&question.namespace, question.kind, &question.path) {
                    Ok(held) => StatusRead::Held(reply, held),
                    Err(limit) => StatusRead::Final(Reply { outcome: Err(too_many(limit, question.kind)), ..reply }),
                }
            })
        };
        let seen = shard.group.read(shard.reads, self.deadline, |permit| answer(permit.term, permit.clock_ms)).await?;
        Ok(seen.unwrap_or_else(|| StatusRead::Rejected(not_leader(shard))))
    }
}

/// The limit of one thing is said of a latch first, and then of a barrier.
fn too_many(limit: &Limit, kind: Kind) -> CommandError {
    let what = limit.what.get(usize::from(kind == Kind::Barrier)).or(limit.what.first());
    let what = what.copied().unwrap_or(limit.name).to_owned();
    let hint = "let fewer callers wait at once".to_owned();
    CommandError::QuotaExceeded { what, max: limit.default_value(), hint }
}

fn encoded(reply: &Reply) -> Outcome {
    Outcome::Reply(Bytes::from(codec::encode(reply)))
}
