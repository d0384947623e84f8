//! Lock tables in the memory of a leader that are rebuilt from reports of what the sessions of before hold and wait for.

use holdfast_core::{
    AcquireOutcome, Command, CommandError, Effect, FencingToken, Forfeit, ForfeitedHold, LockInfo, LocksCommand,
    MessageSeq, Metadata, Mode, Owner, Path, Query, Release, ReleaseTarget, ReportedHold, ReportedRequest,
    ReportedWait, Response, RevokedReason, SessionView, TableCommand, TableReport, TableState, WaitId,
};

use crate::durability::soft;
use crate::soft_grants::{Leader, acquire, is_busy, owner, release};
use crate::soft_tables::{close, expire, open, table, table_session};
use crate::support::ACCOUNT;
use crate::wait_requests::write;

pub(crate) fn hold(lock: &str, fencing_token: FencingToken) -> ReportedHold {
    ReportedHold { path: Path::flat(lock), mode: Mode::Write, fencing_token }
}

/// A granted request for one lock.
pub(crate) fn granted(lock: &str, token: FencingToken) -> ReportedRequest {
    ReportedRequest {
        request_id: format!("request for {lock}"),
        holder: None,
        metadata: Metadata::new(),
        claimed: 1,
        claims: vec![hold(lock, token)],
    }
}

pub(crate) fn waits(lock: &str, ticket: Option<u64>) -> ReportedWait {
    ReportedWait {
        request_id: format!("request for {lock}"),
        holder: None,
        metadata: Metadata::new(),
        claims: vec![write(lock)],
        ticket: ticket.map(WaitId),
    }
}

/// The whole report of a session, for a leader.
pub(crate) fn report(leader: &Leader, session: &SessionView, granted: Vec<ReportedRequest>) -> TableReport {
    TableReport {
        namespace: soft(),
        session: session.number,
        connection_epoch: session.epoch,
        seq: 0,
        table_epoch: leader.epoch.epoch,
        part: 1,
        parts: 1,
        granted,
        pending: Vec::new(),
    }
}

pub(crate) fn take(leader: &mut Leader, report: TableReport) -> Result<Response, CommandError> {
    leader.apply(&LocksCommand::Table(TableCommand::Report(report)))
}

/// Reports that a session holds these locks, and waits for nothing.
pub(crate) fn reported(leader: &mut Leader, session: &SessionView, locks: &[(&str, FencingToken)]) {
    let granted = locks.iter().map(|(lock, token)| granted(lock, *token)).collect();
    let whole = report(leader, session, granted);
    assert_eq!(take(leader, whole), Ok(Response::Done));
}

/// The locks and tokens that sessions were told to have lost as copies.
pub(crate) fn lost(leader: &mut Leader) -> Vec<(String, Path, FencingToken)> {
    let lost = leader.table.take_effects().into_iter().filter_map(|effect| match effect {
        Effect::Revoked { session_id, path, fencing_token, reason: RevokedReason::Duplicate, .. } => {
            Some((session_id, path, fencing_token))
        }
        _ => None,
    });
    lost.collect()
}

#[test]
fn what_a_session_holds_and_waits_for_outlives_its_leader() {
    let mut leader = Leader::new();
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let token = leader.granted(&holder, "l");
    leader.send(&waiter, acquire("l")).unwrap();

    let mut leader = leader.next();
    let later = leader.open("se_3", 0);
    reported(&mut leader, &holder, &[("l", token)]);
    assert!(leader.table.has_reported(holder.number) && !leader.table.has_reported(waiter.number));
    assert!(is_busy(&leader.send(&later, acquire("free"))), "the other one may hold it");
    assert!(is_busy(&leader.send(&holder, acquire("free"))));
    let whole = TableReport { pending: vec![waits("l", Some(token + 1))], ..report(&leader, &waiter, Vec::new()) };
    assert_eq!(take(&mut leader, whole), Ok(Response::Done));

    assert_eq!(leader.holder("l"), owner(&holder));
    assert!(leader.granted(&later, "free") > leader.epoch.epoch);
    let again = leader.send(&waiter, acquire("l"));
    let place = match again {
        Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }) => enqueued.wait,
        other => panic!("it does not wait: {other:?}"),
    };
    assert!(place.0 > leader.epoch.epoch, "its place is one of this epoch");
    assert_eq!(leader.send(&holder, release("l")), Ok(Response::Done));
    assert_eq!(leader.holder("l"), owner(&waiter));
    assert_eq!(leader.table.take_conflicts(), 0);
    assert!(lost(&mut leader).is_empty());
}

