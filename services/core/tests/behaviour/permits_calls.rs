//! Single calls for permits and latches: repeats, limits that were lowered, the size of responses, and what is noted.

use holdfast_core::{
    AcquireOutcome, AcquirePermits, Actor, AuditAction, Audited, CancelPermits, Command, CommandError,
    ConfigureSemaphore, Kind, Kinds, LatchCommand, LatchIds, LatchRef, Limits, LocksCommand, Metadata, Mode, Path,
    PermitCommand, PermitQuery, Query, Reason, Response, Wait, Wanted, codec,
};

use crate::primitives::{acquire, create, latch, limited, permits, semaphore};
use crate::support::{ACCOUNT, Shard, lock_request, open, orders, process};

/// Raises the rules as `limited` does.
fn lower(shard: &mut Shard, limits: Limits) {
    assert!(shard.apply(&open(2, orders(), Limits { max_tangle: 200, ..limits })).outcome.is_ok());
}

fn configure(permits: u64) -> PermitCommand {
    let (namespace, path, metadata) = (orders(), Path::flat("s"), Metadata::new());
    PermitCommand::Configure(ConfigureSemaphore { namespace, path, permits, description: String::new(), metadata })
}

fn is_granted(outcome: &Result<AcquireOutcome, CommandError>) -> bool {
    matches!(outcome, Ok(AcquireOutcome::Granted { .. }))
}

#[test]
fn a_caller_that_is_granted_what_another_waits_for_keeps_it_when_that_one_leaves() {
    let shard = &mut limited(Limits::default());
    assert!(is_granted(&acquire(shard, permits(process("p1"), "r", 1))));
    let waits = AcquirePermits { attempt: 7, wait: Wait::For(500), ..permits(process("p2"), "r", 2) };
    assert!(matches!(acquire(shard, waits), Ok(AcquireOutcome::Enqueued(_))));
    let less = AcquirePermits { attempt: 8, ..permits(process("p2"), "r", 1) };
    assert!(is_granted(&acquire(shard, less)), "less is free");
    let cancel = |shard: &mut Shard, attempt| {
        let (namespace, kind, path, owner) = (orders(), Kind::Semaphore, Path::flat("s"), process("p2"));
        let cancel = CancelPermits { namespace, kind, path, owner, request_id: "r".into(), attempts: vec![attempt] };
        semaphore(shard, PermitCommand::Cancel(cancel))
    };
    assert_eq!(cancel(shard, 7), Ok(Response::Cancelled { left_queue: false, grant_released: false }));
    assert_eq!(cancel(shard, 8), Ok(Response::Cancelled { left_queue: false, grant_released: true }));
}

#[test]
fn limits_that_were_lowered_stop_nothing_that_is_there() {
    let shard = &mut limited(Limits { max_path_depth: 3, max_latch_ids: 9, ..Limits::default() });
    let deep = |id: &str| {
        let path = Path(["a", "b", "c"].map(str::to_owned).to_vec());
        AcquirePermits { path, ..permits(process("p"), id, 1) }
    };
    assert!(is_granted(&acquire(shard, deep("r"))));
    let make = || LatchCommand::Create(create("l", 9, LatchIds::Named));
    assert!(matches!(latch(shard, make()), Ok(Response::LatchCreated { is_new: true, .. })));
    lower(shard, Limits { max_path_depth: 2, max_latch_ids: 3, ..Limits::default() });
    assert!(is_granted(&acquire(shard, deep("r"))), "it is extended");
    assert!(matches!(latch(shard, make()), Ok(Response::LatchCreated { is_new: false, .. })), "it is repeated");
    let other = AcquirePermits { path: Path(vec!["x".to_owned(); 3]), ..deep("r") };
    assert!(matches!(acquire(shard, other), Err(CommandError::QuotaExceeded { .. })));
    let other = latch(shard, LatchCommand::Create(create("m", 9, LatchIds::Named)));
    assert!(matches!(other, Err(CommandError::QuotaExceeded { .. })));
}

#[test]
fn a_repeat_with_another_number_of_permits_is_rejected_as_the_first_request_is() {
    let shard = &mut limited(Limits::default());
    let with = |owner: &str, figure| AcquirePermits {
        wanted: Wanted::Permits { weight: 2, permits: Some(figure) },
        wait: Wait::For(500),
        ..permits(process(owner), "r", 2)
    };
    assert!(is_granted(&acquire(shard, with("p", 2))));
    assert!(matches!(acquire(shard, with("q", 2)), Ok(AcquireOutcome::Enqueued(_))));
    for owner in ["p", "q", "x"] {
        let refused = acquire(shard, with(owner, 3));
        assert!(
            matches!(&refused, Err(CommandError::InvalidArgument(text)) if text.starts_with("permits: ")),
            "{owner}"
        );
    }
}

fn of_twenty(request: AcquirePermits) -> AcquirePermits {
    AcquirePermits { wanted: Wanted::Permits { weight: 1, permits: Some(20) }, ..request }
}

#[test]
fn a_refusal_is_bounded_in_bytes_and_drops_metadata_first() {
    let shard = &mut limited(Limits { max_state_bytes: 1 << 30, ..Limits::default() });
    for number in 0..20 {
        let metadata = [("k".to_owned(), "v".repeat(8_000))].into();
        let request = permits(process(&format!("p{number}")), "r", 1);
        assert!(is_granted(&acquire(shard, AcquirePermits { metadata, ..of_twenty(request) })));
    }
    let request = of_twenty(permits(process("q"), "r", 1));
    let refused = semaphore(shard, PermitCommand::Acquire(request)).unwrap();
    assert!(codec::size(&refused) <= 64 * 1024);
    let Response::PermitsAcquired { outcome: AcquireOutcome::Refused(why), holders, .. } = refused else {
        panic!("it should be refused")
    };
    assert_eq!((why.reason, holders.len()), (Reason::Exhausted, 16));
    assert!(holders.iter().all(|holder| holder.metadata.is_empty()));
}

