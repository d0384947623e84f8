//! Limits that every replica keeps alike: whoever reaches one is refused alone.

use holdfast_core::limit::{self, Limit};
use holdfast_core::{
    AccountId, Acquire, AcquireOutcome, AcquirePermits, ArriveAtBarrier, AwaitCondition, BarrierCommand, Command,
    CommandError, ConditionCommand, ConfigurePool, CreateLatch, Incarnation, Kinds, LatchCommand, LatchIds, Limits,
    LocksCommand, MemberSpec, Metadata, Mode, NamespaceRef, OpenSession, Owner, Path, PermitCommand, Query, Response,
    Rules, Wait, Wanted,
};

use crate::conditions::await_command;
use crate::support::{Shard, lock_request, open, orders};
use crate::wait_requests::{open_command, session_owner, session_wait_request, try_request, wait_request, write};

const SESSION: &str = "se_1";
/// More steps than any of the limits below allows.
const MANY: u64 = 1_000;

/// The n-th of the commands with which a namespace comes to a limit.
type Step = fn(u64) -> LocksCommand;

struct Case {
    limit: &'static Limit,
    limits: Limits,
    step: Step,
    /// Whether another namespace of the account has the limit for itself.
    is_of_namespace: bool,
}

fn readers(number: u64) -> LocksCommand {
    LocksCommand::Acquire(lock_request(&format!("p{number}"), Mode::Read))
}

fn holds(number: u64) -> LocksCommand {
    LocksCommand::Acquire(try_request("p", &[write(&format!("l{number}"))]))
}

fn sessions(number: u64) -> LocksCommand {
    LocksCommand::OpenSession(open_command(&format!("se_{number}"), false, number))
}

/// One holds, the others wait for it.
fn line(number: u64) -> LocksCommand {
    LocksCommand::Acquire(match number {
        0 => try_request("h", &[write("l")]),
        _ => wait_request(&format!("p{number}"), &[write("l")]),
    })
}

/// One waits at many places below what another holds.
fn own_line(number: u64) -> LocksCommand {
    LocksCommand::Acquire(match number {
        0 => try_request("h", &[write("l")]),
        _ => wait_request("p", &[write(&format!("l/{number}"))]),
    })
}

/// Each waits for the one before, and holds what the next one waits for.
fn chain(number: u64) -> LocksCommand {
    let (owner, lock) = (format!("p{}", number / 2), format!("l{}", number / 2));
    LocksCommand::Acquire(match (number / 2, number % 2) {
        (_, 0) => try_request(&owner, &[write(&lock)]),
        (0, _) => try_request("p0", &[write("free")]),
        (place, _) => wait_request(&owner, &[write(&format!("l{}", place - 1))]),
    })
}

/// An owner that waits takes one lock after the other.
fn holds_of_waiting(number: u64) -> LocksCommand {
    LocksCommand::Acquire(match number {
        0 => try_request("h", &[write("l")]),
        _ if number % 2 == 1 => try_request("p", &[write(&format!("m{number}"))]),
        _ => wait_request("p", &[write(&format!("l/{number}"))]),
    })
}

fn in_session(number: u64, name: &str, lock: &str, owner: Owner) -> LocksCommand {
    match number {
        0 => LocksCommand::OpenSession(open_command(SESSION, false, 0)),
        _ => LocksCommand::Acquire(Acquire { owner, ..session_wait_request(SESSION, name, &[write(lock)]) }),
    }
}

fn requests_of_hold(number: u64) -> LocksCommand {
    in_session(number, &format!("r{number}"), "l", session_owner(SESSION))
}

fn requests_of_session(number: u64) -> LocksCommand {
    in_session(number, &format!("r{number}"), &format!("l{number}"), session_owner(SESSION))
}

fn owners_of_session(number: u64) -> LocksCommand {
    let owner = Owner::Session { session_id: SESSION.into(), holder: Some(format!("h{number}")) };
    in_session(number, &format!("r{number}"), &format!("l{number}"), owner)
}

fn latch(number: u64, total: u64, ids: LatchIds) -> LocksCommand {
    LocksCommand::Latch(LatchCommand::Create(CreateLatch {
        namespace: orders(),
        path: Path::flat(format!("l{number}")),
        total,
        ids,
        expires_in_ms: 1_000_000,
        retain_ms: 60_000,
        description: String::new(),
        metadata: Metadata::new(),
    }))
}

fn latches(number: u64) -> LocksCommand {
    latch(number, 1, LatchIds::Named)
}

