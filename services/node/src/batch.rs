//! Proposes an expensive batch in parts, so that the commands of others come in between.
//!
//! A batch counts as one command in an entry, and all later commands for the shard wait until it is applied. Most batches
//! cost next to nothing. Those of an account whose recent commands were expensive are split by the expected cost.

use bytes::Bytes;
use holdfast_core::{Command, CommandError, LocksCommand, Reply, Response, codec};
use holdfast_proto::internal::answer::Outcome;
use tokio::time::Instant;

use crate::call_handler::propose_command;
use crate::machine::ShardMachine;
use crate::replica::ShardReplica;

/// Maximum expected units of a part of more than one command: half of what one account may have of a slice.
const MAX_PART_UNITS: u64 = 2_048;

/// Proposes a batch, one part after the other. Returns one reply, with the outcomes of all its commands.
pub(crate) async fn propose_batch(shard: &ShardReplica, term: u64, bytes: Bytes, deadline: Instant) -> Outcome {
    if !shard.machine.has_expensive_accounts() {
        return propose_command(shard, term, bytes, deadline).await;
    }
    let parts = match codec::decode(&bytes) {
        Ok(Command::Locks(LocksCommand::Batch(commands))) => split(&shard.machine, commands),
        _ => Vec::new(),
    };
    if parts.len() <= 1 {
        return propose_command(shard, term, bytes, deadline).await;
    }
    let (mut outcomes, mut clock_ms) = (Vec::new(), 0);
    for part in parts {
        let command = Command::Locks(LocksCommand::Batch(part));
        let outcome = propose_command(shard, term, codec::encode(&command).into(), deadline).await;
        match outcomes_of(&outcome) {
            Some((more, now_ms)) => {
                outcomes.extend(more);
                clock_ms = now_ms;
            }
            None => return after_earlier_parts(outcome, !outcomes.is_empty()),
        }
    }
    let reply = Reply { outcome: Ok(Response::Batch(outcomes)), clock_ms, awaits: None };
    Outcome::Reply(codec::encode(&reply).into())
}

/// Splits a batch where the expected cost exceeds that of a part.
fn split(machine: &ShardMachine, commands: Vec<LocksCommand>) -> Vec<Vec<LocksCommand>> {
    let mut parts: Vec<Vec<LocksCommand>> = Vec::new();
    let mut units = 0;
    for command in commands {
        // The type of a command knows its account and its minimum cost.
        let command = Command::Locks(command);
        let price = command.account().map_or(0, |account| machine.price(account.0, command.min_units()));
        let Command::Locks(command) = command else { continue };
        match parts.last_mut() {
            Some(part) if units + price <= MAX_PART_UNITS => {
                part.push(command);
                units += price;
            }
            _ => {
                parts.push(vec![command]);
                units = price;
            }
        }
    }
    parts
}

/// Returns the outcomes of a part and the shard's clock, if it was applied.
fn outcomes_of(outcome: &Outcome) -> Option<(Vec<Result<Response, CommandError>>, u64)> {
    let Outcome::Reply(bytes) = outcome else { return None };
    let reply = codec::decode::<Reply>(bytes).ok()?;
    match reply.outcome {
        Ok(Response::Batch(outcomes)) => Some((outcomes, reply.clock_ms)),
        _ => None,
    }
}

/// Returns the outcome of a batch of which a part failed. After an earlier part was applied, it is not true that the
/// batch had no effect.
fn after_earlier_parts(outcome: Outcome, is_applied_in_part: bool) -> Outcome {
    match outcome {
        Outcome::NotLeader(_) | Outcome::NotProposed(_) if is_applied_in_part => {
            Outcome::Unknown("a part of the batch was applied, and the rest was not proposed".into())
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::Application;
    use holdfast_proto::internal::NotLeader;

    use super::*;
    use crate::testing::{acquire, namespace};

    fn machine(ratio: u64) -> ShardMachine {
        let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
        machine.record_cost(namespace().account, 100, 100 * ratio);
        machine
    }

    fn batch(count: usize) -> Vec<LocksCommand> {
        (0..count).map(|number| acquire(&format!("lock-{number}"))).collect()
    }

    #[test]
    fn a_cheap_batch_stays_whole() {
        let machine = machine(1);
        assert!(!machine.has_expensive_accounts());
        assert_eq!(split(&machine, batch(32)), [batch(32)]);
    }

    #[test]
    fn an_expensive_batch_is_split_by_its_expected_cost_and_keeps_its_order() {
        let machine = machine(50);
        assert!(machine.has_expensive_accounts());
        let price = |command: &LocksCommand| {
            let command = Command::Locks(command.clone());
            machine.price(command.account().unwrap().0, command.min_units())
        };
        let parts = split(&machine, batch(32));
        assert!(parts.len() > 1);
        assert!(parts.iter().all(|part| part.iter().map(price).sum::<u64>() <= MAX_PART_UNITS));
        assert_eq!(parts.concat(), batch(32));
    }

    #[test]
    fn a_command_that_costs_more_than_a_part_is_a_part() {
        let parts = split(&machine(10_000), batch(3));
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn a_batch_that_was_applied_in_part_is_not_told_to_have_had_no_effect() {
        for outcome in [Outcome::NotProposed("busy".into()), Outcome::NotLeader(NotLeader { leader: 2, term: 3 })] {
            assert_eq!(after_earlier_parts(outcome.clone(), false), outcome);
            assert!(matches!(after_earlier_parts(outcome, true), Outcome::Unknown(_)));
        }
    }
}
