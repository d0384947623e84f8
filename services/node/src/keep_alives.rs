//! Keep-alives of many sessions in one call: recorded in the memory of the leader, under its lease, without views of
//! the sessions.

use bytes::Bytes;
use holdfast_core::shard::ShardState;
use holdfast_core::{Application, KeepAliveOutcome, Reply, Response, SessionKeepAlive, codec};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::answer::Outcome;
use holdfast_replication::{NotLeader, ReadMode};
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::call_handler::not_leader_outcome;
use crate::leader::{KeepAlive, LeaderState};
use crate::machine::ShardMachine;
use crate::query::read_for_keep_alives;
use crate::replica::Replica;

/// Keep-alives that are recorded before other tasks run, and before the lease is checked again. They hold the lock of a
/// shard's state for less than an apply slice does.
const MAX_SLICE: usize = 256;

/// Records the keep-alives of sessions in shards of the replica's group. What the leader can't decide at once is
/// `Undecided`: the others do not wait for it.
pub(crate) async fn record(
    replica: &Replica,
    reads: ReadMode,
    sessions: &[SessionKeepAlive],
    deadline: Instant,
) -> Outcome {
    let (mut outcomes, mut clock_ms) = (Vec::with_capacity(sessions.len()), 0);
    for slice in sessions.chunks(MAX_SLICE) {
        if !outcomes.is_empty() {
            yield_now().await;
        }
        match record_slice(replica, reads, slice, deadline).await {
            Ok((more, now_ms)) => {
                outcomes.extend(more);
                clock_ms = now_ms;
            }
            // A keep-alive that was recorded but not acknowledged only lets its session live longer.
            Err(error) => return not_leader_outcome(error),
        }
    }
    let reply = Reply { outcome: Ok(Response::KeptAlive(outcomes)), clock_ms, awaits: None };
    Outcome::Reply(Bytes::from(codec::encode(&reply)))
}

/// Returns the outcomes of a slice, and the clock. The lease is checked after the sessions were read.
async fn record_slice(
    replica: &Replica,
    reads: ReadMode,
    sessions: &[SessionKeepAlive],
    deadline: Instant,
) -> Result<(Vec<KeepAliveOutcome>, u64), NotLeader> {
    let record_all = |term, clock_ms| {
        let mut outcomes = vec![KeepAliveOutcome::Undecided; sessions.len()];
        for shard in replica.shards.iter().filter(|shard| shard.application == Application::Locks) {
            record_in_shard(&shard.machine, term, sessions, &mut outcomes, |key| shard.owns(key));
        }
        (outcomes, clock_ms)
    };
    read_for_keep_alives(&replica.group, reads, deadline, record_all).await
}

/// Sets the outcomes of those sessions that the shard has. They stay as they are if it has no state, or if the replica
/// does not lead in this term.
fn record_in_shard(
    machine: &ShardMachine,
    term: u64,
    sessions: &[SessionKeepAlive],
    outcomes: &mut [KeepAliveOutcome],
    owns: impl Fn(u32) -> bool,
) {
    let mut own = sessions.iter().zip(outcomes).filter(|(session, _)| owns(session.key)).peekable();
    // Without the lock if there are none.
    if own.peek().is_some() {
        let recorded = machine.with_leader_state(term, |core, table| {
            let now = Instant::now();
            own.by_ref().for_each(|(session, outcome)| *outcome = record_one(core, table, session, now));
        });
        if recorded.is_none() && is_enabled(Mutation::KeepAliveWhileBroken) {
            own.for_each(|(_, outcome)| *outcome = KeepAliveOutcome::Recorded { remaining_ms: 1 });
        }
    }
}

