//! One call of a gateway, from frame to answer.

use bytes::Bytes;
use holdfast_core::shard::Application;
use holdfast_core::{Query, Reply, codec};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Answer, Call, NotLeader};
use holdfast_replication::ProposeError;
use tokio::time::{Duration, Instant, timeout_at};

use crate::replica::Replica;

/// Answers a call. `replica` is the one that it is addressed to, if this node hosts it.
pub(crate) async fn answer(replica: Option<&Replica>, call: Call, received: Instant) -> Answer {
    let deadline = received + Duration::from_millis(call.deadline_ms.into());
    let outcome = match (replica, call.body) {
        (None, _) => Outcome::NotProposed(format!("replica {} is not on this node", call.replica)),
        (Some(_), None) => Outcome::NotProposed("the call has neither a command nor a query".into()),
        (Some(replica), Some(Body::Command(bytes))) => command(replica, call.term, bytes, deadline).await,
        (Some(replica), Some(Body::Query(bytes))) => query(replica, &bytes, deadline).await,
    };
    Answer { id: call.id, outcome: Some(outcome) }
}

async fn command(replica: &Replica, term: u64, bytes: Bytes, deadline: Instant) -> Outcome {
    match replica.group.propose(term, bytes, deadline).await {
        Ok(reply) => settled(replica, reply, deadline).await,
        Err(ProposeError::NotLeader(not_leader)) => redirect(not_leader),
        Err(ProposeError::NotProposed(reason)) => Outcome::NotProposed(reason.into()),
        Err(ProposeError::Unknown(reason)) => Outcome::Unknown(reason.into()),
    }
}

/// Holds a reply back until other shards have confirmed what it depends on. Replies of locks shards depend on nobody.
async fn settled(replica: &Replica, bytes: Bytes, deadline: Instant) -> Outcome {
    if replica.application == Application::Locks {
        return Outcome::Reply(bytes);
    }
    let number = match codec::decode::<Reply>(&bytes) {
        Ok(reply) => reply.awaits_outbox,
        Err(error) => return Outcome::Unknown(format!("the reply can't be read: {error}")),
    };
    let Some(number) = number else { return Outcome::Reply(bytes) };
    let mut signals = replica.machine.signals();
    let mut leadership = replica.group.leadership();
    loop {
        signals.borrow_and_update();
        if replica.machine.is_settled(number) {
            return Outcome::Reply(bytes);
        }
        // A replica that no longer leads delivers nothing; the caller repeats the command at the next leader.
        if leadership.borrow_and_update().is_none() {
            return Outcome::Unknown("leadership ended before other shards had confirmed".into());
        }
        let wait = async {
            tokio::select! {
                changed = signals.changed() => changed.is_ok(),
                changed = leadership.changed() => changed.is_ok(),
            }
        };
        if !matches!(timeout_at(deadline, wait).await, Ok(true)) {
            return Outcome::Unknown("the deadline passed before other shards had confirmed".into());
        }
    }
}

async fn query(replica: &Replica, bytes: &[u8], deadline: Instant) -> Outcome {
    let query: Query = match codec::decode(bytes) {
        Ok(query) => query,
        Err(error) => return Outcome::NotProposed(format!("the query can't be read: {error}")),
    };
    // The lease is judged after the reading, so that a node that was paused in between gives no old answer.
    let read = replica.group.read(replica.reads, deadline, |permit| replica.machine.query(permit.clock_ms, &query));
    match read.await {
        Ok(reply) => Outcome::Reply(Bytes::from(codec::encode(&reply))),
        Err(not_leader) => redirect(not_leader),
    }
}

fn redirect(not_leader: holdfast_replication::NotLeader) -> Outcome {
    Outcome::NotLeader(NotLeader { leader: not_leader.leader.unwrap_or(0), term: not_leader.term })
}
