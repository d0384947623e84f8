//! Calls about lock tables in the leader's memory: decided there, without an entry of the log.

use std::pin::pin;

use bytes::Bytes;
use holdfast_core::locks::SoftTable;
use holdfast_core::shard::ShardState;
use holdfast_core::{Command, JobState, LocksCommand, NamespaceRef, Query, Reply, codec};
use holdfast_proto::internal::answer::Outcome;
use holdfast_replication::{NotLeader, ReadPermit};
use tokio::time::{Duration, Instant, timeout_at};

use crate::call_handler::{not_leader, not_leader_outcome};
use crate::leader::LeaderState;
use crate::replica::ShardReplica;
use crate::soft_deletes;

/// How long a command waits for a table that is not complete, before it is refused.
const MAX_WAIT: Duration = Duration::from_millis(2_500);
/// How long the resume of a session waits for the report of the gateway that it had, before its client has to make it.
const REPORT_GRACE: Duration = Duration::from_millis(200);

/// Applies a command if it is for a lock table in the leader's memory, as soon as that can decide it. The opening of a
/// session is for the log, but waits for the epoch of its table.
///
/// # Errors
/// The command, if it was decoded, when it is for the log.
pub(crate) async fn apply(
    shard: &ShardReplica,
    term: u64,
    bytes: &[u8],
    deadline: Instant,
) -> Result<Outcome, Option<Box<Command>>> {
    // A report is never for the log, whatever has become of its namespace.
    let is_for_leader = LocksCommand::is_table_report(bytes) || shard.machine.has_soft_tables();
    if !may_be_for_table(bytes) || !is_for_leader {
        return Err(None);
    }
    match codec::decode(bytes) {
        Ok(Command::Locks(command)) => match Box::pin(apply_decoded(shard, term, &command, deadline)).await {
            Some(outcome) => Ok(outcome),
            None => Err(Some(Box::new(Command::Locks(command)))),
        },
        Ok(Command::Audited(audited)) => {
            Box::pin(soft_deletes::force_open(shard, term, audited, deadline)).await.ok_or(None)
        }
        Ok(command) => Err(Some(Box::new(command))),
        Err(_) => Err(None),
    }
}

/// Returns whether an encoded command may be for a lock table in the leader's memory. None of these waits for a grant.
pub(crate) fn may_be_for_table(bytes: &[u8]) -> bool {
    LocksCommand::may_be_for_table(bytes) || Command::is_audited(bytes)
}

async fn apply_decoded(shard: &ShardReplica, term: u64, command: &LocksCommand, deadline: Instant) -> Option<Outcome> {
    // A rebuild goes on by reports and releases, so others never take their room.
    let is_counted = SoftTable::waits_for_rebuild(command);
    let table_of = |core: &ShardState| SoftTable::table_of(core, command).filter(|_| is_counted);
    wait_for_table(shard, term, deadline, table_of, |core, table| table.must_wait_for_tables(core, command)).await;
    let grace = deadline.min(Instant::now() + REPORT_GRACE);
    wait_until(shard, term, grace, |_| None, |core, table| table.awaits_report(core, command)).await;
    let leads = (*shard.group.subscribe_leadership().borrow()).filter(|leads| leads.term == term);
    let Some(leads) = leads else { return Some(not_leader(shard)) };
    // A grant is safe without a lease. But a leader that is cut off keeps no session alive, and the one of the majority
    // may be found: its own name as a hint would lead back here.
    if !shard.group.has_recent_quorum(term) {
        return Some(not_leader_outcome(NotLeader { leader: None, term: 0 }));
    }
    let apply_at =
        |now_ms| shard.machine.with_leader_state(term, |core, table| table.apply_in_memory(core, now_ms, command));
    let applied = match answers_as_read(shard, term, command) {
        false => apply_at(leads.clock.now_ms()),
        true => {
            let look = |permit: ReadPermit| (permit.term == term).then(|| apply_at(permit.clock_ms)).flatten();
            match shard.group.read(shard.reads, deadline, look).await {
                Ok(applied) => applied,
                Err(error) => return Some(not_leader_outcome(error)),
            }
        }
    };
    match applied {
        None => Some(not_leader(shard)),
        Some(None) => None,
        Some(Some(reply)) => Some(wait_for_job(shard, term, reply, deadline).await),
    }
}

