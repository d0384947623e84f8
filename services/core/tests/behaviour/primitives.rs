//! Latches and semaphores: limits, request ids, events and what their callers learn of the other tables.

use holdfast_core::{
    AcquireOutcome, AcquirePermits, CancelPermits, Command, CommandError, ConfigureSemaphore, CountDown, CreateLatch,
    EventKind, Jobs, Kind, Kinds, LatchCommand, LatchIds, LatchRef, Limits, LocksCommand, Metadata, Mode, OpenSession,
    Owner, Path, PermitCommand, PermitsEnd, Query, Reason, ReleasePermits, Response, Wait, Wanted,
};

use crate::support::{Shard, lock_request, orders, process, request_id};

pub(crate) fn limited(limits: Limits) -> Shard {
    // Any limit that came with rules 2 raises the rules.
    Shard::with_limits(Limits { max_tangle: 200, ..limits })
}

pub(crate) fn create(path: &str, total: u64, ids: LatchIds) -> CreateLatch {
    CreateLatch {
        namespace: orders(),
        path: Path::flat(path),
        total,
        ids,
        expires_in_ms: 10_000,
        retain_ms: 60_000,
        description: String::new(),
        metadata: Metadata::new(),
    }
}

pub(crate) fn latch(shard: &mut Shard, command: LatchCommand) -> Result<Response, CommandError> {
    shard.apply(&Command::Locks(LocksCommand::Latch(command))).outcome
}

pub(crate) fn semaphore(shard: &mut Shard, command: PermitCommand) -> Result<Response, CommandError> {
    shard.apply(&Command::Locks(LocksCommand::Permit(command))).outcome
}

pub(crate) fn permits(owner: Owner, request_id: &str, weight: u64) -> AcquirePermits {
    let ttl_ms = matches!(owner, Owner::Process(_)).then_some(1_000);
    AcquirePermits {
        namespace: orders(),
        path: Path::flat("s"),
        owner,
        request_id: request_id.to_owned(),
        wanted: Wanted::Permits { weight, permits: Some(2) },
        priority: 0,
        ttl_ms,
        transition_ms: 0,
        wait: Wait::No,
        metadata: Metadata::new(),
        fencing_token: None,
        attempt: 0,
        abandoned: vec![],
        message: None,
    }
}

pub(crate) fn acquire(shard: &mut Shard, request: AcquirePermits) -> Result<AcquireOutcome, CommandError> {
    match semaphore(shard, PermitCommand::Acquire(request))? {
        Response::PermitsAcquired { outcome, .. } => Ok(outcome),
        other => panic!("no outcome: {other:?}"),
    }
}

pub(crate) fn limit_of<T>(outcome: Result<T, CommandError>) -> Option<&'static str> {
    outcome.err().and_then(|error| error.limit()).map(|limit| limit.name)
}

pub(crate) fn open_session(shard: &mut Shard, session_id: &str) -> Owner {
    let open = OpenSession {
        namespace: orders(),
        session_id: session_id.to_owned(),
        resume: false,
        request_id: request_id(9),
        process_id: "worker".into(),
        ttl_ms: 10_000,
        metadata: Metadata::new(),
    };
    assert!(shard.apply(&Command::Locks(LocksCommand::OpenSession(open))).outcome.is_ok());
    Owner::Session { session_id: session_id.to_owned(), holder: None }
}

#[test]
fn latches_have_limits_in_number_in_total_and_in_bytes() {
    let limits = Limits { max_latches_per_namespace: 1, max_latch_ids: 3, max_latch_indexes: 7, ..Limits::default() };
    let shard = &mut limited(limits);
    let make = |shard: &mut Shard, path, total, ids| latch(shard, LatchCommand::Create(create(path, total, ids)));
    assert_eq!(limit_of(make(shard, "a", 4, LatchIds::Named)), Some("max_latch_ids"));
    assert_eq!(limit_of(make(shard, "a", 8, LatchIds::Indexed)), Some("max_latch_indexes"));
    assert!(make(shard, "a", 3, LatchIds::Named).is_ok() && make(shard, "a", 3, LatchIds::Named).is_ok());
    assert_eq!(limit_of(make(shard, "b", 1, LatchIds::Named)), Some("max_latches_per_namespace"));
    let wanted = || LatchRef { namespace: orders(), path: Path::flat("a"), id: None };
    let more = LatchCommand::SetTotal { latch: wanted(), total: 4, if_total: None };
    assert_eq!(limit_of(latch(shard, more)), Some("max_latch_ids"));

    // As documented: a latch and two jobs, with their names.
    let bytes = (256 + 1) + 2 * (64 + 100);
    let count =
        |id: &str| LatchCommand::CountDown(CountDown { latch: wanted(), jobs: Jobs::Named(vec![id.repeat(100)]) });
    for (max, fits) in [(bytes, true), (bytes - 1, false)] {
        let shard = &mut limited(Limits { max_primitive_bytes: max, ..Limits::default() });
        assert!(make(shard, "a", 10, LatchIds::Named).is_ok());
        assert!(latch(shard, count("x")).is_ok());
        assert_eq!(latch(shard, count("y")).is_ok(), fits, "within {max}");
        assert_eq!(limit_of(latch(shard, count("z"))), Some("max_primitive_bytes"));
    }
    let shard = &mut limited(Limits { max_primitive_bytes: (256 + 2) + 80 / 8, ..Limits::default() });
    assert_eq!(limit_of(make(shard, "ab", 88, LatchIds::Indexed)), Some("max_primitive_bytes"));
    assert!(make(shard, "ab", 80, LatchIds::Indexed).is_ok(), "a bit for each number");
    shard.core.verify();
}