fn named_jobs(number: u64) -> LocksCommand {
    latch(number, number + 1, LatchIds::Named)
}

fn indexed_jobs(number: u64) -> LocksCommand {
    latch(number, number + 1, LatchIds::Indexed)
}

/// A request for one of so many permits.
fn permit(number: u64, path: &str, permits: u64, owner: Owner) -> LocksCommand {
    let is_of_session = matches!(owner, Owner::Session { .. });
    LocksCommand::Permit(PermitCommand::Acquire(AcquirePermits {
        namespace: orders(),
        path: Path::flat(path),
        owner,
        request_id: format!("r{number}"),
        wanted: Wanted::Permits { weight: 1, permits: Some(permits) },
        priority: 0,
        ttl_ms: (!is_of_session).then_some(1_000_000),
        transition_ms: 0,
        wait: if is_of_session { Wait::No } else { Wait::For(1_000_000) },
        metadata: Metadata::new(),
        fencing_token: None,
        attempt: 0,
        abandoned: vec![],
        message: None,
    }))
}

fn semaphores(number: u64) -> LocksCommand {
    permit(number, &format!("s{number}"), 1, Owner::Process("p".into()))
}

fn permits(number: u64) -> LocksCommand {
    permit(number, "s", MANY, Owner::Process("p".into()))
}

/// One has the only permit, the others wait for it.
fn line_for_permit(number: u64) -> LocksCommand {
    permit(number, "s", 1, Owner::Process("p".into()))
}

fn permits_of_session(number: u64) -> LocksCommand {
    match number {
        0 => LocksCommand::OpenSession(open_command(SESSION, false, 0)),
        _ => permit(number, "s", MANY, session_owner(SESSION)),
    }
}

fn pool(path: &str, members: u64) -> LocksCommand {
    let member = |number: u64| MemberSpec { name: format!("m{number}"), disabled: false, metadata: Metadata::new() };
    LocksCommand::Permit(PermitCommand::ConfigurePool(ConfigurePool {
        namespace: orders(),
        path: Path::flat(path),
        members: (0..members).map(member).collect(),
        cooldown_ms: 0,
        description: String::new(),
        metadata: Metadata::new(),
    }))
}

fn pools(number: u64) -> LocksCommand {
    pool(&format!("p{number}"), 1)
}

fn members(number: u64) -> LocksCommand {
    pool("p", number + 1)
}

/// Each takes one member more than the one before.
fn takes(number: u64) -> LocksCommand {
    let LocksCommand::Permit(PermitCommand::Acquire(acquire)) = permit(number, "p", 1, Owner::Process("p".into()))
    else {
        unreachable!("it is an acquire")
    };
    match number {
        0 => pool("p", 100),
        count => {
            let wanted = Wanted::Members { count, prefer: None };
            LocksCommand::Permit(PermitCommand::Acquire(AcquirePermits { wanted, ..acquire }))
        }
    }
}

/// The first arrival at a barrier of so many parties.
fn barrier(path: String, parties: u64) -> LocksCommand {
    LocksCommand::Barrier(BarrierCommand::Arrive(ArriveAtBarrier {
        namespace: orders(),
        path: Path::flat(path),
        owner: Owner::Process("p".into()),
        generation: None,
        parties: u32::try_from(parties).ok(),
        double: None,
        ttl_ms: Some(1_000_000),
        metadata: Metadata::new(),
        request_id: None,
        message: None,
    }))
}

fn barriers(number: u64) -> LocksCommand {
    barrier(format!("b{number}"), 2)
}

fn parties(number: u64) -> LocksCommand {
    barrier(format!("b{number}"), number + 1)
}

/// Each locks the same lock, and gives it up.
fn awaits(number: u64) -> LocksCommand {
    LocksCommand::Condition(ConditionCommand::Await(await_command(Owner::Process(format!("p{number}")), 0, "c")))
}

/// Each awaits a condition of its own.
fn conditions(number: u64) -> LocksCommand {
    let owner = Owner::Process(format!("p{number}"));
    LocksCommand::Condition(ConditionCommand::Await(await_command(owner, 0, &format!("c{number}"))))
}