/// Returns whether the answer of a command shows what others hold, so that it has to be the latest, as that of a query.
/// What it adds is lost with the leader in any case.
fn answers_as_read(shard: &ShardReplica, term: u64, command: &LocksCommand) -> bool {
    let is_ask = matches!(command, LocksCommand::AskRelease(_));
    let is_for_tables = |core: &ShardState, _: &mut LeaderState| SoftTable::is_for_tables(core, command);
    is_ask && shard.machine.inspect_as_leader(term, is_for_tables).unwrap_or(false)
}

/// Defers a reply until its work is complete, which the leader does in steps.
async fn wait_for_job(shard: &ShardReplica, term: u64, mut reply: Reply, deadline: Instant) -> Outcome {
    let Some(began) = reply.awaits else { return Outcome::Reply(Bytes::from(codec::encode(&reply))) };
    let state_of = |core: &ShardState, table: &mut LeaderState| table.table_job_state(core, began);
    loop {
        let mut changed = pin!(shard.machine.leader_state_changed().notified());
        changed.as_mut().enable();
        match shard.machine.inspect_as_leader(term, state_of) {
            None => return Outcome::Unknown("leadership ended before it was done".into()),
            Some(JobState::Unknown) => {
                return Outcome::Unknown("what the reply awaits is not known any more".into());
            }
            Some(JobState::Done { ended_holds, ended_waits }) => {
                reply.set_counts(ended_holds, ended_waits);
                return Outcome::Reply(Bytes::from(codec::encode(&reply)));
            }
            Some(JobState::Running) => {}
        }
        if timeout_at(deadline, changed).await.is_err() {
            return Outcome::Unknown("the deadline passed before it was done".into());
        }
    }
}

/// Returns as soon as a query can be answered, if it is about a lock table in the leader's memory; in any case after a
/// while. Whoever reads events waits for the epoch only. A subscriber that asks what it still holds is answered at once,
/// or asks again: until claims are entered it has lost nothing.
pub(crate) async fn wait_to_answer(shard: &ShardReplica, query: &Query, deadline: Instant) {
    let is_of_subscriber = matches!(query, Query::ReconcileHolds { .. });
    let Some(namespace) = query.lock_table().filter(|_| !is_of_subscriber && shard.machine.has_soft_tables()) else {
        return;
    };
    let leads = *shard.group.subscribe_leadership().borrow();
    if let Some(leads) = leads {
        let table_of = |_: &ShardState| Some(namespace.clone());
        let must_wait = |core: &ShardState, table: &LeaderState| table.must_wait_to_answer(core, namespace, query);
        wait_for_table(shard, leads.term, deadline, table_of, must_wait).await;
    }
}

/// Returns as soon as the lock table of a namespace is complete, if it is in the leader's memory; in any case after a
/// while.
pub(crate) async fn wait_for_table_of(shard: &ShardReplica, term: u64, deadline: Instant, namespace: &NamespaceRef) {
    let table_of = |_: &ShardState| Some(namespace.clone());
    wait_for_table(shard, term, deadline, table_of, |core, table| table.must_wait_for_table_of(core, namespace)).await;
}

/// As [`wait_until`], after [`MAX_WAIT`] or at the deadline.
async fn wait_for_table(
    shard: &ShardReplica,
    term: u64,
    deadline: Instant,
    table_of: impl Fn(&ShardState) -> Option<NamespaceRef>,
    must_wait: impl Fn(&ShardState, &LeaderState) -> bool,
) {
    wait_until(shard, term, deadline.min(Instant::now() + MAX_WAIT), table_of, must_wait).await;
}

/// Returns when nothing has to wait any more, at this time, or with the leadership; at once if too many wait for the
/// same table, if it counts towards one.
async fn wait_until(
    shard: &ShardReplica,
    term: u64,
    until: Instant,
    table_of: impl Fn(&ShardState) -> Option<NamespaceRef>,
    must_wait: impl Fn(&ShardState, &LeaderState) -> bool,
) {
    let machine = &shard.machine;
    let (mut signals, mut place) = (machine.signals(), None);
    loop {
        signals.borrow_and_update();
        let mut changed = pin!(machine.leader_state_changed().notified());
        changed.as_mut().enable();
        let awaited = machine.inspect_as_leader(term, |core, table| must_wait(core, table).then(|| table_of(core)));
        let Some(Some(counted)) = awaited else { return };
        if let Some(namespace) = counted.filter(|_| place.is_none()) {
            place = shard.table_waits.enter(&namespace);
            if place.is_none() {
                return;
            }
        }
        let wait = async {
            tokio::select! {
                () = changed => true,
                changed = signals.changed() => changed.is_ok(),
            }
        };
        if !matches!(timeout_at(until, wait).await, Ok(true)) {
            return;
        }
    }
}
