//! Streams the updates of a session to its connection.

use bytes::Bytes;
use holdfast_core::{CommandError, Query, Reply, Response, SubscribeSession, codec};
use holdfast_proto::internal::answer::Outcome;
use holdfast_rpc::ReplyHandle;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::call_handler::{not_leader, not_leader_outcome};
use crate::leader::SessionKey;
use crate::replica::Replica;

/// Streams updates until the session ends, the replica no longer leads or the caller disconnects. The outcome is the
/// reason for the end.
pub(crate) async fn run(
    replica: &Replica,
    follow: &SubscribeSession,
    caller: &ReplyHandle,
    deadline: Instant,
) -> Outcome {
    let began = replica.group.read(replica.reads, deadline, |permit| start(replica, permit.term, follow));
    let mut notices = match began.await {
        Ok(Some(Ok(notices))) => notices,
        Ok(Some(Err(reply))) => return Outcome::Reply(Bytes::from(codec::encode(&*reply))),
        Ok(None) => return not_leader(replica),
        Err(error) => return not_leader_outcome(error),
    };
    caller.defer().await;
    loop {
        let notice = tokio::select! {
            notice = notices.recv() => notice,
            () = caller.cancelled.cancelled() => None,
            () = caller.disconnected.cancelled() => None,
        };
        let Some(notice) = notice else { break };
        if !caller.send_update(notice).await {
            break;
        }
    }
    drop(notices);
    if let Some(leads) = *replica.group.subscribe_leadership().borrow() {
        let key = SessionKey::of(&follow.namespace, &follow.session_id);
        replica.machine.with_leader_state(leads.term, |_, table| table.subscriptions.remove_closed(&key));
    }
    not_leader(replica)
}

/// Reads the session and subscribes in one step, so that no update is missed in between.
fn start(replica: &Replica, term: u64, follow: &SubscribeSession) -> Option<Result<mpsc::Receiver<Bytes>, Box<Reply>>> {
    replica.machine.with_leader_state(term, |core, table| {
        let SubscribeSession { namespace, session_id, epoch } = follow;
        let query = Query::Session { namespace: namespace.clone(), session_id: session_id.clone() };
        let reply = core.query(core.clock_ms(), &query);
        match &reply.outcome {
            Ok(Response::Session(session)) if session.epoch == *epoch => {
                Ok(table.subscriptions.subscribe(SessionKey::of(namespace, session_id), *epoch))
            }
            Ok(Response::Session(session)) => {
                Err(Box::new(Reply { outcome: Err(CommandError::Superseded { epoch: session.epoch }), ..reply }))
            }
            _ => Err(Box::new(reply)),
        }
    })
}
