//! Faults of the state machine that are planted on purpose; see `holdfast_plant`. In a build that is not armed none of
//! this does anything.

use std::borrow::Cow;

use holdfast_core::shard::{PendingReply, ShardCore};
use holdfast_core::{Cancel, Claim, Command, Context, Limits, LocksCommand, NamespaceMessage, Query, Rules, WaitLease};
use holdfast_plant::{Plant, is_planted};

use crate::leader::cancel_all;

/// The command that is carried out instead.
pub(crate) fn command(core: &ShardCore, mut command: Command) -> Command {
    if is_planted(Plant::LateCancel)
        && let Command::Locks(LocksCommand::Cancel(cancel)) = &command
        && let Some(lease) = core.wait_leases().find(|lease| is_place_of(cancel, lease))
    {
        command = cancel_all(cancel.clone(), &lease.attempts);
    }
    if is_planted(Plant::PurgeMissed)
        && let Command::Locks(LocksCommand::Deliver { message, .. }) = &mut command
        && let NamespaceMessage::Purge { namespace } = message
    {
        *message = NamespaceMessage::Open { namespace: namespace.clone(), limits: Limits::default() };
    }
    command
}

/// The answer to a query.
pub(crate) fn query(core: &ShardCore, clock_ms: u64, query: &Query) -> PendingReply {
    if is_planted(Plant::RunningClock) {
        let mut ahead = core.clone();
        ahead.advance(&Context { now_ms: clock_ms, wall_ms: 0, rules: Rules::HIGHEST });
        return ahead.begin_query(clock_ms, query);
    }
    core.begin_query(clock_ms, query)
}

/// The state of which a snapshot is taken.
pub(crate) fn to_save(core: &ShardCore) -> Cow<'_, ShardCore> {
    if !is_planted(Plant::QueueLost) {
        return Cow::Borrowed(core);
    }
    let mut without = core.clone();
    let leases: Vec<WaitLease> = core.wait_leases().collect();
    for WaitLease { namespace, wait, .. } in leases {
        let (owner, request_id, claims, attempt) = (wait.owner, wait.request_id, wait.claims, wait.attempt);
        let cancel = Cancel { namespace, owner, request_id, claims, attempt };
        let context = Context { now_ms: without.clock_ms(), wall_ms: 0, rules: Rules::HIGHEST };
        without.apply(&context, &Command::Locks(LocksCommand::Cancel(cancel)));
    }
    Cow::Owned(without)
}

/// Whether a snapshot is not taken over.
pub(crate) fn keeps_nothing() -> bool {
    is_planted(Plant::TokensReset)
}

fn is_place_of(cancel: &Cancel, lease: &WaitLease) -> bool {
    let sorted = |claims: &[Claim]| {
        let mut claims = claims.to_vec();
        claims.sort();
        claims.dedup();
        claims
    };
    lease.namespace == cancel.namespace
        && lease.wait.owner == cancel.owner
        && sorted(&lease.wait.claims) == sorted(&cancel.claims)
}
