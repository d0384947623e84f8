//! Requests of sessions whose holds are in the leader's memory: decided there, without an entry of the log.

use bytes::Bytes;
use holdfast_core::{Command, LocksCommand, Reply, Response, SessionCommand, codec};
use holdfast_proto::internal::answer::Outcome;

use crate::call_handler::not_leader;
use crate::replica::ShardReplica;

/// Applies a command if it is for a lock table in the leader's memory. `None` if it is for the log.
pub(crate) fn apply(shard: &ShardReplica, term: u64, bytes: &[u8]) -> Option<Outcome> {
    let may_be = LocksCommand::is_of_session(bytes) || LocksCommand::is_batch(bytes);
    if !may_be || !shard.machine.has_soft_tables() {
        return None;
    }
    let (commands, is_batch) = session_commands(bytes)?;
    let leads = (*shard.group.subscribe_leadership().borrow()).filter(|leads| leads.term == term);
    let Some(leads) = leads else { return Some(not_leader(shard)) };
    let now_ms = leads.clock.now_ms();
    let applied = shard.machine.with_leader_state(term, |core, table| table.apply_in_memory(core, now_ms, &commands));
    match applied {
        None => Some(not_leader(shard)),
        Some(None) => None,
        Some(Some(mut replies)) => {
            let clock_ms = replies.last().map_or(now_ms, |reply| reply.clock_ms);
            let reply = match replies.pop() {
                Some(reply) if !is_batch => reply,
                last => {
                    let outcomes = replies.into_iter().chain(last).map(|reply| reply.outcome).collect();
                    Reply { outcome: Ok(Response::Batch(outcomes)), clock_ms, awaits: None }
                }
            };
            Some(Outcome::Reply(Bytes::from(codec::encode(&reply))))
        }
    }
}

/// Returns the requests of a connected session that a command consists of, and whether it is a batch. `None` if it has
/// others.
fn session_commands(bytes: &[u8]) -> Option<(Vec<SessionCommand>, bool)> {
    match codec::decode(bytes) {
        Ok(Command::Locks(LocksCommand::Session(command))) => Some((vec![command], false)),
        Ok(Command::Locks(LocksCommand::Batch(commands))) => {
            let of_session = |command| if let LocksCommand::Session(command) = command { Some(command) } else { None };
            let commands: Option<Vec<SessionCommand>> = commands.into_iter().map(of_session).collect();
            commands.filter(|commands| !commands.is_empty()).map(|commands| (commands, true))
        }
        _ => None,
    }
}
