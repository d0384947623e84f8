//! Locks that are forced open whose table is in the leader's memory: the log hears of the call and of the holds first, so
//! that no later leader takes them over.

use bytes::Bytes;
use holdfast_core::locks::ForcedOpen;
use holdfast_core::{Audited, Command, CommandError, Forfeit, LocksCommand, Reply, Response, TableCommand, codec};
use holdfast_proto::internal::answer::Outcome;
use tokio::time::Instant;

use crate::admission::encode_reply;
use crate::call_handler::{not_leader, propose_command};
use crate::replica::ShardReplica;
use crate::soft_calls::wait_for_table_of;

/// How often the log is told of holds that were granted since it was told of others.
const MAX_ROUNDS: usize = 8;

/// Forces a lock open, if that is the command and its table is in the leader's memory. `None` if it is for the log.
pub(crate) async fn force_open(
    shard: &ShardReplica,
    term: u64,
    audited: Audited,
    deadline: Instant,
) -> Option<Outcome> {
    let Command::Locks(LocksCommand::Delete { namespace, path }) = &*audited.command else { return None };
    wait_for_table_of(shard, term, deadline, namespace).await;
    let mut is_noted = false;
    for _ in 0..MAX_ROUNDS {
        let leads = (*shard.group.subscribe_leadership().borrow()).filter(|leads| leads.term == term);
        let now_ms = leads.map(|leads| leads.clock.now_ms());
        let step = now_ms.and_then(|now_ms| {
            let lock = (namespace, path);
            shard
                .machine
                .with_leader_state(term, |core, table| table.force_open_in_memory(core, now_ms, lock, is_noted))
        });
        let forfeit = match step {
            // What the log has been told of may be done by now: by the end of its session.
            None if is_noted => return Some(Outcome::Unknown("the leader changed while it forced a lock open".into())),
            None => return Some(not_leader(shard)),
            Some(None) => return None,
            Some(Some(Ok(ForcedOpen::Done))) => return Some(done(shard, Ok(Response::Done))),
            Some(Some(Err(refused))) => return Some(done(shard, Err(refused))),
            Some(Some(Ok(ForcedOpen::Unknown(forfeit)))) => forfeit,
        };
        let outcome = propose_command(shard, term, noted(&audited, forfeit, is_noted), deadline).await;
        if !is_done(&outcome) {
            return Some(outcome);
        }
        is_noted = true;
    }
    Some(done(shard, Err(CommandError::Busy("others take the lock as often as it is forced open".to_owned()))))
}

/// Returns what the log is told: who forced the lock open, the first time.
fn noted(audited: &Audited, forfeit: Forfeit, is_noted: bool) -> Bytes {
    let command = Command::Locks(LocksCommand::Table(TableCommand::Forfeit(forfeit)));
    let command = match is_noted {
        false => Command::Audited(Audited { command: Box::new(command), ..audited.clone() }),
        true => command,
    };
    codec::encode(&command).into()
}

fn is_done(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Reply(bytes) if codec::decode::<Reply>(bytes).is_ok_and(|reply| reply.outcome.is_ok()))
}

fn done(shard: &ShardReplica, outcome: Result<Response, CommandError>) -> Outcome {
    Outcome::Reply(encode_reply(&shard.machine, outcome))
}
