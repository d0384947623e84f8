//! Cancels queued requests that lost their callers, and releases grants that no caller received.

use futures::{StreamExt, stream};
use holdfast_core::{Cancel, Query, Response, Rules, WaitId};
use holdfast_core::{NamespaceRef, WaitView};
use holdfast_replication::Leadership;
use tokio::time::{Duration, Instant, sleep_until};

use super::LeaderContext;
use crate::leader::{Orphaned, cancel_all};
use crate::machine::ShardMachine;
use crate::replica::ShardReplica;

/// Cancels that wait for an entry at a time: those of several commands.
const MAX_CANCELS: usize = 4_096;
/// Poll interval if only a change can bring work.
const IDLE_INTERVAL: Duration = Duration::from_secs(3_600);

/// Runs for one leadership.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref shard, leads, .. } = leading;
    let machine = &shard.machine;
    machine.inspect_as_leader(leads.term, |core, table| table.recover_waits(core));
    loop {
        let mut changed = std::pin::pin!(machine.leader_state_changed().notified());
        changed.as_mut().enable();
        let next = machine.inspect_as_leader(leads.term, |_, table| table.waits.next_expiry()).flatten();
        tokio::select! {
            () = sleep_until(next.unwrap_or_else(|| Instant::now() + IDLE_INTERVAL)) => {}
            () = changed => continue,
        }
        let orphaned = machine.inspect_as_leader(leads.term, |_, table| {
            let rules = table.rules();
            table.waits.take_orphaned(Instant::now(), rules)
        });
        let orphaned = stream::iter(orphaned.unwrap_or_default());
        orphaned.for_each_concurrent(MAX_CANCELS, |one| cancel_orphaned(shard, leads, one)).await;
    }
}

async fn cancel_orphaned(shard: &ShardReplica, leads: Leadership, orphaned: Orphaned) {
    let machine = &shard.machine;
    let cancel = match &orphaned.rollback {
        Some(cancel) => cancel.clone(),
        None => {
            let Some(view) = find_wait(machine, leads, &orphaned.namespace, orphaned.wait) else { return };
            // By rules 1 the highest attempt owns the queued request, and another call may have attached during the
            // check.
            let is_newer = orphaned.attempts.iter().all(|attempt| view.attempt > *attempt);
            if is_newer && machine.inspect_as_leader(leads.term, |_, table| table.rules()) < Some(Rules::TWO) {
                return;
            }
            Cancel {
                namespace: orphaned.namespace.clone(),
                owner: view.owner,
                request_id: view.request_id,
                claims: view.claims,
                attempt: view.attempt,
            }
        }
    };
    let account = cancel.namespace.account;
    if !shard.cancel(leads.term, account, cancel_all(cancel, &orphaned.attempts)).await {
        machine.with_leader_state(leads.term, |_, table| table.waits.reinsert(orphaned));
    }
}

/// Returns the request, if it still waits.
fn find_wait(machine: &ShardMachine, leads: Leadership, namespace: &NamespaceRef, wait: WaitId) -> Option<WaitView> {
    let after = Some(WaitId(wait.0.checked_sub(1)?));
    let query = Query::Waits { namespace: namespace.clone(), after, limit: 1 };
    let reply = machine.inspect_as_leader(leads.term, |core, _| core.query(core.clock_ms(), &query))?;
    let Ok(Response::Waits { waits, .. }) = reply.outcome else { return None };
    waits.into_iter().find(|view| view.wait == wait)
}