#[test]
fn a_report_counts_once_and_commands_come_after_it() {
    let mut leader = Leader::new();
    let (session, other) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let token = leader.granted(&session, "l");
    let mut leader = leader.next();
    let unreported = Err(CommandError::Unreported { table_epoch: leader.epoch.epoch });
    assert_eq!(leader.send(&session, release("l")), unreported);
    let whole = report(&leader, &session, vec![granted("l", token)]);
    assert_eq!(take(&mut leader, whole.clone()), Ok(Response::Done));
    assert_eq!(take(&mut leader, whole.clone()), Ok(Response::Ignored));
    reported(&mut leader, &other, &[]);
    assert_eq!(leader.send(&session, release("l")), Ok(Response::Done));
    let next = leader.granted(&other, "l");
    assert_eq!(take(&mut leader, whole), Ok(Response::Ignored), "it comes again after the release");
    assert_eq!(leader.holder("l"), owner(&other));
    assert!(next > token);
    let of_this_epoch = leader.open("se_3", 0);
    let needless = report(&leader, &of_this_epoch, vec![granted("m", next + 1)]);
    assert_eq!(take(&mut leader, needless), Ok(Response::Ignored), "it has nothing of before");
    assert_eq!(leader.holder("m"), None);
}

#[test]
fn a_report_of_another_connection_or_epoch_is_refused() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    let token = leader.granted(&session, "l");
    let mut resume = table_session("se_1", 99, 0);
    resume.open.resume = true;
    let (resumed, _) = open(&mut leader.log, resume);
    leader.follow();
    let mut leader = leader.next();
    let old = report(&leader, &session, vec![granted("l", token)]);
    assert_eq!(take(&mut leader, old), Err(CommandError::Superseded { epoch: resumed.epoch }));
    let whole = report(&leader, &resumed, vec![granted("l", token)]);
    let unreported = Err(CommandError::Unreported { table_epoch: leader.epoch.epoch });
    for table_epoch in [leader.epoch.epoch - 1, leader.epoch.epoch + 1] {
        assert_eq!(take(&mut leader, TableReport { table_epoch, ..whole.clone() }), unreported);
    }
    let unknown = TableReport { session: resumed.number + 1, ..whole.clone() };
    assert!(matches!(take(&mut leader, unknown), Err(CommandError::SessionNotFound(_))));
    assert!(!leader.table.has_reported(session.number));
    assert_eq!(take(&mut leader, whole.clone()), Ok(Response::Done));

    let mut deposed = leader;
    crate::soft_tables::begin(&mut deposed.log, 3);
    assert!(is_busy(&take(&mut deposed, whole)), "another epoch has begun");
}

#[test]
fn a_report_in_parts_counts_once_all_are_there() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    let (first, second) = (leader.granted(&session, "a"), leader.granted(&session, "b"));
    let mut leader = leader.next();
    let later = leader.open("se_2", 0);
    let part = |leader: &Leader, part, granted| TableReport { part, parts: 2, ..report(leader, &session, granted) };
    let parts = [part(&leader, 1, vec![granted("a", first)]), part(&leader, 2, vec![granted("b", second)])];
    let refused = take(&mut leader, parts[1].clone());
    assert!(matches!(&refused, Err(CommandError::InvalidArgument(text)) if text.starts_with("part:")), "{refused:?}");
    assert_eq!(take(&mut leader, parts[0].clone()), Ok(Response::Done));
    assert_eq!(take(&mut leader, parts[0].clone()), Ok(Response::Ignored));
    assert!(!leader.table.has_reported(session.number) && is_busy(&leader.send(&later, acquire("b"))));
    assert_eq!(take(&mut leader, parts[1].clone()), Ok(Response::Done));
    assert_eq!((leader.holder("a"), leader.holder("b")), (owner(&session), owner(&session)));
    for (part, parts) in [(0, 1), (2, 1), (1, 65)] {
        let wrong = TableReport { part, parts, ..report(&leader, &session, Vec::new()) };
        assert_eq!(take(&mut leader, wrong), Ok(Response::Ignored), "it has reported");
    }
    let mut next = leader.next();
    for (part, parts) in [(0, 1), (2, 1), (1, 65)] {
        let wrong = TableReport { part, parts, ..report(&next, &session, Vec::new()) };
        assert!(matches!(take(&mut next, wrong), Err(CommandError::InvalidArgument(_))));
    }
}

