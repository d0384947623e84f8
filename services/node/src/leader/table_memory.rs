//! Commands for lock tables in memory, once there is little memory left for them.

use holdfast_core::locks::SoftTable;
use holdfast_core::shard::ShardState;
use holdfast_core::{CommandError, EntryContext, LocksCommand, Reply, Response};

use crate::admission::{insert_rejected, split_batch};
use crate::memory::ShardMemory;

/// Applies a command, except for parts that would create state beyond the memory limit. Existing state can still
/// change.
pub(super) fn apply_what_fits(
    table: &mut SoftTable,
    memory: &ShardMemory,
    (core, context): (&ShardState, &EntryContext),
    command: &LocksCommand,
) -> Reply {
    let check = |table: &SoftTable, command: &LocksCommand| {
        let account = command.growing_account().filter(|_| table.creates_state(core, command));
        account.map_or(Ok(()), |account| memory.check(account))
    };
    if let LocksCommand::Batch(commands) = command {
        let (admitted, refused) = split_batch(commands.clone(), |command| check(table, command));
        let mut reply = table.apply(core, context, &LocksCommand::Batch(admitted));
        if let Ok(Response::Batch(outcomes)) = &mut reply.outcome {
            insert_rejected(outcomes, refused);
        }
        return reply;
    }
    match check(table, command) {
        Ok(()) => table.apply(core, context, command),
        Err(refusal) => rejected(refusal, context.now_ms),
    }
}

fn rejected(refusal: CommandError, clock_ms: u64) -> Reply {
    Reply { outcome: Err(refusal), clock_ms, awaits: None }
}
