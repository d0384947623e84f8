//! Queries whose reply the leader holds back: waits for latches.

use bytes::Bytes;
use holdfast_core::limit::Limit;
use holdfast_core::{CommandError, LatchQuery, LatchRef, Query, Reply, Response, codec};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::answer::Outcome;
use holdfast_replication::NotLeader;
use holdfast_rpc::ReplyHandle;
use tokio::time::{Duration, Instant, sleep_until};

use crate::call_handler::{not_leader, not_leader_outcome};
use crate::leader::HeldQuestion;
use crate::replica::ShardReplica;

/// A query that its caller lets the leader hold back.
pub(crate) struct HeldQuery<'a> {
    pub(crate) shard: &'a ShardReplica,
    pub(crate) caller: &'a ReplyHandle,
    /// Until when.
    pub(crate) until: Instant,
    pub(crate) deadline: Instant,
}

/// What a leader knows of a latch now.
enum LatchRead {
    /// The reply is final.
    Final(Reply),
    /// It may still change.
    Held(Reply, HeldQuestion),
    /// The replica can't tell.
    Rejected(Outcome),
}

impl HeldQuery<'_> {
    /// Replies once the status of a latch is final, or the time is over. Returns `None` if the caller has disconnected.
    pub(crate) async fn wait_for_latch(&self, latch: LatchRef, wait_ms: u64) -> Option<Outcome> {
        let until = Instant::now().checked_add(Duration::from_millis(wait_ms)).unwrap_or(self.until).min(self.until);
        let mut is_deferred = false;
        loop {
            let read = self.read(&latch).await;
            let is_elsewhere = !matches!(read, Ok(LatchRead::Final(_) | LatchRead::Held(..)));
            if is_deferred && is_elsewhere && is_enabled(Mutation::LatchCompleteLost) {
                sleep_until(until).await;
            }
            let (reply, mut question) = match read {
                Err(error) => return Some(not_leader_outcome(error)),
                Ok(LatchRead::Rejected(outcome)) => return Some(outcome),
                Ok(LatchRead::Final(reply)) => return Some(encoded(&reply)),
                Ok(LatchRead::Held(reply, question)) => (reply, question),
            };
            if Instant::now() >= until {
                return Some(encoded(&reply));
            }
            if !is_deferred {
                self.caller.defer().await;
                is_deferred = true;
            }
            tokio::select! {
                biased;
                // It is settled, or this replica leads no more: the next read tells.
                () = question.settled() => {}
                () = self.caller.control.cancelled.cancelled() => {
                    return Some(Outcome::NotProposed("the caller gave up".into()));
                }
                () = self.caller.disconnected.cancelled() => return None,
                () = sleep_until(until) => {}
            }
        }
    }

    /// Reads the latch under the lease and, unless its status is final, holds the reply back in the same step.
    async fn read(&self, latch: &LatchRef) -> Result<LatchRead, NotLeader> {
        let (shard, query) = (self.shard, Query::Latch(LatchQuery::Wait { latch: latch.clone(), wait_ms: 0 }));
        if let Err(failed) = shard.machine.check_health() {
            return Ok(LatchRead::Rejected(Outcome::NotProposed(failed.0)));
        }
        let answer = |term, clock_ms| {
            shard.machine.with_leader_state(term, |core, table| {
                let reply = core.query(clock_ms, &query);
                let is_open = matches!(&reply.outcome, Ok(Response::Latch(latch)) if !latch.status.is_final());
                if !is_open {
                    return LatchRead::Final(reply);
                }
                match table.questions.hold(&latch.namespace, &latch.path) {
                    Ok(question) => LatchRead::Held(reply, question),
                    Err(limit) => LatchRead::Final(Reply { outcome: Err(too_many(limit)), ..reply }),
                }
            })
        };
        let seen = shard.group.read(shard.reads, self.deadline, |permit| answer(permit.term, permit.clock_ms)).await?;
        Ok(seen.unwrap_or_else(|| LatchRead::Rejected(not_leader(shard))))
    }
}

fn too_many(limit: &Limit) -> CommandError {
    let what = limit.what.first().copied().unwrap_or(limit.name).to_owned();
    let hint = "let fewer callers wait at once".to_owned();
    CommandError::QuotaExceeded { what, max: limit.default_value(), hint }
}

fn encoded(reply: &Reply) -> Outcome {
    Outcome::Reply(Bytes::from(codec::encode(reply)))
}
