//! Writes what the lock tables in the leader's memory need from the log: their epoch, once there are namespaces for
//! them, and blocks of revisions. Ends due holds and waits in them, which needs no entry.

use bytes::Bytes;
use holdfast_core::{Command, LocksCommand, Reply, TableCommand, codec};
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::LeaderContext;

/// Timeout of an entry, after which it is written again.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between attempts while no entry can be written.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// Steps in a row after which the task sleeps, for a timer's shortest time, also while more is due.
const STEPS_AT_ONCE: u32 = 64;

/// Runs for one leadership.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref shard, leads, .. } = leading;
    let machine = &shard.machine;
    // A run that failed may have left a command under way.
    machine.inspect_as_leader(leads.term, |core, table| table.table_written(core, &NOTHING, None));
    let (mut signals, memory) = (machine.signals(), machine.table_memory());
    let mut steps = 0;
    loop {
        signals.borrow_and_update();
        let mut changed = std::pin::pin!(machine.leader_state_changed().notified());
        changed.as_mut().enable();
        // Events of this shard give way to locks of others also while nobody calls.
        let mut scarce = std::pin::pin!(memory.became_scarce().notified());
        scarce.as_mut().enable();
        let command = machine.inspect_as_leader(leads.term, |core, table| table.next_table_command(core)).flatten();
        if let Some(command) = command {
            write(&leading, &command).await;
            continue;
        }
        let now_ms = leads.clock.now_ms();
        let advanced = machine.inspect_as_leader(leads.term, |core, table| table.advance_tables(core, now_ms));
        let (due, wakes_all) = advanced.unwrap_or_default();
        if wakes_all {
            machine.leader_state_changed().notify_waiters();
        }
        // A timer takes a millisecond even for what is due already, which is longer than a step. Each step enters or
        // ends something, or reports a later deadline, or none because it waits for the log. A sleep now and then lets
        // time go on also where it is simulated, so that this is no endless loop whatever a step does.
        if due.is_some_and(|due_ms| due_ms <= now_ms) && steps < STEPS_AT_ONCE {
            steps += 1;
            yield_now().await;
            continue;
        }
        steps = 0;
        let due = async {
            match due {
                Some(due_ms) => sleep_until(leads.clock.instant_of(due_ms)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = scarce => {}
            () = due => {}
            changed = signals.changed() => if changed.is_err() { return },
        }
    }
}

/// Stands for a command that a failed run left under way.
const NOTHING: TableCommand = TableCommand::ReserveBlock { epoch: 0, after: 0 };

/// Writes a command, and tells the leader state what became of it. An outcome that is not known is found out by writing
/// another one.
async fn write(LeaderContext { shard, leads, .. }: &LeaderContext, command: &TableCommand) {
    let bytes = Bytes::from(codec::encode(&Command::Locks(LocksCommand::Table(command.clone()))));
    let written = shard.propose_own(leads.term, bytes, Instant::now() + ENTRY_TIMEOUT).await;
    let reply = written.map_err(|error| tracing::debug!(shard = shard.id, %error, "table command failed"));
    let reply: Option<Reply> = reply.ok().and_then(|bytes| codec::decode(&bytes).ok());
    let outcome = reply.and_then(|reply| reply.outcome.ok());
    let machine = &shard.machine;
    machine.with_leader_state(leads.term, |core, table| table.table_written(core, command, outcome.as_ref()));
    if outcome.is_none() {
        sleep(RETRY_DELAY).await;
    }
}
