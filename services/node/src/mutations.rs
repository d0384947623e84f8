//! Mutations of the state machine; see `holdfast_mutations`. Without the enabled build feature they have no effect.

use std::borrow::Cow;

use bytes::Bytes;
use holdfast_core::shard::{PendingReply, ShardState};
use holdfast_core::{
    Cancel, Claim, Command, EntryContext, Limits, LocksCommand, NamespaceMessage, Query, Rules, WaitRecord,
};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_storage::SnapshotPart;
use holdfast_supervise::catch_panic;

use crate::leader::cancel_all;
use crate::machine::FailedHistory;

/// Returns the command to apply instead.
pub(crate) fn command(core: &ShardState, mut command: Command) -> Command {
    if is_enabled(Mutation::LateCancel)
        && let Command::Locks(LocksCommand::Cancel(cancel)) = &command
        && let Some(record) = core.waits().find(|record| matches_wait(cancel, record))
    {
        command = Command::Locks(cancel_all(cancel.clone(), &record.attempts));
    }
    if is_enabled(Mutation::PurgeMissed)
        && let Command::Locks(LocksCommand::Deliver { message, .. }) = &mut command
        && let NamespaceMessage::Purge { namespace } = message
    {
        *message = NamespaceMessage::Open { namespace: namespace.clone(), limits: Limits::default() };
    }
    command
}

/// Answers a query.
pub(crate) fn query(core: &ShardState, clock_ms: u64, query: &Query) -> PendingReply {
    if is_enabled(Mutation::RunningClock) {
        let mut ahead = core.clone();
        ahead.advance(&EntryContext { now_ms: clock_ms, wall_ms: 0, rules: Rules::HIGHEST });
        return ahead.begin_query(clock_ms, query);
    }
    core.begin_query(clock_ms, query)
}

/// Returns the state to snapshot.
pub(crate) fn snapshot_source(core: &ShardState) -> Cow<'_, ShardState> {
    if !is_enabled(Mutation::QueueLost) {
        return Cow::Borrowed(core);
    }
    let mut without = core.clone();
    let waits: Vec<WaitRecord> = core.waits().collect();
    for WaitRecord { namespace, wait, .. } in waits {
        let (owner, request_id, claims, attempt) = (wait.owner, wait.request_id, wait.claims, wait.attempt);
        let cancel = Cancel { namespace, owner, request_id, claims, attempt };
        let context = EntryContext { now_ms: without.clock_ms(), wall_ms: 0, rules: Rules::HIGHEST };
        without.apply(&context, &Command::Locks(LocksCommand::Cancel(cancel)));
    }
    Cow::Owned(without)
}

/// Returns what a snapshot gets of a shard that failed in this state: nothing, before its state is built again.
pub(crate) fn part_of_broken(core: &ShardState) -> Option<FailedHistory> {
    if !is_enabled(Mutation::BrokenPart) {
        return None;
    }
    let chunks = catch_panic(|| core.freeze().encode()).ok()?;
    let state = SnapshotPart::from_chunks("broken", chunks.into_iter().map(Bytes::from).collect());
    Some(FailedHistory { state: Some(state), ..FailedHistory::default() })
}

/// Returns true if a snapshot must not be restored.
pub(crate) fn skips_restore() -> bool {
    is_enabled(Mutation::TokensReset)
}

fn matches_wait(cancel: &Cancel, record: &WaitRecord) -> bool {
    let sorted = |claims: &[Claim]| {
        let mut claims = claims.to_vec();
        claims.sort();
        claims.dedup();
        claims
    };
    record.namespace == cancel.namespace
        && record.wait.owner == cancel.owner
        && sorted(&record.wait.claims) == sorted(&cancel.claims)
}