#[test]
fn semaphores_have_limits_in_number_and_in_holds() {
    let limits = Limits { max_semaphores_per_namespace: 1, max_holds_per_semaphore: 2, ..Limits::default() };
    let shard = &mut limited(Limits { max_waiting_per_semaphore: 1, max_permit_holds_per_session: 1, ..limits });
    assert!(acquire(shard, permits(process("p1"), "r", 2)).is_ok());
    let other = AcquirePermits { path: Path::flat("t"), ..permits(process("p1"), "r", 1) };
    assert_eq!(limit_of(acquire(shard, other)), Some("max_semaphores_per_namespace"));
    let waiting = |owner, id| AcquirePermits { wait: Wait::For(500), ..permits(owner, id, 1) };
    assert!(matches!(acquire(shard, waiting(process("p2"), "r")), Ok(AcquireOutcome::Enqueued(_))));
    assert_eq!(limit_of(acquire(shard, waiting(process("p3"), "r"))), Some("max_holds_per_semaphore"));

    let limits = Limits { max_waiting_per_semaphore: 1, max_permit_holds_per_session: 1, ..Limits::default() };
    let shard = &mut limited(limits);
    let session = open_session(shard, "se_1");
    assert!(acquire(shard, permits(session.clone(), "r1", 2)).is_ok());
    assert_eq!(limit_of(acquire(shard, waiting_forever(session, "r2"))), Some("max_permit_holds_per_session"));
    assert!(acquire(shard, waiting(process("p2"), "r")).is_ok());
    assert_eq!(limit_of(acquire(shard, waiting(process("p3"), "r"))), Some("max_waiting_per_semaphore"));
}

fn waiting_forever(owner: Owner, id: &str) -> AcquirePermits {
    AcquirePermits { wait: Wait::Unlimited, ..permits(owner, id, 1) }
}

#[test]
fn ids_of_requests_are_unique_in_a_session_whatever_they_are_for() {
    let shard = &mut limited(Limits::default());
    let session = open_session(shard, "se_1");
    let lock = |id: &str| holdfast_core::Acquire {
        owner: session.clone(),
        ttl_ms: None,
        request_id: Some(id.to_owned()),
        ..lock_request("", Mode::Write)
    };
    assert!(shard.try_acquire(lock("r1")).is_ok() && acquire(shard, permits(session.clone(), "r2", 1)).is_ok());
    assert_eq!(acquire(shard, permits(session.clone(), "r1", 1)), Err(CommandError::RequestIdTaken("r1".into())));
    let other = holdfast_core::Acquire { claims: vec![], ..lock("r2") };
    let claims = vec![holdfast_core::Claim { path: Path::flat("m"), mode: Mode::Write }];
    let taken = shard.try_acquire(holdfast_core::Acquire { claims, ..other });
    assert_eq!(taken, Err(CommandError::RequestIdTaken("r2".into())));
}

#[test]
fn the_last_caller_that_leaves_takes_its_wait_or_its_unheard_grant_with_it() {
    let shard = &mut limited(Limits::default());
    assert!(acquire(shard, permits(process("p1"), "r", 2)).is_ok());
    let call = |attempt| AcquirePermits { attempt, wait: Wait::For(500), ..permits(process("p2"), "r", 1) };
    assert!(matches!(acquire(shard, call(7)), Ok(AcquireOutcome::Enqueued(_))));
    assert!(matches!(acquire(shard, call(8)), Ok(AcquireOutcome::Enqueued(enqueued)) if enqueued.attempt == 8));
    let cancel = |shard: &mut Shard, attempt| {
        let (namespace, kind, path, owner) = (orders(), Kind::Semaphore, Path::flat("s"), process("p2"));
        let cancel = CancelPermits { namespace, kind, path, owner, request_id: "r".into(), attempts: vec![attempt] };
        semaphore(shard, PermitCommand::Cancel(cancel))
    };
    let cancelled = |left_queue, grant_released| Ok(Response::Cancelled { left_queue, grant_released });
    assert_eq!(cancel(shard, 8), cancelled(false, false), "the other call still waits");
    let release = ReleasePermits {
        namespace: orders(),
        kind: Kind::Semaphore,
        path: Path::flat("s"),
        owner: process("p1"),
        request_id: Some("r".into()),
        fencing_token: None,
        members: vec![],
        message: None,
    };
    assert!(semaphore(shard, PermitCommand::Release(release)).is_ok());
    assert_eq!(cancel(shard, 7), cancelled(false, true), "nobody has received the grant");
}