#[test]
fn of_claims_that_conflict_the_highest_token_wins() {
    let mut leader = Leader::new();
    let (stale, holder) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let old = leader.granted(&stale, "l");
    leader.send(&stale, release("l")).unwrap();
    let token = leader.granted(&holder, "l");
    let kept = leader.granted(&stale, "m");

    let mut leader = leader.next();
    reported(&mut leader, &stale, &[("l", old), ("m", kept)]);
    reported(&mut leader, &holder, &[("l", token)]);
    assert_eq!(leader.holder("l"), owner(&holder));
    assert_eq!(leader.holder("m"), owner(&stale));
    assert_eq!(lost(&mut leader), [("se_1".to_owned(), Path::flat("l"), old)]);
    assert_eq!((leader.table.take_conflicts(), leader.table.take_conflicts()), (1, 0));
    let again = leader.send(&stale, acquire("l"));
    assert!(matches!(again, Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(_), .. })), "{again:?}");
}

#[test]
fn claims_of_one_request_are_entered_one_by_one() {
    let mut leader = Leader::new();
    let (one, other) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let token = leader.granted(&one, "a");
    let higher = leader.granted(&other, "b");
    let mut leader = leader.next();
    let both = ReportedRequest { claimed: 2, claims: vec![hold("a", token), hold("b", token)], ..granted("a", token) };
    let whole = report(&leader, &one, vec![both]);
    take(&mut leader, whole).unwrap();
    reported(&mut leader, &other, &[("b", higher)]);
    assert_eq!((leader.holder("a"), leader.holder("b")), (owner(&one), owner(&other)));
    assert_eq!(lost(&mut leader), [("se_1".to_owned(), Path::flat("b"), token)]);
    leader.send(&one, release("a")).unwrap();
    assert_eq!((leader.holder("a"), leader.holder("b")), (None, owner(&other)));
}

#[test]
fn requests_of_a_thread_that_share_a_hold_share_it_again() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    let token = leader.granted(&session, "l");
    let mut leader = leader.next();
    let second = ReportedRequest { request_id: "second".into(), ..granted("l", token) };
    let whole = report(&leader, &session, vec![granted("l", token), second]);
    take(&mut leader, whole).unwrap();
    leader.send(&session, release("l")).unwrap();
    assert_eq!(leader.holder("l"), owner(&session));
    let release = holdfast_core::SessionRequest::Release { request_id: "second".into(), is_known: true };
    leader.send(&session, release).unwrap();
    assert_eq!(leader.holder("l"), None);
    assert_eq!(leader.table.take_conflicts(), 0);
}

#[test]
fn who_waited_longest_is_first_and_those_without_a_place_are_last() {
    let mut leader = Leader::new();
    let holder = leader.open("se_1", 0);
    let waiters: Vec<SessionView> = ["se_2", "se_3", "se_4", "se_5"].map(|id| leader.open(id, 0)).into();
    let token = leader.granted(&holder, "l");
    let mut leader = leader.next();
    let tickets = [None, Some(token + 9), Some(token + 4), None];
    for (waiter, ticket) in waiters.iter().zip(tickets) {
        let whole = TableReport { pending: vec![waits("l", ticket)], ..report(&leader, waiter, Vec::new()) };
        take(&mut leader, whole).unwrap();
    }
    reported(&mut leader, &holder, &[("l", token)]);
    leader.send(&holder, release("l")).unwrap();
    for at in [2, 1, 0, 3] {
        assert_eq!(leader.holder("l"), owner(&waiters[at]), "{at}");
        leader.send(&waiters[at], release("l")).unwrap();
    }
    assert_eq!(leader.holder("l"), None);
}

