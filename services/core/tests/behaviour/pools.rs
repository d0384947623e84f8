//! Pools: what their callers are told, events, limits that were lowered, and holds of many members in slices.

use holdfast_core::{
    AcquireOutcome, AcquirePermits, ChangePool, Command, CommandError, ConfigurePool, EventKind, FencingToken, Kind,
    Kinds, Limits, LocksCommand, MemberSpec, Metadata, Owner, Path, PermitCommand, PermitQuery, PermitsEnd,
    PermitsView, Query, Reason, ReleasePermits, Response, Rules, Wait, WaitId, Wanted,
};

use crate::primitives::{acquire, limited, open_session, permits, semaphore};
use crate::support::{Shard, namespace, open, orders, process};
use crate::wait_requests::{session_wait_request, write};

fn spec(name: &str) -> MemberSpec {
    MemberSpec { name: name.to_owned(), disabled: false, metadata: Metadata::new() }
}

fn configure(path: &str, members: Vec<MemberSpec>, cooldown_ms: u64) -> PermitCommand {
    let (namespace, path, metadata) = (orders(), Path::flat(path), Metadata::new());
    PermitCommand::ConfigurePool(ConfigurePool {
        namespace,
        path,
        members,
        cooldown_ms,
        description: String::new(),
        metadata,
    })
}

/// A shard with a pool of these members.
fn pool(members: &[&str]) -> Shard {
    let mut shard = limited(Limits::default());
    shard.rules = Rules::TWO;
    let members = members.iter().map(|name| spec(name)).collect();
    assert!(semaphore(&mut shard, configure("p", members, 0)).is_ok());
    shard
}

fn some(owner: Owner, request_id: &str, count: u64) -> AcquirePermits {
    let wanted = Wanted::Members { count, prefer: None };
    AcquirePermits { path: Path::flat("p"), wanted, ..permits(owner, request_id, 1) }
}

fn member(owner: Owner, request_id: &str, name: &str) -> AcquirePermits {
    AcquirePermits { wanted: Wanted::Member(name.to_owned()), ..some(owner, request_id, 1) }
}

/// The token and the members, or why not.
fn take(shard: &mut Shard, request: AcquirePermits) -> Result<(FencingToken, Vec<String>), Reason> {
    match semaphore(shard, PermitCommand::Acquire(request)) {
        Ok(Response::PermitsAcquired { outcome, members, .. }) => match outcome {
            AcquireOutcome::Granted { fencing_token } => Ok((fencing_token, members)),
            AcquireOutcome::Enqueued(enqueued) => Err(enqueued.not_granted.reason),
            AcquireOutcome::Refused(refused) => Err(refused.reason),
        },
        other => panic!("no outcome: {other:?}"),
    }
}

fn change(add: &[&str], remove: &[&str], disable: &[&str], enable: &[&str]) -> PermitCommand {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    PermitCommand::ChangePool(ChangePool {
        namespace: orders(),
        path: Path::flat("p"),
        add: add.iter().map(|name| spec(name)).collect(),
        remove: names(remove),
        disable: names(disable),
        enable: names(enable),
    })
}

fn release(shard: &mut Shard, owner: Owner, request_id: &str, members: &[&str]) -> bool {
    let release = ReleasePermits {
        namespace: orders(),
        kind: Kind::Pool,
        path: Path::flat("p"),
        owner,
        request_id: Some(request_id.to_owned()),
        fencing_token: None,
        members: members.iter().map(|name| (*name).to_owned()).collect(),
        message: None,
    };
    match semaphore(shard, PermitCommand::Release(release)) {
        Ok(Response::PermitsReleased { released, .. }) => released,
        other => panic!("not an answer to a release: {other:?}"),
    }
}

#[test]
fn a_pool_is_no_semaphore_and_refuses_what_it_can_never_give() {
    let shard = &mut pool(&["a", "b"]);
    assert_eq!(take(shard, some(process("p"), "r", 3)), Err(Reason::TooLarge));
    assert_eq!(take(shard, member(process("p"), "r", "c")), Err(Reason::NoMember));
    let elsewhere = AcquirePermits { path: Path::flat("q"), ..some(process("p"), "r", 1) };
    let absent = semaphore(shard, PermitCommand::Acquire(elsewhere));
    assert!(matches!(absent, Err(CommandError::PrimitiveNotFound { kind: Kind::Pool, .. })), "{absent:?}");
    let permits = AcquirePermits { path: Path::flat("p"), ..permits(process("p"), "r", 1) };
    let made = semaphore(shard, PermitCommand::Acquire(permits));
    let is_semaphore = |view: &PermitsView| view.kind() == Kind::Semaphore;
    assert!(matches!(made, Ok(Response::PermitsAcquired { view, .. }) if is_semaphore(&view)), "another table");
    assert!(take(shard, some(process("p"), "r", 1)).is_ok(), "with the same owner and request id");
    shard.core.verify();
}