fn cases_of_tables() -> Vec<Case> {
    let of_namespace =
        |limit: &'static Limit, limits: Limits, step: Step| Case { limit, limits, step, is_of_namespace: true };
    let usual = Limits::default;
    vec![
        of_namespace(&limit::LATCHES, Limits { max_latches_per_namespace: 3, ..usual() }, latches),
        of_namespace(&limit::LATCH_IDS, Limits { max_latch_ids: 3, ..usual() }, named_jobs),
        of_namespace(&limit::LATCH_INDEXES, Limits { max_latch_indexes: 3, ..usual() }, indexed_jobs),
        of_namespace(&limit::SEMAPHORES, Limits { max_semaphores_per_namespace: 3, ..usual() }, semaphores),
        of_namespace(&limit::HOLDS_OF_SEMAPHORE, Limits { max_holds_per_semaphore: 3, ..usual() }, permits),
        of_namespace(
            &limit::WAITING_FOR_SEMAPHORE,
            Limits { max_waiting_per_semaphore: 3, ..usual() },
            line_for_permit,
        ),
        of_namespace(
            &limit::PERMIT_HOLDS_OF_SESSION,
            Limits { max_permit_holds_per_session: 3, ..usual() },
            permits_of_session,
        ),
        of_namespace(&limit::POOLS, Limits { max_pools_per_namespace: 3, ..usual() }, pools),
        of_namespace(&limit::MEMBERS_OF_POOL, Limits { max_members_per_pool: 3, ..usual() }, members),
        of_namespace(&limit::MEMBERS_OF_HOLD, Limits { max_members_per_take: 3, ..usual() }, takes),
        of_namespace(&limit::BARRIERS, Limits { max_barriers_per_namespace: 3, ..usual() }, barriers),
        of_namespace(&limit::PARTIES, Limits { max_parties_per_barrier: 3, ..usual() }, parties),
        of_namespace(&limit::AWAITING_LOCK, Limits { max_awaiting_per_lock: 3, ..usual() }, awaits),
        of_namespace(&limit::CONDITIONS_OF_LOCK, Limits { max_conditions_per_lock: 3, ..usual() }, conditions),
        of_namespace(&limit::PRIMITIVE_BYTES, Limits { max_primitive_bytes: 5_000, ..usual() }, latches),
    ]
}

fn cases() -> Vec<Case> {
    let of_namespace =
        |limit: &'static Limit, limits: Limits, step: Step| Case { limit, limits, step, is_of_namespace: true };
    let usual = Limits::default;
    vec![
        of_namespace(&limit::READERS, Limits { max_readers_per_lock: 3, ..usual() }, readers),
        of_namespace(&limit::HOLDS, Limits { max_holds_per_namespace: 3, ..usual() }, holds),
        of_namespace(&limit::SESSIONS, Limits { max_sessions_per_namespace: 3, ..usual() }, sessions),
        of_namespace(&limit::WAITING, Limits { max_waiting_per_namespace: 3, ..usual() }, line),
        of_namespace(&limit::WAITING_FOR_LOCK, Limits { max_waiting_per_lock: 3, ..usual() }, line),
        of_namespace(&limit::WAITING_OF_OWNER, Limits { max_waiting_per_owner: 3, ..usual() }, own_line),
        of_namespace(&limit::TANGLE, Limits { max_tangle: 3, ..usual() }, chain),
        of_namespace(
            &limit::HOLDS_OF_WAITING_OWNER,
            Limits { max_holds_of_waiting_owner: 3, ..usual() },
            holds_of_waiting,
        ),
        of_namespace(&limit::REQUESTS_OF_HOLD, Limits { max_requests_per_hold: 3, ..usual() }, requests_of_hold),
        of_namespace(
            &limit::REQUESTS_OF_SESSION,
            Limits { max_requests_per_session: 3, ..usual() },
            requests_of_session,
        ),
        of_namespace(&limit::OWNERS_OF_SESSION, Limits { max_owners_per_session: 3, ..usual() }, owners_of_session),
        Case {
            limit: &limit::STATE_BYTES,
            limits: Limits { max_state_bytes: 20_000, ..usual() },
            step: holds,
            is_of_namespace: false,
        },
    ]
}

