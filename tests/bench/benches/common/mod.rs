//! Commands, and a locks shard with holds.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

pub(crate) mod group;

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Acquire, AcquireOutcome, Claim, Command, EntryContext, Incarnation, Limits, LocksCommand, Metadata,
    Mode, NamespaceMessage, NamespaceRef, Owner, Path, Query, Release, ReleaseTarget, Response, Rules, Wait,
};

pub(crate) const SHARD: &str = "locks_00";
pub(crate) const HOUR_MS: u64 = 3_600_000;
/// The wall clock is this much ahead of the shard clock.
const WALL_AHEAD_MS: u64 = 1_700_000_000_000;

pub(crate) fn context_at(now_ms: u64) -> EntryContext {
    EntryContext { now_ms, wall_ms: WALL_AHEAD_MS + now_ms, rules: Rules::HIGHEST }
}

fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(7), name: "orders".to_owned(), incarnation: Incarnation(1) }
}

/// Opens the namespace that all commands here are about.
pub(crate) fn open() -> Command {
    let limits = Limits { max_holds_per_namespace: 10_000_000, ..Limits::default() };
    let message = NamespaceMessage::open(namespace(), limits);
    Command::Locks(LocksCommand::Deliver { source: "namespaces_00".to_owned(), number: 1, message })
}

pub(crate) fn acquire(name: &str, owner: &str, ttl_ms: u64) -> Command {
    acquire_all(&[Path::flat(name)], owner, ttl_ms)
}

pub(crate) fn acquire_all(paths: &[Path], owner: &str, ttl_ms: u64) -> Command {
    Command::Locks(LocksCommand::Acquire(Acquire {
        namespace: namespace(),
        owner: Owner::Process(owner.to_owned()),
        claims: paths.iter().map(|path| Claim { path: path.clone(), mode: Mode::Write }).collect(),
        ttl_ms: Some(ttl_ms),
        transition_ms: 0,
        metadata: Metadata::new(),
        fencing_token: None,
        requested_expires_at_ns: None,
        wait: Wait::No,
        allow_upgrade: false,
        request_id: None,
        attempt: 0,
        message: None,
    }))
}

pub(crate) fn release(name: &str, owner: &str) -> Command {
    release_all(&[Path::flat(name)], owner)
}

pub(crate) fn release_all(paths: &[Path], owner: &str) -> Command {
    Command::Locks(LocksCommand::Release(Release {
        namespace: namespace(),
        owner: Owner::Process(owner.to_owned()),
        what: ReleaseTarget::Paths { paths: paths.to_vec(), fencing_token: None },
        message: None,
    }))
}

pub(crate) fn get_query(name: &str) -> Query {
    Query::Lock { namespace: namespace(), path: Path::flat(name) }
}

/// A shard in which so many locks are held, each by an owner of its own.
pub(crate) fn shard_with(holds: u64, ttl_ms: u64) -> ShardState {
    let mut core = ShardState::new(Application::Locks, SHARD);
    core.advance(&context_at(1));
    assert_eq!(core.apply(&context_at(1), &open()).outcome, Ok(Response::Done));
    for number in 0..holds {
        let command = acquire(&format!("lock-{number}"), &format!("owner-{number}"), ttl_ms);
        let reply = core.apply(&context_at(1), &command);
        assert!(
            matches!(reply.outcome, Ok(Response::Acquired { outcome: AcquireOutcome::Granted { .. }, .. })),
            "{reply:?}"
        );
    }
    core
}