#[test]
fn a_refusal_shows_who_has_the_member_that_is_wanted() {
    let names: Vec<String> = (0..41).map(|number| format!("m{number:02}")).collect();
    let shard = &mut pool(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(take(shard, member(process("one"), "r", "m40")).is_ok());
    for number in 0..20 {
        assert!(take(shard, some(process(&format!("p{number}")), "r", 2)).is_ok());
    }
    let shown = |shard: &mut Shard, wait| {
        let request = AcquirePermits { wait, ..member(process("q"), "r", "m40") };
        let outcome = semaphore(shard, PermitCommand::Acquire(request));
        let Ok(Response::PermitsAcquired { holders, .. }) = outcome else { panic!("no outcome: {outcome:?}") };
        holders.iter().map(|holder| holder.process_id.clone()).collect::<Vec<_>>()
    };
    for wait in [Wait::No, Wait::For(500)] {
        let holders = shown(shard, wait);
        assert_eq!((holders.len(), holders[0].as_str()), (16, "one"), "others have more members");
        assert_eq!(holders.iter().filter(|holder| *holder == "one").count(), 1);
    }
    let wait = WaitId(shard.core.revision());
    let status = shard.query(&Query::Permit(PermitQuery::WaitStatus { namespace: orders(), wait }));
    let Ok(Response::PermitsAcquired { holders, .. }) = status else { panic!("it waits: {status:?}") };
    assert_eq!(holders[0].process_id, "one");
}

#[test]
fn more_members_than_a_hold_may_have_are_refused_at_once_free_or_not() {
    let names: Vec<String> = (0..70).map(|number| format!("m{number}")).collect();
    let shard = &mut pool(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let refused = |shard: &mut Shard, wait| {
        let request = AcquirePermits { wait, ..some(process("q"), "r", 65) };
        let outcome = semaphore(shard, PermitCommand::Acquire(request));
        let is_limit = |what: &str, max| what == "the number of members in a hold" && max == 64;
        matches!(&outcome, Err(CommandError::QuotaExceeded { what, max, .. }) if is_limit(what, *max))
    };
    assert!(refused(shard, Wait::No) && refused(shard, Wait::For(500)));
    assert!(take(shard, some(process("p"), "r", 64)).is_ok());
    assert!(refused(shard, Wait::No), "it is not told to come again");
    assert!(refused(shard, Wait::For(500)));
    assert_eq!(take(shard, some(process("q"), "r", 71)), Err(Reason::TooLarge));
    shard.core.verify();
}

#[test]
fn what_a_change_makes_impossible_is_refused_in_its_entry() {
    let shard = &mut pool(&["a", "b", "c"]);
    assert!(take(shard, some(process("p"), "r", 3)).is_ok());
    let waiting = |request| AcquirePermits { wait: Wait::For(500), ..request };
    assert_eq!(take(shard, waiting(some(process("q"), "three", 3))), Err(Reason::Exhausted));
    assert_eq!(take(shard, waiting(member(process("q"), "c", "c"))), Err(Reason::Exhausted));
    assert!(semaphore(shard, change(&[], &["c"], &[], &[])).is_ok());
    let query = PermitQuery::Waits { namespace: orders(), after: None, limit: 10 };
    let waits = shard.query(&Query::Permit(query));
    assert!(matches!(waits, Ok(Response::PermitWaits { waits, .. }) if waits.is_empty()));
    shard.core.verify();
}

#[test]
fn a_member_that_leaves_stays_until_it_is_returned_and_a_disabled_one_is_not_given_out() {
    let shard = &mut pool(&["a", "b"]);
    let (token, members) = take(shard, some(process("p"), "r", 2)).unwrap();
    assert_eq!(members, ["a", "b"]);
    let Ok(Response::Pool(view)) = semaphore(shard, change(&[], &["a"], &["b"], &[])) else { panic!("not a pool") };
    assert_eq!((view.members_total, view.leaving, view.in_use), (2, 1, 2));
    assert!(release(shard, process("p"), "r", &["a"]));
    assert_eq!(take(shard, some(process("p"), "r", 2)), Ok((token, vec!["b".to_owned()])), "a repeat keeps the rest");
    assert!(!release(shard, process("p"), "r", &["a"]), "it has none of them");
    assert!(release(shard, process("p"), "r", &["b"]) && !release(shard, process("p"), "r", &[]));
    assert_eq!(take(shard, some(process("p"), "r", 1)), Err(Reason::Exhausted), "it is disabled");
    assert!(semaphore(shard, change(&[], &[], &[], &["b"])).is_ok());
    assert!(take(shard, some(process("p"), "r", 1)).is_ok());
    let (none, removed): (&[&str], &[&str]) = (&[], &["a"]);
    for (field, disable, enable) in [("disable: ", removed, none), ("enable: ", none, removed)] {
        let unknown = semaphore(shard, change(&[], &[], disable, enable));
        let names_list = matches!(&unknown, Err(CommandError::InvalidArgument(text)) if text.starts_with(field));
        assert!(names_list, "{unknown:?}");
    }
    shard.core.verify();
}

#[test]
fn a_member_disabled_and_enabled_in_one_change_is_free_since_then() {
    let shard = &mut pool(&["a", "b"]);
    let before = shard.core.revision();
    assert!(semaphore(shard, change(&[], &[], &["a"], &["a"])).is_ok());
    assert_eq!(shard.core.revision(), before + 1);
    let restored = &mut shard.restored();
    assert_eq!(take(restored, some(process("p"), "r", 1)).unwrap().1, ["b"]);
}

#[test]
fn a_member_that_a_configuration_enables_again_is_free_since_then() {
    let shard = &mut pool(&["a", "b"]);
    let of = |disabled| configure("p", vec![MemberSpec { disabled, ..spec("a") }, spec("b")], 0);
    assert!(semaphore(shard, of(true)).is_ok() && semaphore(shard, of(false)).is_ok());
    let restored = &mut shard.restored();
    assert_eq!(take(restored, some(process("p"), "r", 1)).unwrap().1, ["b"], "it was free meanwhile");
}

#[test]
fn rests_that_end_together_end_in_one_order_on_every_replica() {
    let mut shard = limited(Limits::default());
    shard.rules = Rules::TWO;
    let invoices = namespace("invoices", 2);
    assert_eq!(shard.apply(&open(2, invoices.clone(), Limits::default())).outcome, Ok(Response::Done));
    let pools = [(orders(), 100), (invoices, 90)];
    for (namespace, cooldown_ms) in &pools {
        let PermitCommand::ConfigurePool(made) = configure("p", vec![spec("a")], *cooldown_ms) else {
            panic!("no pool")
        };
        let made = ConfigurePool { namespace: namespace.clone(), ..made };
        assert!(semaphore(&mut shard, PermitCommand::ConfigurePool(made)).is_ok());
        let of = |request| AcquirePermits { namespace: namespace.clone(), ..request };
        assert!(take(&mut shard, of(some(process("p"), "r", 1))).is_ok());
        let waiting = AcquirePermits { wait: Wait::For(500), ..some(process("q"), "r", 1) };
        assert_eq!(take(&mut shard, of(waiting)), Err(Reason::Exhausted));
    }
    for (namespace, _) in &pools {
        let (owner, request_id) = (process("p"), Some("r".to_owned()));
        let (path, fencing_token, members) = (Path::flat("p"), None, Vec::new());
        let (namespace, kind, message) = (namespace.clone(), Kind::Pool, None);
        let release = ReleasePermits { namespace, kind, path, owner, request_id, fencing_token, members, message };
        assert!(semaphore(&mut shard, PermitCommand::Release(release)).is_ok());
        shard.advance_by(10);
    }
    let mut twins: Vec<Shard> = (0..8).map(|_| shard.restored()).collect();
    shard.advance_by(200);
    for (seed, twin) in (0..).zip(&mut twins) {
        twin.core = twin.core.renumbered(seed);
        twin.advance_by(200);
        assert_eq!(twin.core.snapshot(), shard.core.snapshot());
    }
}

fn named(names: &[&str]) -> Vec<MemberSpec> {
    names.iter().map(|name| spec(name)).collect()
}

/// A pool whose first members are all held and leave, and then one with other members.
fn with_members_that_leave(limits: Limits) -> (Shard, Result<Response, CommandError>) {
    let mut shard = limited(limits);
    shard.rules = Rules::TWO;
    assert!(semaphore(&mut shard, configure("p", named(&["a", "b", "c"]), 0)).is_ok());
    assert!(take(&mut shard, some(process("p"), "r", 3)).is_ok());
    assert!(semaphore(&mut shard, configure("p", named(&["d"]), 0)).is_ok());
    let outcome = semaphore(&mut shard, configure("p", named(&["g", "h", "i"]), 0));
    (shard, outcome)
}

#[test]
fn a_configuration_is_charged_for_those_that_leave_and_not_for_those_that_are_gone() {
    // As documented: a pool, six members, and a hold, with their names.
    let bytes = (256 + 1) + 6 * (160 + 1) + (200 + 1 + 1);
    let within = |bytes| Limits { max_primitive_bytes: bytes, ..Limits::default() };
    let (_, outcome) = with_members_that_leave(within(bytes));
    assert!(outcome.is_ok(), "{outcome:?}");
    let (shard, outcome) = with_members_that_leave(within(bytes - 1));
    assert!(matches!(outcome, Err(CommandError::QuotaExceeded { .. })), "six members do not fit: {outcome:?}");
    shard.core.verify();
}

/// The bytes of pools and semaphores that count against their limit.
fn counted(shard: &Shard) -> u64 {
    let usage = shard.query(&Query::AccountUsage { account: orders().account });
    let Ok(Response::AccountUsage { namespaces, .. }) = usage else { panic!("not the usage: {usage:?}") };
    namespaces.iter().map(|namespace| namespace.table_bytes).sum()
}

#[test]
fn what_counts_against_the_limit_of_a_namespace_is_what_is_documented() {
    let shard = &mut pool(&["a", "bb"]);
    let of_pool = (256 + 1) + (160 + 1) + (160 + 2);
    assert_eq!(counted(shard), of_pool);
    assert!(take(shard, some(process("pq"), "r", 2)).is_ok());
    assert_eq!(counted(shard), of_pool + (200 + 2 + 1), "an owner and an id");
    let waiting = AcquirePermits { wait: Wait::For(500), ..member(process("pqr"), "rs", "a") };
    assert_eq!(take(shard, waiting), Err(Reason::Exhausted));
    assert_eq!(counted(shard), of_pool + (200 + 2 + 1) + (300 + 3 + 2));
    assert!(release(shard, process("pq"), "r", &[]));
    assert_eq!(counted(shard), of_pool + (200 + 3 + 2), "who waited has it");
    let state = shard.query(&Query::AccountState { account: orders().account });
    let Ok(Response::AccountState(namespaces)) = state else { panic!("not what is charged: {state:?}") };
    assert!(namespaces[0].1.semaphores > counted(shard), "the memory that it takes is charged too");
    shard.core.verify();
}

#[test]
fn a_pool_that_gets_no_larger_changes_without_memory() {
    let bytes = (256 + 1) + 4 * (160 + 1);
    let shard = &mut limited(Limits { max_primitive_bytes: bytes, ..Limits::default() });
    shard.rules = Rules::TWO;
    assert!(semaphore(shard, configure("p", named(&["a", "b", "c", "d"]), 0)).is_ok());
    let needs_memory = |shard: &Shard, command| shard.core.creates_state(&LocksCommand::Permit(command));
    for smaller in [
        configure("p", named(&["e", "f", "g", "h"]), 0),
        configure("p", named(&["e", "f"]), 0),
        change(&["i", "j"], &["e", "f"], &["i"], &[]),
        change(&[], &["i"], &[], &[]),
    ] {
        assert!(!needs_memory(shard, smaller.clone()), "{smaller:?}");
        let outcome = semaphore(shard, smaller.clone());
        assert!(outcome.is_ok(), "{smaller:?}: {outcome:?}");
    }
    for larger in [configure("p", named(&["a", "b"]), 0), configure("q", vec![], 0), change(&["a"], &[], &[], &[])] {
        assert!(needs_memory(shard, larger.clone()), "{larger:?}");
    }
    shard.core.verify();
}

#[test]
fn a_session_shows_what_it_has_of_every_kind() {
    let shard = &mut pool(&["a"]);
    let session = open_session(shard, "se_1");
    shard.granted(session_wait_request("se_1", "l", &[write("l")]));
    assert!(take(shard, some(session.clone(), "m", 1)).is_ok());
    assert!(acquire(shard, permits(session.clone(), "s", 1)).is_ok());
    let waiting = AcquirePermits { wait: Wait::Unlimited, ..member(session, "w", "a") };
    assert_eq!(take(shard, waiting), Err(Reason::Exhausted));
    let (namespace, session_id) = (orders(), "se_1".to_owned());
    let queries = [
        Query::Session { namespace: namespace.clone(), session_id: session_id.clone() },
        Query::KeepAlive { namespace: namespace.clone(), session_id, epoch: None },
    ];
    for query in queries {
        let shown = shard.query(&query);
        let Ok(Response::Session(session)) = shown else { panic!("not a session: {shown:?}") };
        assert_eq!((session.holds, session.waiting), (3, 1));
    }
    let listed = shard.query(&Query::Sessions { namespace, after: None, limit: 10 });
    let Ok(Response::Sessions { sessions, .. }) = listed else { panic!("not sessions: {listed:?}") };
    assert_eq!((sessions[0].holds, sessions[0].waiting), (3, 1));
    shard.core.verify();
}

#[test]
fn events_name_the_members() {
    let shard = &mut pool(&["a", "b"]);
    let first = shard.core.revision() + 1;
    assert!(take(shard, some(process("p"), "r", 2)).is_ok());
    assert!(release(shard, process("p"), "r", &["b"]));
    let events = |prefix: &str| {
        let (namespace, from_revision, limit) = (orders(), Some(first), 10);
        let (prefix, kinds) = (Path::flat(prefix), [Kind::Pool].into_iter().collect::<Kinds>());
        let query = Query::Events { namespace, from_revision, prefix, kinds, limit };
        let Ok(Response::Events { events, .. }) = shard.query(&query) else { panic!("not events") };
        events
    };
    let shown: Vec<(EventKind, Vec<String>)> = events("p")
        .into_iter()
        .map(|event| (event.kind, event.claims.iter().map(|claim| claim.path.0.concat()).collect()))
        .collect();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let returned = EventKind::MembersReturned { cause: PermitsEnd::Shrunk };
    assert_eq!(shown, [(EventKind::MembersTaken, names(&["p", "a", "b"])), (returned, names(&["p", "b"]))]);
    assert!(events("a").is_empty(), "a member is no path");
}

#[test]
fn a_repeat_while_its_pool_is_deleted_finds_the_end_of_its_hold() {
    let shard = &mut limited(Limits { max_state_bytes: 1 << 30, ..Limits::default() });
    shard.rules = Rules::TWO;
    let names: Vec<MemberSpec> = (0..600).map(|number| spec(&format!("m{number:03}"))).collect();
    assert!(semaphore(shard, configure("p", names, 0)).is_ok());
    let of = |number: u64| some(process("p"), &format!("r{number}"), 1);
    for number in 0..600 {
        assert!(take(shard, of(number)).is_ok());
    }
    let delete = PermitCommand::Delete { namespace: orders(), kind: Kind::Pool, path: Path::flat("p") };
    assert!(semaphore(shard, delete).is_ok());
    assert!(shard.core.has_backlog(), "600 ends are more than a slice");
    // In the present entry, so that nothing goes on before it.
    let mut repeat = |number| {
        let command = Command::Locks(LocksCommand::Permit(PermitCommand::Acquire(of(number))));
        shard.apply_now(&command).outcome
    };
    let ending = repeat(599);
    let Ok(Response::PermitsAcquired { outcome: AcquireOutcome::Refused(refused), .. }) = ending else {
        panic!("it is about to end: {ending:?}")
    };
    assert_eq!(refused.reason, Reason::NotHeld);
    let ended = repeat(0);
    assert!(matches!(ended, Err(CommandError::PrimitiveNotFound { kind: Kind::Pool, .. })), "{ended:?}");
    while shard.core.has_backlog() {
        shard.advance_by(0);
    }
    let gone = semaphore(shard, PermitCommand::Acquire(of(599)));
    assert_eq!(gone, ended, "all of it is gone");
    shard.core.verify();
}

#[test]
fn every_member_of_a_command_counts_as_work() {
    let names: Vec<String> = (0..64).map(|number| format!("m{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let shard = &mut pool(&names);
    let mut spent = |act: &mut dyn FnMut(&mut Shard)| {
        let before = shard.core.units();
        act(shard);
        shard.core.units() - before
    };
    let taken = spent(&mut |shard| assert!(take(shard, some(process("p"), "r", 64)).is_ok()));
    assert!(taken >= 64, "{taken}");
    let returned = spent(&mut |shard| assert!(release(shard, process("p"), "r", &names[..32])));
    assert!(returned >= 64, "32 are named and 32 come back: {returned}");
    let ended = spent(&mut |shard| assert!(release(shard, process("p"), "r", &[])));
    assert!(ended >= 32, "{ended}");
    let removed = spent(&mut |shard| assert!(semaphore(shard, configure("p", vec![spec("m00")], 0)).is_ok()));
    assert!(removed >= 64, "63 of them leave: {removed}");
}

#[test]
fn a_change_of_as_many_members_as_it_may_name_is_less_than_a_slice() {
    let shard = &mut limited(Limits { max_state_bytes: 1 << 30, ..Limits::default() });
    shard.rules = Rules::TWO;
    let name = |number: usize| format!("m{number:04}");
    let specs = |numbers: std::ops::Range<usize>| numbers.map(|number| spec(&name(number))).collect::<Vec<_>>();
    let names = |numbers: std::ops::Range<usize>| numbers.map(name).collect::<Vec<_>>();
    let mut spent = |command: PermitCommand| {
        let (before, outcome) = (shard.core.units(), semaphore(shard, command));
        (outcome, shard.core.units() - before)
    };
    assert!(spent(configure("p", specs(0..1_000), 0)).0.is_ok());
    let (replaced, units) = spent(configure("p", specs(1_000..2_000), 0));
    assert!(replaced.is_ok() && units <= 4_096, "{units} units to replace all members");
    let change = |add, remove, disable, enable| {
        let (namespace, path) = (orders(), Path::flat("p"));
        PermitCommand::ChangePool(ChangePool { namespace, path, add, remove, disable, enable })
    };
    let (half, quarter) = (1_000..1_500, 1_000..1_250);
    for full in [
        change(specs(0..500), names(half.clone()), vec![], vec![]),
        change(specs(quarter.clone()), names(1_500..1_750), names(quarter.clone()), names(quarter.clone())),
        change(vec![], vec![], names(1_750..2_000), vec![name(0); 750]),
    ] {
        let (changed, units) = spent(full);
        assert!(changed.is_ok(), "{changed:?}");
        assert!(units <= 4_096, "{units} units");
    }
    for over in [
        change(specs(0..500), names(half), vec![], vec![name(0)]),
        change(vec![], vec![name(5_000); 1_001], vec![], vec![]),
        change(specs(0..1_000), vec![], vec![name(0)], vec![]),
    ] {
        let (refused, _) = spent(over);
        let Err(CommandError::InvalidArgument(why)) = refused else { panic!("not refused: {refused:?}") };
        assert!(why.contains("add, remove, disable and enable have at most 1000 names"), "{why}");
    }
    shard.core.verify();
}

#[test]
fn a_session_with_many_members_ends_in_several_slices() {
    let shard = &mut limited(Limits { max_state_bytes: 1 << 30, ..Limits::default() });
    shard.rules = Rules::TWO;
    let session = open_session(shard, "se_1");
    let members = || (0..64).map(|number| spec(&format!("m{number}"))).collect();
    for number in 0..80 {
        let path = format!("p{number}");
        assert!(semaphore(shard, configure(&path, members(), 0)).is_ok());
        let request = AcquirePermits { path: Path::flat(&path), ..some(session.clone(), &path, 64) };
        assert_eq!(take(shard, request).map(|(_, members)| members.len()), Ok(64));
    }
    let close = LocksCommand::CloseSession { namespace: orders(), session_id: "se_1".into(), message: None };
    assert!(shard.run(close).is_ok());
    assert!(shard.core.has_backlog(), "17 ends for each hold are more than a slice");
    let free = |shard: &Shard| {
        let (namespace, kind, prefix, after) = (orders(), Kind::Pool, Path::default(), None);
        let query = PermitQuery::List { namespace, kind, prefix, after, limit: 100 };
        let Ok(Response::Pools { pools, .. }) = shard.query(&Query::Permit(query)) else { panic!("not pools") };
        pools.iter().map(|pool| pool.free).sum::<u64>()
    };
    assert!(free(shard) <= 31 * 64, "{}", free(shard));
    while shard.core.has_backlog() {
        shard.advance_by(0);
    }
    assert_eq!(free(shard), 80 * 64);
    shard.core.verify();
}