#[test]
fn watchers_get_the_kinds_of_events_that_they_chose() {
    let shard = &mut limited(Limits::default());
    shard.granted(lock_request("p1", Mode::Write));
    assert!(latch(shard, LatchCommand::Create(create("a", 0, LatchIds::Named))).is_ok());
    assert!(
        acquire(shard, permits(process("p1"), "r", 2)).is_ok()
            && acquire(shard, permits(process("p1"), "r", 1)).is_ok()
    );
    let restored = shard.restored();
    let kinds_of = |shard: &Shard, kinds| {
        let (namespace, prefix, limit) = (orders(), Path::default(), 100);
        let query = Query::Events { namespace, from_revision: Some(1), prefix, kinds, limit };
        let Ok(Response::Events { events, .. }) = shard.query(&query) else { panic!("not events") };
        events.into_iter().map(|event| (event.kind, event.claims[0].path.0[0].clone())).collect::<Vec<_>>()
    };
    let of_latches = [(EventKind::LatchCreated, "a".to_owned()), (EventKind::LatchCompleted, "a".to_owned())];
    let shrunk = EventKind::PermitsReleased { weight: 1, cause: PermitsEnd::Shrunk };
    let of_semaphores = [(EventKind::PermitsAcquired { weight: 2 }, "s".to_owned()), (shrunk, "s".to_owned())];
    for shard in [&*shard, &restored] {
        assert_eq!(kinds_of(shard, Kinds::LOCKS), [(EventKind::Acquired, "l".to_owned())]);
        assert_eq!(kinds_of(shard, Kinds::from_iter([Kind::Latch])), of_latches);
        assert_eq!(kinds_of(shard, Kinds::from_iter([Kind::Semaphore])), of_semaphores);
        assert_eq!(kinds_of(shard, Kinds::ALL).len(), 5);
    }
}

#[test]
fn a_semaphore_that_is_lowered_takes_nothing_away_and_refuses_what_can_not_come() {
    let shard = &mut limited(Limits::default());
    let configure = |permits| {
        let (namespace, path, metadata) = (orders(), Path::flat("s"), Metadata::new());
        PermitCommand::Configure(ConfigureSemaphore { namespace, path, permits, description: String::new(), metadata })
    };
    assert!(semaphore(shard, configure(4)).is_ok());
    assert!(acquire(shard, permits(process("p1"), "r", 3)).is_ok());
    let waiting = AcquirePermits { wait: Wait::For(500), attempt: 5, ..permits(process("p2"), "r", 2) };
    assert!(matches!(acquire(shard, waiting.clone()), Ok(AcquireOutcome::Enqueued(_))));
    let Ok(Response::Semaphore(view)) = semaphore(shard, configure(1)) else { panic!("not a semaphore") };
    assert_eq!((view.permits, view.in_use, view.available(), view.waiting), (1, 3, 0, 0));
    let refused = acquire(shard, waiting);
    assert!(matches!(refused, Ok(AcquireOutcome::Refused(refused)) if refused.reason == Reason::TooLarge));
}

#[test]
fn what_a_latch_refuses_because_of_what_it_is_names_the_field() {
    let shard = &mut limited(Limits::default());
    for (path, ids) in [("named", LatchIds::Named), ("indexed", LatchIds::Indexed)] {
        assert!(latch(shard, LatchCommand::Create(create(path, 3, ids))).is_ok());
    }
    let of = |path| LatchRef { namespace: orders(), path: Path::flat(path), id: None };
    let count = |path, jobs| LatchCommand::CountDown(CountDown { latch: of(path), jobs });
    let total = |path, total| LatchCommand::SetTotal { latch: of(path), total, if_total: None };
    let named = || Jobs::Named(vec!["a".to_owned()]);
    assert!(latch(shard, count("named", named())).is_ok());
    for (command, field) in [
        (count("named", Jobs::Indexed(vec![(0, 0)])), "ranges: "),
        (count("indexed", named()), "ids: "),
        (count("indexed", Jobs::Indexed(vec![(0, 3)])), "ranges: "),
        (total("named", 0), "total: "),
        (total("indexed", 2), "total: "),
    ] {
        let refused = latch(shard, command.clone());
        assert!(matches!(&refused, Err(CommandError::InvalidArgument(text)) if text.starts_with(field)), "{command:?}");
    }
}