fn record_one(
    core: &ShardState,
    table: &mut LeaderState,
    session: &SessionKeepAlive,
    now: Instant,
) -> KeepAliveOutcome {
    let (number, ttl_ms) = match core.check_keep_alive(session) {
        Ok(found) => found,
        Err(rejected) => return KeepAliveOutcome::Rejected(rejected),
    };
    // A keep-alive counts only after the session has reported its holds.
    if let Some(unreported) = table.unreported(core, number) {
        return KeepAliveOutcome::Rejected(unreported);
    }
    match table.heartbeats.keep_alive(number, now) {
        Some(KeepAlive::Accepted(remaining_ms)) => KeepAliveOutcome::Recorded { remaining_ms },
        Some(KeepAlive::Expiring) => KeepAliveOutcome::Undecided,
        // Its opening was just applied, and it is about to get its full time.
        None => KeepAliveOutcome::Recorded { remaining_ms: ttl_ms },
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Command, CommandError, LocksCommand, Metadata, NamespaceRef, OpenSession, RequestId};
    use holdfast_replication::{EntryHeader, ReplyMode};
    use tokio::time::Duration;

    use super::*;
    use crate::testing;

    const TERM: u64 = 3;
    const TTL_MS: u64 = 200;

    /// Applies an entry with one command, and returns its response.
    fn apply(machine: &ShardMachine, command: LocksCommand) -> Response {
        let commands = [Bytes::from(codec::encode(&Command::Locks(command)))];
        let header = EntryHeader { rules: 1, now_ms: 1_000, wall_ms: 1_000, ..EntryHeader::default() };
        let applied = machine.apply(header, &commands, ReplyMode::Encode).expect("it is sound");
        let reply: Reply = codec::decode(&testing::finish(applied)[0]).expect("it was encoded here");
        reply.outcome.expect("nothing is refused")
    }

    /// Opens a session, or resumes it, and returns its epoch.
    fn open(machine: &ShardMachine, session_id: &str, resume: bool) -> u64 {
        let number = session_id.as_bytes()[3] + u8::from(resume) * 100;
        let opening = OpenSession {
            namespace: testing::namespace(),
            session_id: session_id.to_owned(),
            resume,
            request_id: RequestId([number; 16]),
            process_id: "p".to_owned(),
            ttl_ms: TTL_MS,
            metadata: Metadata::new(),
        };
        match apply(machine, LocksCommand::OpenSession(opening)) {
            Response::SessionOpened { session, .. } => session.epoch,
            other => panic!("{other:?}"),
        }
    }

    /// A leader with two sessions, and their epochs.
    fn leader() -> (ShardMachine, u64, u64) {
        let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
        machine.on_leadership_change(Some(TERM));
        apply(&machine, testing::open_namespace());
        let (first, second) = (open(&machine, "se_1", false), open(&machine, "se_2", false));
        (machine, first, second)
    }

    fn keep_alive(key: u32, session_id: &str, epoch: u64) -> SessionKeepAlive {
        SessionKeepAlive { key, namespace: testing::namespace(), session_id: session_id.to_owned(), epoch }
    }

    /// Returns the outcomes in a shard that owns the keys below 10.
    fn outcomes(machine: &ShardMachine, term: u64, sessions: &[SessionKeepAlive]) -> Vec<KeepAliveOutcome> {
        let mut outcomes = vec![KeepAliveOutcome::Undecided; sessions.len()];
        record_in_shard(machine, term, sessions, &mut outcomes, |key| key < 10);
        outcomes
    }

    fn recorded() -> KeepAliveOutcome {
        KeepAliveOutcome::Recorded { remaining_ms: TTL_MS }
    }

    #[tokio::test(start_paused = true)]
    async fn each_session_is_decided_by_itself() {
        let (machine, first, second) = leader();
        let resumed = open(&machine, "se_2", true);
        let elsewhere = NamespaceRef { name: "unknown".to_owned(), ..testing::namespace() };
        let sessions = [
            keep_alive(1, "se_1", first),
            keep_alive(1, "se_2", second),
            keep_alive(1, "se_2", resumed),
            keep_alive(1, "se_3", 1),
            SessionKeepAlive { namespace: elsewhere, ..keep_alive(1, "se_1", first) },
            keep_alive(10, "se_1", first),
        ];
        let expected = [
            recorded(),
            KeepAliveOutcome::Rejected(CommandError::Superseded { epoch: resumed }),
            recorded(),
            KeepAliveOutcome::Rejected(CommandError::SessionNotFound("se_3".to_owned())),
            KeepAliveOutcome::Rejected(CommandError::NamespaceNotFound),
            KeepAliveOutcome::Undecided,
        ];
        assert_eq!(outcomes(&machine, TERM, &sessions), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_keep_alive_gives_the_full_time_and_none_while_the_session_expires() {
        let (machine, first, second) = leader();
        let both = [keep_alive(1, "se_1", first), keep_alive(1, "se_2", second)];
        tokio::time::advance(Duration::from_millis(150)).await;
        assert_eq!(outcomes(&machine, TERM, &both[..1]), [recorded()]);
        tokio::time::advance(Duration::from_millis(100)).await;
        let expiring = machine.with_leader_state(TERM, |_, table| table.heartbeats.take_expired(Instant::now(), 10));
        assert_eq!(expiring.map(|numbers| numbers.len()), Some(1), "the silent one");
        assert_eq!(outcomes(&machine, TERM, &both), [recorded(), KeepAliveOutcome::Undecided]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_does_not_lead_in_the_term_decides_nothing() {
        let (machine, first, _) = leader();
        let sessions = [keep_alive(1, "se_1", first)];
        assert_eq!(outcomes(&machine, TERM + 1, &sessions), [KeepAliveOutcome::Undecided]);
        machine.on_leadership_change(None);
        assert_eq!(outcomes(&machine, TERM, &sessions), [KeepAliveOutcome::Undecided]);
    }
}
