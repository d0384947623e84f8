//! Cancels queued requests that lost their callers, and releases grants that no caller received.

use futures::{StreamExt, stream};
use holdfast_core::{
    Cancel, CancelPermits, ConditionQuery, NamespaceRef, PermitQuery, PermitWaitView, Query, Response, Rules, WaitId,
    WaitView,
};
use holdfast_replication::Leadership;
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, sleep_until};

use super::LeaderContext;
use crate::leader::{Orphaned, Rollback};
use crate::machine::ShardMachine;
use crate::replica::ShardReplica;

/// Maximum number of cancels that wait for an entry at a time: the cancels of several commands.
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
        let orphaned = stream::iter(take_orphaned(machine, leads).await);
        orphaned.for_each_concurrent(MAX_CANCELS, |one| cancel_orphaned(shard, leads, one)).await;
    }
}

/// Takes requests that lost their callers, as many as may be cancelled at a time. Lets go of the state now and then.
async fn take_orphaned(machine: &ShardMachine, leads: Leadership) -> Vec<Orphaned> {
    let mut orphaned = Vec::new();
    while orphaned.len() < MAX_CANCELS {
        let taken = machine.inspect_as_leader(leads.term, |_, table| {
            let rules = table.rules();
            table.waits.take_orphaned(Instant::now(), rules)
        });
        match taken {
            Some(taken) if !taken.is_empty() => orphaned.extend(taken),
            _ => break,
        }
        yield_now().await;
    }
    orphaned
}

async fn cancel_orphaned(shard: &ShardReplica, leads: Leadership, orphaned: Orphaned) {
    let machine = &shard.machine;
    let cancel = match &orphaned.rollback {
        Some(cancel) => cancel.clone(),
        None => {
            let Some((cancel, highest)) = find_wait(machine, leads, &orphaned.namespace, orphaned.wait) else { return };
            // By rules 1 the highest attempt owns the queued request, and another call may have attached during the
            // check.
            let is_newer = orphaned.attempts.iter().all(|attempt| highest > *attempt);
            if is_newer && machine.inspect_as_leader(leads.term, |_, table| table.rules()) < Some(Rules::TWO) {
                return;
            }
            cancel
        }
    };
    let account = cancel.namespace().account;
    if !shard.cancel(leads.term, account, cancel.into_command(&orphaned.attempts)).await {
        machine.with_leader_state(leads.term, |_, table| table.waits.reinsert(orphaned));
    }
}

/// Returns what cancels the request, if it still waits, and the highest attempt that attached to it.
fn find_wait(
    machine: &ShardMachine,
    leads: Leadership,
    namespace: &NamespaceRef,
    wait: WaitId,
) -> Option<(Rollback, u64)> {
    let (after, limit) = (Some(WaitId(wait.0.checked_sub(1)?)), 1);
    let outcome_of = |query: Query| {
        let reply = machine.inspect_as_leader(leads.term, |core, _| core.query(core.clock_ms(), &query));
        reply.and_then(|reply| reply.outcome.ok())
    };
    let namespace = namespace.clone();
    // First: whoever waits for a lock that it gave up is found by what it gave up.
    let query = Query::Condition(ConditionQuery::Caller { namespace: namespace.clone(), wait });
    if let Some(Response::AwaitCaller(record)) = outcome_of(query) {
        return Some((Rollback::Await(record.cancel), record.attempt));
    }
    if let Some(Response::Waits { waits, .. }) = outcome_of(Query::Waits { namespace: namespace.clone(), after, limit })
        && let Some(view) = waits.into_iter().find(|view| view.wait == wait)
    {
        let WaitView { owner, request_id, claims, attempt, .. } = view;
        return Some((Rollback::Locks(Cancel { namespace, owner, request_id, claims, attempt }), attempt));
    }
    let query = Query::Permit(PermitQuery::Waits { namespace: namespace.clone(), after, limit });
    let Some(Response::PermitWaits { waits, .. }) = outcome_of(query) else { return None };
    let view = waits.into_iter().find(|view| view.wait == wait)?;
    let PermitWaitView { kind, path, owner, request_id, attempt, .. } = view;
    let cancel = CancelPermits { namespace, kind, path, owner, request_id, attempts: vec![attempt] };
    Some((Rollback::Permits(cancel), attempt))
}