#[test]
fn a_page_of_waits_ends_when_it_cost_enough_and_the_next_one_goes_on() {
    let shard = &mut limited(Limits::default());
    assert!(is_granted(&acquire(shard, permits(process("p"), "r", 2))));
    for number in 0..400 {
        let request = permits(process("q"), &format!("r{number:03}"), 1);
        let outcome = acquire(shard, AcquirePermits { wait: Wait::For(500), ..request });
        assert!(matches!(outcome, Ok(AcquireOutcome::Enqueued(_))), "{outcome:?}");
    }
    let (mut after, mut positions, mut pages) = (None, Vec::new(), 0);
    loop {
        let query = PermitQuery::Waits { namespace: orders(), after, limit: 1_000 };
        let Ok(Response::PermitWaits { waits, more }) = shard.query(&Query::Permit(query)) else {
            panic!("a page of waits")
        };
        after = waits.last().map(|view| view.wait);
        positions.extend(waits.iter().map(|view| view.queue_position));
        pages += 1;
        if !more {
            break;
        }
    }
    assert!(pages > 1 && positions.iter().copied().eq(0..400), "{pages} {positions:?}");
}

/// Whether no event was evicted.
fn has_all_events(shard: &Shard) -> bool {
    let (namespace, prefix, kinds) = (orders(), Path::default(), Kinds::ALL);
    shard.query(&Query::Events { namespace, from_revision: Some(1), prefix, kinds, limit: 1 }).is_ok()
}

#[test]
fn a_command_for_a_latch_that_is_refused_leaves_the_events() {
    let limits = Limits { max_state_bytes: 1_000_000, max_latch_indexes: 10_000_000, ..Limits::default() };
    let shard = &mut limited(limits);
    // More than the bytes of events that are always kept.
    for _ in 0..2_000 {
        shard.granted(lock_request("p", Mode::Write));
        shard.release("p");
    }
    for (path, ids) in [("named", LatchIds::Named), ("indexed", LatchIds::Indexed)] {
        assert!(latch(shard, LatchCommand::Create(create(path, 9, ids))).is_ok());
    }
    let total = |path: &str, total| {
        let latch = LatchRef { namespace: orders(), path: Path::flat(path), id: None };
        LatchCommand::SetTotal { latch, total, if_total: None }
    };
    for (path, number) in [("absent", 9_000_000), ("named", 9_000_000), ("indexed", 9_000_000), ("indexed", 1 << 60)] {
        assert!(latch(shard, total(path, number)).is_err(), "{path} {number}");
        assert!(has_all_events(shard), "{path} {number}");
    }
    for number in [1 << 60, 9_000_000] {
        assert!(latch(shard, LatchCommand::Create(create("new", number, LatchIds::Indexed))).is_err());
        assert!(has_all_events(shard), "{number}");
    }
    assert!(latch(shard, total("indexed", 7_400_000)).is_ok(), "without the oldest events there is room");
    assert!(!has_all_events(shard));
}

#[test]
fn what_changed_no_semaphore_is_not_audited() {
    let shard = &mut limited(Limits::default());
    let mut audited = |request_id: &str, command: PermitCommand| {
        let command = Box::new(Command::Locks(LocksCommand::Permit(command)));
        let actor = Actor::ApiKey { account: ACCOUNT, key_id: "k1".into() };
        let audited = Audited { actor, request_id: request_id.to_owned(), command };
        assert!(shard.apply(&Command::Audited(audited)).outcome.is_ok());
    };
    let delete = || PermitCommand::Delete { namespace: orders(), kind: Kind::Semaphore, path: Path::flat("s") };
    audited("r1", configure(3));
    audited("r2", configure(3));
    audited("r3", delete());
    audited("r4", delete());
    let query = Query::Audit { account: Some(ACCOUNT), before: None, limit: 10 };
    let Ok(Response::AuditRecords { records, .. }) = shard.query(&query) else { panic!("not audit records") };
    let shown: Vec<_> = records.iter().map(|record| (record.action, record.request_id.as_str())).collect();
    assert_eq!(shown, [(AuditAction::SemaphoreDeleted, "r3"), (AuditAction::SemaphoreConfigured, "r1")]);
}

#[test]
fn permits_are_counted_as_holds_and_waits_are() {
    let shard = &mut limited(Limits::default());
    shard.granted(lock_request("p", Mode::Write));
    assert!(is_granted(&acquire(shard, permits(process("p1"), "r", 2))));
    let waits = AcquirePermits { wait: Wait::For(500), ..permits(process("p2"), "r", 1) };
    assert!(matches!(acquire(shard, waits), Ok(AcquireOutcome::Enqueued(_))));
    let Ok(Response::AccountUsage { namespaces, .. }) = shard.query(&Query::AccountUsage { account: ACCOUNT }) else {
        panic!("not what an account uses")
    };
    let totals = namespaces[0].totals;
    assert_eq!((totals.grants, totals.waits, totals.peak_holds, totals.peak_waiting), (2, 1, 2, 1));
}