#[test]
fn who_waited_for_what_nobody_holds_any_more_is_granted_it() {
    let mut leader = Leader::new();
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    leader.granted(&holder, "l");
    let mut leader = leader.next();
    let whole = TableReport { pending: vec![waits("l", Some(5))], ..report(&leader, &waiter, Vec::new()) };
    take(&mut leader, whole).unwrap();
    expire(&mut leader.log, holder.number);
    leader.follow();
    let context = leader.context();
    leader.table.rebuild_all(&leader.log.core, &context);
    assert!(leader.table.take_completed() && !leader.table.is_rebuilding(&leader.log.core));
    assert_eq!(leader.holder("l"), owner(&waiter));
    let again = leader.send(&waiter, acquire("l"));
    let told = match again {
        Ok(Response::Acquired { outcome: AcquireOutcome::Granted { fencing_token }, .. }) => fencing_token,
        other => panic!("it is not granted: {other:?}"),
    };
    assert!(told > leader.epoch.epoch);
}

#[test]
fn what_was_opened_by_force_is_not_entered() {
    let mut leader = Leader::new();
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let (token, kept) = (leader.granted(&holder, "l"), leader.granted(&holder, "m"));
    let holds = vec![ForfeitedHold { session: holder.number, fencing_token: token }];
    let forfeit = Forfeit { namespace: soft(), path: Path::flat("l"), holds };
    table(&mut leader.log, TableCommand::Forfeit(forfeit)).unwrap();
    for _ in 0..2 {
        leader = leader.next();
        reported(&mut leader, &waiter, &[]);
        reported(&mut leader, &holder, &[("l", token), ("m", kept)]);
        assert_eq!((leader.holder("l"), leader.holder("m")), (None, owner(&holder)));
        assert_eq!(lost(&mut leader), [("se_1".to_owned(), Path::flat("l"), token)]);
    }
}

#[test]
fn a_session_that_ends_after_its_report_holds_nothing_after_its_transition() {
    let mut leader = Leader::new();
    let (expires, closes, other) = (leader.open("se_1", 500), leader.open("se_2", 500), leader.open("se_3", 0));
    let (first, second) = (leader.granted(&expires, "a"), leader.granted(&closes, "b"));
    let mut leader = leader.next();
    reported(&mut leader, &expires, &[("a", first)]);
    reported(&mut leader, &closes, &[("b", second)]);
    expire(&mut leader.log, expires.number);
    leader.follow();
    close(&mut leader.log, "se_2");
    leader.follow();
    reported(&mut leader, &other, &[]);
    assert!(is_busy(&leader.send(&other, acquire("c"))), "what it holds in its transition is not known any more");
    leader.advance_by(500);
    leader.granted(&other, "c");
    assert_eq!((leader.holder("a"), leader.holder("b")), (None, None));

    let mut leader = leader.next();
    let long = leader.open("se_4", 500);
    reported(&mut leader, &other, &[]);
    let token = leader.granted(&long, "a");
    let mut leader = leader.next();
    reported(&mut leader, &other, &[]);
    reported(&mut leader, &long, &[("a", token)]);
    expire(&mut leader.log, long.number);
    leader.follow();
    leader.advance_by(499);
    assert_eq!(leader.holder("a"), owner(&long), "it has the transition of its session");
    leader.advance_by(1);
    assert_eq!(leader.holder("a"), None);
}

#[test]
fn an_expired_session_whose_end_was_not_followed_yet_is_waited_for() {
    let mut leader = Leader::new();
    let (expires, other) = (leader.open("se_1", 500), leader.open("se_2", 0));
    let token = leader.granted(&expires, "l");
    let mut leader = leader.next();
    reported(&mut leader, &expires, &[("l", token)]);
    expire(&mut leader.log, expires.number);
    reported(&mut leader, &other, &[]);
    assert!(is_busy(&leader.send(&other, acquire("l"))), "its transition is not over");
    leader.advance_by(500);
    leader.granted(&other, "l");
}

