//! Queries: answered under the leader lease, some of them held back until there is something to tell.

use bytes::Bytes;
use holdfast_core::{Answer, Query, Reply, codec};
use holdfast_plant::{Plant, is_planted};
use holdfast_proto::internal::answer::Outcome;
use holdfast_replication::NotLeader;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::answer::{not_leader, redirect};
use crate::caller::Caller;
use crate::leader::{SessionKey, SignOfLife, Table};
use crate::planted;
use crate::replica::Replica;

/// What a look at the state gave: nothing while the session is being judged.
type Look = Option<Reply>;

/// Answers a query.
pub(crate) async fn ask(replica: &Replica, query: &Query, deadline: Instant) -> Outcome {
    loop {
        // Before the look, so that no outcome after it is missed.
        let mut judged = std::pin::pin!(replica.machine.judged().notified());
        judged.as_mut().enable();
        match look(replica, query, deadline).await {
            Ok(Some(reply)) => return Outcome::Reply(Bytes::from(codec::encode(&reply))),
            Err(error) => return redirect(error),
            Ok(None) => {
                if timeout_at(deadline, judged).await.is_err() {
                    return Outcome::NotProposed("the session is being judged".into());
                }
            }
        }
    }
}

/// Answers a query of events or of changes of accounts; when there is none yet, once there is, or with none when `until`
/// has come.
pub(crate) async fn watch(replica: &Replica, query: &Query, caller: &Caller, until: Instant) -> Outcome {
    if !waits_for_more(query) {
        return ask(replica, query, until).await;
    }
    let mut is_held = false;
    loop {
        let Some(mut news) = news(replica, query) else { return not_leader(replica) };
        let reply = match look(replica, query, until).await {
            Ok(Some(reply)) => reply,
            Ok(None) => return not_leader(replica),
            Err(error) => return redirect(error),
        };
        if !is_empty(&reply) || Instant::now() >= until {
            return Outcome::Reply(Bytes::from(codec::encode(&reply)));
        }
        if !is_held {
            caller.held().await;
            is_held = true;
        }
        tokio::select! {
            changed = news.changed() => {
                if changed.is_err() {
                    return not_leader(replica);
                }
            }
            () = tokio::time::sleep_until(until) => {}
            () = caller.gone.cancelled() => return not_leader(replica),
            () = caller.cut_off.cancelled() => return not_leader(replica),
        }
    }
}

/// Asking where now is, is answered at once.
fn waits_for_more(query: &Query) -> bool {
    matches!(query, Query::Events { from_revision: Some(_), .. } | Query::AccountChanges { .. })
}

fn is_empty(reply: &Reply) -> bool {
    match &reply.outcome {
        Ok(Answer::Events { events, more: false, .. }) => events.is_empty(),
        Ok(Answer::AccountChanges { changes, .. }) => changes.is_empty(),
        _ => false,
    }
}

fn news(replica: &Replica, query: &Query) -> Option<watch::Receiver<()>> {
    let leads = (*replica.group.leadership().borrow())?;
    let news = |table: &mut Table| match query {
        Query::Events { namespace, .. } => table.news.of(namespace),
        _ => table.news.of_accounts(),
    };
    replica.machine.as_leader(leads.term, |_, table| news(table))
}

/// The lease is judged after the reading, so that a node that was paused in between gives no old answer.
async fn look(replica: &Replica, query: &Query, deadline: Instant) -> Result<Look, NotLeader> {
    let look = |term, clock_ms| {
        let of_table = replica.machine.as_leader(term, |core, table| {
            let reply = planted::query(core, clock_ms, query);
            match &reply.outcome {
                Ok(Answer::Session(_)) => of_session(table, query, reply),
                _ => Some(reply),
            }
        });
        of_table.unwrap_or_else(|| Some(replica.machine.query(clock_ms, query)))
    };
    let leads = *replica.group.leadership().borrow();
    if let (true, Some(leads), Query::KeepAlive { .. }) = (is_planted(Plant::KeepAliveByDeposed), leads, query) {
        return Ok(look(leads.term, leads.clock.now_ms()));
    }
    replica.group.read(replica.reads, deadline, |permit| look(permit.term, permit.clock_ms)).await
}

/// What the leader alone knows of a session: how long it has left. A keep-alive is noted.
fn of_session(table: &mut Table, query: &Query, mut reply: Reply) -> Look {
    let now = Instant::now();
    let remaining_ms = match query {
        Query::KeepAlive { namespace, session_id, .. } => {
            match table.sessions.sign_of_life(&SessionKey::of(namespace, session_id), now) {
                Some(SignOfLife::Judged) => return None,
                Some(SignOfLife::Noted(remaining_ms)) => Some(remaining_ms),
                None => None,
            }
        }
        Query::Session { namespace, session_id } => {
            table.sessions.remaining_ms(&SessionKey::of(namespace, session_id), now)
        }
        _ => None,
    };
    if let (Some(remaining_ms), Ok(Answer::Session(session))) = (remaining_ms, &mut reply.outcome) {
        session.remaining_ms = remaining_ms;
    }
    Some(reply)
}
