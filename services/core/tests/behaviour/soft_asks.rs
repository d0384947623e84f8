//! Requests to release a lock whose table is in the memory of a leader.

use holdfast_core::{
    AskRelease, AskedHolds, AskedView, Command, CommandError, Effect, Kind, LocksCommand, Path, ReleaseRequest,
    Response,
};

use crate::asks::polite;
use crate::durability::soft;
use crate::soft_grants::{Leader, acquire, is_busy, owner};
use crate::soft_reports::reported;

/// A polite request for a lock; `number` tells it apart.
fn ask_for(lock: &str, number: u64) -> AskRelease {
    AskRelease { namespace: soft(), ..polite(lock, number) }
}

fn run(leader: &mut Leader, ask: AskRelease) -> Result<Response, CommandError> {
    leader.apply(&LocksCommand::AskRelease(ask))
}

/// How many holds a request concerns, and what the lock shows of it then.
fn answer_to(leader: &mut Leader, ask: AskRelease) -> (u64, Option<ReleaseRequest>) {
    match run(leader, ask) {
        Ok(Response::ReleaseAsked { asked, truncated: false, view: AskedView::Lock(lock) }) => {
            (asked, lock.write_lock_holder.and_then(|holder| holder.release_requested).map(|request| *request))
        }
        other => panic!("not an answer to a request: {other:?}"),
    }
}

/// What sessions were told since the last time.
fn sessions_told(leader: &mut Leader) -> Vec<(String, AskedHolds)> {
    let told = |effect| match effect {
        Effect::ReleaseRequested { session_id, asked, .. } => Some((session_id, asked)),
        _ => None,
    };
    leader.table.take_effects().into_iter().filter_map(told).collect()
}

fn names_field(outcome: &Result<Response, CommandError>, field: &str) -> bool {
    matches!(outcome, Err(CommandError::InvalidArgument(text)) if text.starts_with(field))
}

#[test]
fn who_holds_a_lock_is_asked_for_it_once_and_keeps_it() {
    let mut leader = Leader::new();
    assert_eq!(answer_to(&mut leader, ask_for("l", 1)), (0, None), "nobody ever asked for anything");
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let token = leader.granted(&holder, "l");
    leader.send(&waiter, acquire("l")).unwrap();
    sessions_told(&mut leader);
    let (count, request) = answer_to(&mut leader, AskRelease { within_ms: Some(5_000), ..ask_for("l", 2) });
    assert_eq!(
        (count, request.map(|it| (it.reason, it.within_ms, it.force))),
        (1, Some(("why".into(), Some(5_000), false)))
    );
    let told_of = sessions_told(&mut leader);
    let [(session_id, holds)] = told_of.as_slice() else { panic!("the holder alone is told") };
    assert_eq!((session_id.as_str(), holds.kind, holds.holds[0].fencing_token), ("se_1", Kind::Lock, token));
    assert_eq!(answer_to(&mut leader, AskRelease { within_ms: Some(5_000), ..ask_for("l", 2) }).0, 1);
    assert!(sessions_told(&mut leader).is_empty(), "a repeat tells nobody");
    leader.advance_by(5_000);
    assert_eq!(leader.holder("l"), owner(&holder));
}

#[test]
fn nobody_is_asked_before_a_table_is_complete_and_the_next_leader_knows_of_no_request() {
    let mut leader = Leader::new();
    let holder = leader.open("se_1", 0);
    let token = leader.granted(&holder, "l");
    assert_eq!(answer_to(&mut leader, ask_for("l", 1)).0, 1);
    let mut leader = leader.next();
    assert!(is_busy(&run(&mut leader, ask_for("l", 2))));
    reported(&mut leader, &holder, &[("l", token)]);
    assert_eq!(leader.holder("l"), owner(&holder));
    sessions_told(&mut leader);
    let (count, request) = answer_to(&mut leader, AskRelease { reason: "again".into(), ..ask_for("l", 3) });
    assert_eq!((count, request.map(|request| request.reason)), (1, Some("again".into())));
    assert_eq!(sessions_told(&mut leader).len(), 1);
}

#[test]
fn a_request_with_force_or_for_permits_is_refused_by_its_field() {
    let mut leader = Leader::new();
    let holder = leader.open("se_1", 0);
    leader.granted(&holder, "l");
    let forced = AskRelease { force: true, within_ms: Some(1), ..ask_for("l", 1) };
    let of_semaphore = AskRelease { kind: Kind::Semaphore, path: Path::flat("s"), ..ask_for("l", 1) };
    for (ask, field) in [(forced, "force"), (of_semaphore, "namespace")] {
        let refused = run(&mut leader, ask.clone());
        assert!(names_field(&refused, field), "{refused:?}");
        let refused = leader.log.apply(&Command::Locks(LocksCommand::AskRelease(ask))).outcome;
        assert!(names_field(&refused, field), "{refused:?}");
    }
    leader.follow();
    leader.advance_by(1_000);
    assert_eq!(leader.holder("l"), owner(&holder));
}
