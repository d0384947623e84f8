//! Telling a connection what happens to its session.

use bytes::Bytes;
use holdfast_core::{Answer, Follow, Query, Refusal, Reply, codec};
use holdfast_proto::internal::answer::Outcome;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::answer::{not_leader, redirect};
use crate::caller::Caller;
use crate::leader::SessionKey;
use crate::replica::Replica;

/// Follows until the session ends, the replica no longer leads or the caller is gone. The outcome says why it is over.
pub(crate) async fn follow(replica: &Replica, follow: &Follow, caller: &Caller, deadline: Instant) -> Outcome {
    let began = replica.group.read(replica.reads, deadline, |permit| begin(replica, permit.term, follow));
    let mut notices = match began.await {
        Ok(Some(Ok(notices))) => notices,
        Ok(Some(Err(reply))) => return Outcome::Reply(Bytes::from(codec::encode(&*reply))),
        Ok(None) => return not_leader(replica),
        Err(error) => return redirect(error),
    };
    caller.held().await;
    loop {
        let notice = tokio::select! {
            notice = notices.recv() => notice,
            () = caller.gone.cancelled() => None,
            () = caller.cut_off.cancelled() => None,
        };
        let Some(notice) = notice else { break };
        if !caller.notice(notice).await {
            break;
        }
    }
    drop(notices);
    if let Some(leads) = *replica.group.leadership().borrow() {
        let key = SessionKey::of(&follow.namespace, &follow.session_id);
        replica.machine.as_leader(leads.term, |_, table| table.follows.forget_gone(&key));
    }
    not_leader(replica)
}

/// In one step, so that nothing is missed between looking and following.
fn begin(replica: &Replica, term: u64, follow: &Follow) -> Option<Result<mpsc::Receiver<Bytes>, Box<Reply>>> {
    replica.machine.as_leader(term, |core, table| {
        let Follow { namespace, session_id, epoch } = follow;
        let query = Query::Session { namespace: namespace.clone(), session_id: session_id.clone() };
        let reply = core.query(core.clock_ms(), &query);
        match &reply.outcome {
            Ok(Answer::Session(session)) if session.epoch == *epoch => {
                Ok(table.follows.follow(SessionKey::of(namespace, session_id), *epoch))
            }
            Ok(Answer::Session(session)) => {
                Err(Box::new(Reply { outcome: Err(Refusal::Superseded { epoch: session.epoch }), ..reply }))
            }
            _ => Err(Box::new(reply)),
        }
    })
}
