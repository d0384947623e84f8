//! Locks that are forced open whose table is in the leader's memory: the log hears of the call and of the holds, so
//! that no later leader takes them over. They end with its entry.

use holdfast_core::{Audited, Command, CommandError, LocksCommand, Response, TableCommand, codec};
use holdfast_proto::internal::answer::Outcome;
use tokio::time::Instant;

use crate::admission::encode_reply;
use crate::call_handler::{not_leader, propose_command};
use crate::replica::ShardReplica;
use crate::soft_calls::wait_for_table_of;

/// Forces a lock open, if that is the command and its table is in the leader's memory. `None` if it is for the log.
pub(crate) async fn force_open(
    shard: &ShardReplica,
    term: u64,
    audited: Audited,
    deadline: Instant,
) -> Option<Outcome> {
    let Command::Locks(LocksCommand::Delete { namespace, path }) = &*audited.command else { return None };
    wait_for_table_of(shard, term, deadline, namespace).await;
    let leads = (*shard.group.subscribe_leadership().borrow()).filter(|leads| leads.term == term);
    let Some(leads) = leads else { return Some(not_leader(shard)) };
    let (now_ms, lock) = (leads.clock.now_ms(), (namespace, path));
    let told = shard.machine.with_leader_state(term, |core, table| table.force_open_in_memory(core, now_ms, lock));
    let forfeit = match told {
        None => return Some(not_leader(shard)),
        Some(None) => return None,
        Some(Some(Err(refused))) => return Some(refuse(shard, refused)),
        Some(Some(Ok(forfeit))) => forfeit,
    };
    let command = Box::new(Command::Locks(LocksCommand::Table(TableCommand::Forfeit(forfeit))));
    let noted = codec::encode(&Command::Audited(Audited { command, ..audited }));
    Some(propose_command(shard, term, noted.into(), deadline).await)
}

fn refuse(shard: &ShardReplica, refused: CommandError) -> Outcome {
    let outcome: Result<Response, CommandError> = Err(refused);
    Outcome::Reply(encode_reply(&shard.machine, outcome))
}