#[test]
fn what_is_released_before_all_reports_are_there_is_not_entered() {
    let mut leader = Leader::new();
    let (session, other) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let (a, b) = (leader.granted(&session, "a"), leader.granted(&session, "b"));
    let mut leader = leader.next();
    let whole = TableReport {
        pending: vec![waits("w", Some(9)), waits("x", Some(10))],
        ..report(&leader, &session, vec![granted("a", a), granted("b", b)])
    };
    take(&mut leader, whole.clone()).unwrap();
    for lock in ["a", "w"] {
        let released = leader.send(&session, release(lock));
        assert!(matches!(released, Ok(Response::Released { .. })), "{released:?}");
    }
    assert!(is_busy(&leader.send(&session, acquire("a"))));
    reported(&mut leader, &other, &[]);
    let held = ["a", "b", "w", "x"].map(|lock| leader.holder(lock).is_some());
    assert_eq!(held, [false, true, false, true]);

    let mut leader = leader.next();
    let whole = TableReport { table_epoch: leader.epoch.epoch, ..whole };
    take(&mut leader, whole).unwrap();
    let what = Owner::Session { session_id: "se_1".into(), holder: None };
    let message = Some(MessageSeq { epoch: session.epoch, seq: 1_000 });
    let release = Release { namespace: soft(), owner: what, what: ReleaseTarget::All, message };
    assert!(leader.apply(&LocksCommand::Release(release.clone())).is_ok());
    assert_eq!(leader.apply(&LocksCommand::Release(release)), Ok(Response::Ignored), "a copy");
    reported(&mut leader, &other, &[]);
    assert_eq!(["a", "b", "w", "x"].map(|lock| leader.holder(lock)), [None, None, None, None]);
}

#[test]
fn the_list_of_a_resumed_client_takes_away_from_its_report() {
    let mut leader = Leader::new();
    let (session, other) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let (a, b) = (leader.granted(&session, "a"), leader.granted(&session, "b"));
    let mut leader = leader.next();
    reported(&mut leader, &session, &[("a", a), ("b", b)]);
    let mut resume = table_session("se_1", 99, 0);
    resume.open.resume = true;
    let (resumed, _) = open(&mut leader.log, resume);
    leader.follow();
    let info = |held: Vec<ReportedHold>| {
        let message = Some(MessageSeq { epoch: resumed.epoch, seq: 1 });
        LocksCommand::LockInfo(LockInfo {
            namespace: soft(),
            session_id: "se_1".into(),
            message,
            held,
            pending: Vec::new(),
        })
    };
    let listed = info(vec![hold("a", a), hold("c", b)]);
    assert!(is_busy(&leader.apply(&listed)), "it can't be compared yet");
    let late = report(&leader, &session, vec![granted("c", b)]);
    assert_eq!(take(&mut leader, late), Err(CommandError::Superseded { epoch: resumed.epoch }));
    reported(&mut leader, &other, &[]);
    match leader.apply(&listed) {
        Ok(Response::Reconciled { lost, ended_holds: 1, ended_waits: 0 }) => assert_eq!(lost[0].path, Path::flat("c")),
        other => panic!("not compared: {other:?}"),
    }
    assert_eq!(["a", "b", "c"].map(|lock| leader.holder(lock)), [owner(&session), None, None]);
}

#[test]
fn how_far_a_table_is_counts_those_who_have_not_reported() {
    let state = |leader: &mut Leader| match leader.log.query(&Query::TableState { namespace: soft() }) {
        Ok(Response::TableState(mut state)) => {
            state.has_begun = true;
            leader.table.complete_state(&leader.log.core, &soft(), &mut state);
            state
        }
        other => panic!("no state: {other:?}"),
    };
    let mut leader = Leader::new();
    let (one, other) = (leader.open("se_1", 0), leader.open("se_2", 0));
    assert!(state(&mut leader).is_ready());
    let mut leader = leader.next();
    assert!(leader.table.is_rebuilding(&leader.log.core));
    reported(&mut leader, &one, &[]);
    let TableState { missing, waiting_for, .. } = state(&mut leader);
    assert_eq!((missing, waiting_for), (1, vec!["se_2".to_owned()]));
    reported(&mut leader, &other, &[]);
    assert!(state(&mut leader).is_ready() && !leader.table.is_rebuilding(&leader.log.core));
}

#[test]
fn the_log_takes_no_report() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    let leader = leader.next();
    let whole = report(&leader, &session, Vec::new());
    let mut log = leader.log;
    let before = log.core.revision();
    let refused = log.apply(&Command::Locks(LocksCommand::Table(TableCommand::Report(whole)))).outcome;
    assert!(matches!(refused, Err(CommandError::InvalidArgument(_))), "{refused:?}");
    assert_eq!((log.core.revision(), ACCOUNT), (before, soft().account));
}