/// Applies a step in a namespace; the limit that refuses it, if one does.
fn apply(shard: &mut Shard, namespace: &NamespaceRef, step: LocksCommand) -> Option<&'static Limit> {
    let namespace = namespace.clone();
    let command = match step {
        LocksCommand::Acquire(acquire) => LocksCommand::Acquire(Acquire { namespace, ..acquire }),
        LocksCommand::OpenSession(open) => LocksCommand::OpenSession(OpenSession { namespace, ..open }),
        LocksCommand::Latch(LatchCommand::Create(create)) => {
            LocksCommand::Latch(LatchCommand::Create(CreateLatch { namespace, ..create }))
        }
        LocksCommand::Permit(PermitCommand::Acquire(acquire)) => {
            LocksCommand::Permit(PermitCommand::Acquire(AcquirePermits { namespace, ..acquire }))
        }
        LocksCommand::Permit(PermitCommand::ConfigurePool(configure)) => {
            LocksCommand::Permit(PermitCommand::ConfigurePool(ConfigurePool { namespace, ..configure }))
        }
        LocksCommand::Barrier(BarrierCommand::Arrive(arrive)) => {
            LocksCommand::Barrier(BarrierCommand::Arrive(ArriveAtBarrier { namespace, ..arrive }))
        }
        LocksCommand::Condition(ConditionCommand::Await(awaits)) => {
            let lock = Acquire { namespace: namespace.clone(), ..lock_request("", Mode::Write) };
            let fencing_token = shard.granted(Acquire { owner: awaits.owner.clone(), ..lock });
            LocksCommand::Condition(ConditionCommand::Await(AwaitCondition { namespace, fencing_token, ..awaits }))
        }
        other => panic!("no step: {other:?}"),
    };
    match shard.apply(&Command::Locks(command)).outcome {
        Err(refusal @ CommandError::QuotaExceeded { .. }) => refusal.limit(),
        Ok(
            Response::Acquired { outcome: AcquireOutcome::Refused(refused), .. }
            | Response::PermitsAcquired { outcome: AcquireOutcome::Refused(refused), .. }
            | Response::Awaited { outcome: AcquireOutcome::Refused(refused), .. },
        ) => panic!("{refused:?}"),
        outcome => {
            outcome.expect("it is within all limits");
            None
        }
    }
}

#[test]
fn whoever_reaches_a_limit_is_refused_alone() {
    for Case { limit, limits, step, is_of_namespace } in cases().into_iter().chain(cases_of_tables()) {
        let other_namespace = NamespaceRef { name: "other".into(), incarnation: Incarnation(2), ..orders() };
        let other_account = NamespaceRef { account: AccountId(8), incarnation: Incarnation(3), ..orders() };
        let mut shard = Shard::with_limits(limits.clone());
        shard.rules = Rules::TWO;
        for (number, namespace, limits) in [(2, &other_namespace, limits), (3, &other_account, Limits::default())] {
            assert_eq!(shard.apply(&open(number, namespace.clone(), limits)).outcome, Ok(Response::Done));
        }
        let refused = (0..MANY).find_map(|number| Some((number, apply(&mut shard, &orders(), step(number))?)));
        let (at, refused_by) = refused.unwrap_or_else(|| panic!("{} is never reached", limit.name));
        assert_eq!(refused_by.name, limit.name, "at step {at}");
        assert_eq!(apply(&mut shard, &orders(), step(at)), Some(limit), "it stays so");
        for number in 0..=at {
            assert_eq!(apply(&mut shard, &other_account, step(number)), None, "{}: another account", limit.name);
        }
        for number in (0..at).filter(|_| is_of_namespace) {
            assert_eq!(apply(&mut shard, &other_namespace, step(number)), None, "{}: another namespace", limit.name);
        }
        shard.core.verify();
    }
}

/// Nothing is refused: the oldest events give way.
#[test]
fn a_namespace_with_many_events_forgets_its_own_oldest_and_no_others() {
    let limits = Limits { max_event_bytes: 2_000, ..Limits::default() };
    let other = NamespaceRef { account: AccountId(8), incarnation: Incarnation(2), ..orders() };
    let mut shard = Shard::with_limits(limits);
    shard.rules = Rules::TWO;
    assert_eq!(shard.apply(&open(2, other.clone(), Limits::default())).outcome, Ok(Response::Done));
    assert_eq!(apply(&mut shard, &other, holds(0)), None);
    let first = shard.core.revision();
    for number in 0..MANY {
        assert_eq!(apply(&mut shard, &orders(), holds(number)), None);
    }
    let events = |namespace| {
        let (from_revision, prefix) = (Some(first), Path::default());
        shard.query(&Query::Events { namespace, from_revision, prefix, kinds: Kinds::LOCKS, limit: 10 })
    };
    let own = events(orders());
    assert!(matches!(own, Err(CommandError::RevisionCompacted { oldest }) if oldest > first), "{own:?}");
    assert!(events(other).is_ok());
}
