//! Ends sessions without keep-alives for longer than their time to live. Only the leader knows which sessions these
//! are, so it proposes their end. While the entry is in flight, it accepts no keep-alive of those sessions.

use bytes::Bytes;
use holdfast_core::{Command, LocksCommand, SessionNumber, codec};
use holdfast_replication::{Leadership, ProposeError};
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::LeaderContext;
use crate::replica::ShardReplica;

/// Sessions in one entry: they are marked in one step, so no more than a fraction of a slice allows.
const MAX_BATCH: usize = 256;
/// Timeout of the entry, after which the task checks its outcome.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between attempts while no entry can be written.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Runs for one leadership.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref shard, leads, .. } = leading;
    let machine = &shard.machine;
    resolve_expiring(&leading).await;
    loop {
        let mut changed = std::pin::pin!(machine.leader_state_changed().notified());
        changed.as_mut().enable();
        let now = Instant::now();
        match machine.inspect_as_leader(leads.term, |_, table| table.heartbeats.next_check(now)).flatten() {
            Some(next) => sleep_until(next).await,
            None => {
                changed.await;
                continue;
            }
        }
        if !shard.group.has_lease(leads.term) {
            // The leader answered no keep-alives during this time, however many it received.
            machine.inspect_as_leader(leads.term, |_, table| table.heartbeats.suspend(Instant::now()));
            sleep(RETRY_DELAY).await;
            continue;
        }
        let silent = machine.inspect_as_leader(leads.term, |core, table| {
            (table.heartbeats.take_expired(Instant::now(), MAX_BATCH), core.revision())
        });
        let Some((ids, seen)) = silent.filter(|(ids, _)| !ids.is_empty()) else { continue };
        tracing::info!(shard = shard.id, sessions = ids.len(), "sessions expiring: no keep-alives");
        expire(shard, leads, ids.clone(), seen).await;
        machine.with_leader_state(leads.term, |_, table| table.heartbeats.expiry_resolved(&ids, Instant::now()));
        machine.expiry_resolved().notify_waiters();
    }
}

/// Resolves sessions left expiring by a failed run of this task.
async fn resolve_expiring(LeaderContext { shard, leads, .. }: &LeaderContext) {
    let machine = &shard.machine;
    let left = machine.inspect_as_leader(leads.term, |_, table| table.heartbeats.expiring()).unwrap_or_default();
    if left.is_empty() {
        return;
    }
    // The queue keeps it behind the command that expires them, if that is still queued.
    let command = Command::Locks(LocksCommand::ExpireSessions { ids: Vec::new(), known_revision: 0 });
    let bytes = Bytes::from(codec::encode(&command));
    while shard.propose(leads.term, bytes.clone(), Instant::now() + ENTRY_TIMEOUT).await.is_err() {
        sleep(RETRY_DELAY).await;
    }
    machine.with_leader_state(leads.term, |_, table| table.heartbeats.expiry_resolved(&left, Instant::now()));
    machine.expiry_resolved().notify_waiters();
}

/// Returns when the outcome is known: a later entry of the same term has been applied, so the expiry was either applied
/// or never will be.
async fn expire(shard: &ShardReplica, leads: Leadership, ids: Vec<SessionNumber>, known_revision: u64) {
    let command = Command::Locks(LocksCommand::ExpireSessions { ids, known_revision });
    let bytes = Bytes::from(codec::encode(&command));
    match shard.propose(leads.term, bytes, Instant::now() + ENTRY_TIMEOUT).await {
        Ok(_) => {}
        Err(
            ProposeError::NotProposed(_)
            | ProposeError::Limited(_)
            | ProposeError::UnsupportedCommand(_)
            | ProposeError::NotLeader(_),
        ) => {
            sleep(RETRY_DELAY).await;
        }
        Err(ProposeError::Unknown(reason)) => {
            tracing::debug!(shard = shard.id, reason, "outcome of session expiry unknown");
            while shard.propose_clock_tick(leads.term, Instant::now() + ENTRY_TIMEOUT).await.is_err() {
                sleep(RETRY_DELAY).await;
            }
        }
    }
}
