//! Proposes an expensive batch in parts, so that other commands run in between.
//!
//! A batch counts as one command in an entry, and all later commands for the shard wait until it is applied. Most
//! batches cost little. Batches of an account whose recent commands were expensive are split by the expected cost.

use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{Command, CommandError, LocksCommand, Reply, Response, codec};
use holdfast_proto::internal::answer::Outcome;
use tokio::time::{Instant, sleep};

use crate::call_handler::propose_command;
use crate::machine::ShardMachine;
use crate::replica::ShardReplica;

/// Maximum expected units of a part of more than one command: half of what one account may have of a slice.
const MAX_PART_UNITS: u64 = 2_048;
/// Delay before a later part that found no room is proposed again.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// How long before the caller's deadline a batch in parts is given up, so that the answer still arrives.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// Proposes a batch, one part after the other; it may be decoded already. Returns one reply, with the outcomes of all
/// its commands.
pub(crate) async fn propose_batch(
    shard: &ShardReplica,
    term: u64,
    (bytes, decoded): (Bytes, Option<Box<Command>>),
    deadline: Instant,
) -> Outcome {
    if !shard.machine.has_expensive_accounts() {
        return propose_command(shard, term, bytes, deadline).await;
    }
    let decoded = decoded.or_else(|| codec::decode(&bytes).ok().map(Box::new));
    let parts = match decoded.map(|command| *command) {
        Some(Command::Locks(LocksCommand::Batch(commands))) => split(&shard.machine, commands),
        _ => Vec::new(),
    };
    if parts.len() <= 1 {
        return propose_command(shard, term, bytes, deadline).await;
    }
    let deadline = deadline.checked_sub(ANSWER_TIME).unwrap_or(deadline);
    Box::pin(propose_parts(parts, deadline, move |command| propose_command(shard, term, command, deadline))).await
}

/// Proposes the parts with `propose`. After the first part was applied, the batch has had an effect, so a later part
/// that finds no room is proposed again until the deadline. The parts left then are rejected: an unknown outcome would
/// count against the leader.
async fn propose_parts<F: Future<Output = Outcome>>(
    parts: Vec<Vec<LocksCommand>>,
    deadline: Instant,
    propose: impl Fn(Bytes) -> F,
) -> Outcome {
    let (mut outcomes, mut clock_ms) = (Vec::new(), 0);
    let mut parts = parts.into_iter();
    while let Some(part) = parts.next() {
        let count = part.len();
        let command = Bytes::from(codec::encode(&Command::Locks(LocksCommand::Batch(part))));
        let mut outcome = propose(command.clone()).await;
        while !outcomes.is_empty() && is_refused(&outcome) && Instant::now() + RETRY_DELAY < deadline {
            sleep(RETRY_DELAY).await;
            outcome = propose(command.clone()).await;
        }
        match (outcomes_of(&outcome), outcome) {
            (Some((more, now_ms)), _) => {
                outcomes.extend(more);
                clock_ms = now_ms;
            }
            (None, Outcome::NotProposed(reason)) if !outcomes.is_empty() => {
                let left = count + parts.by_ref().map(|part| part.len()).sum::<usize>();
                outcomes.extend(std::iter::repeat_n(Err(CommandError::NotProposed(reason)), left));
            }
            (None, outcome) => return after_earlier_parts(outcome, !outcomes.is_empty()),
        }
    }
    let reply = Reply { outcome: Ok(Response::Batch(outcomes)), clock_ms, awaits: None };
    Outcome::Reply(codec::encode(&reply).into())
}

fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::NotProposed(_))
}

/// Splits a batch where the expected cost exceeds that of a part. A command may cost what others of its kind did, or of
/// batches like this one, which are measured as a whole.
fn split(machine: &ShardMachine, commands: Vec<LocksCommand>) -> Vec<Vec<LocksCommand>> {
    let kind = LocksCommand::cost_kind_of(&commands) as u8;
    let mut parts: Vec<Vec<LocksCommand>> = Vec::new();
    let mut units = 0;
    for command in commands {
        // The type of a command knows its account and its minimum cost.
        let command = Command::Locks(command);
        let price_as = |account: u64, kind| machine.price(account, kind, command.min_units());
        let of_both = |account: u64| price_as(account, kind).max(price_as(account, command.cost_kind() as u8));
        let price = command.account().map_or(0, |account| of_both(account.0));
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
        Outcome::NotLeader(_) if is_applied_in_part => {
            Outcome::Unknown("a part of the batch was applied, and the rest was not proposed".into())
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;

    use holdfast_core::{Application, CostKind};
    use holdfast_proto::internal::NotLeader;

    use super::*;
    use crate::testing::{acquire, namespace};

    fn machine(ratio: u64) -> ShardMachine {
        let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
        machine.record_cost(namespace().account, CostKind::Acquire as u8, 100, 100 * ratio);
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
            machine.price(command.account().unwrap().0, CostKind::Acquire as u8, command.min_units())
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

    fn refused() -> Option<Outcome> {
        Some(Outcome::NotProposed("busy".into()))
    }

    /// Proposes three parts of two commands each. Attempts whose number has an outcome end with it, all others are
    /// applied. Returns the outcome, and the number of attempts.
    async fn propose_three(outcome_of: impl Fn(usize) -> Option<Outcome>) -> (Outcome, usize) {
        let attempts = Cell::new(0);
        let deadline = Instant::now() + 10 * RETRY_DELAY;
        let propose = |command: Bytes| {
            let attempt = attempts.replace(attempts.get() + 1);
            let Ok(Command::Locks(LocksCommand::Batch(part))) = codec::decode(&command) else { panic!("no batch") };
            let done = part.iter().map(|_| Ok(Response::Done)).collect();
            let reply = Reply { outcome: Ok(Response::Batch(done)), clock_ms: 5, awaits: None };
            ready(outcome_of(attempt).unwrap_or_else(|| Outcome::Reply(codec::encode(&reply).into())))
        };
        let outcome = propose_parts(vec![batch(2); 3], deadline, propose).await;
        (outcome, attempts.get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_part_that_finds_no_room_is_proposed_again() {
        let (outcome, attempts) = propose_three(|attempt| (1..5).contains(&attempt).then(refused).flatten()).await;
        let (outcomes, clock_ms) = outcomes_of(&outcome).expect("all were applied");
        assert_eq!((outcomes, clock_ms, attempts), (vec![Ok(Response::Done); 6], 5, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn what_finds_no_room_until_the_deadline_is_refused_and_what_was_applied_is_answered() {
        let (outcome, attempts) = propose_three(|attempt| (attempt > 0).then(refused).flatten()).await;
        let (outcomes, clock_ms) = outcomes_of(&outcome).expect("a part was applied");
        assert_eq!((&outcomes[..2], clock_ms), (&[Ok(Response::Done), Ok(Response::Done)][..], 5));
        assert_eq!(outcomes[2..], vec![Err(CommandError::NotProposed("busy".into())); 4]);
        assert!((3..20).contains(&attempts), "{attempts}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_part_that_is_not_proposed_is_for_the_caller_to_repeat() {
        assert_eq!(propose_three(|_| refused()).await, (refused().expect("it is one"), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_was_applied_in_part_is_not_told_to_have_had_no_effect() {
        let other = || Outcome::NotLeader(NotLeader { leader: 2, term: 3 });
        assert_eq!(propose_three(|_| Some(other())).await, (other(), 1));
        let (outcome, attempts) = propose_three(|attempt| (attempt == 1).then(other)).await;
        assert!(matches!(outcome, Outcome::Unknown(_)) && attempts == 2, "{outcome:?}");
    }
}
