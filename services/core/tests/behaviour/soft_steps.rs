//! Work on lock tables in the memory of a leader that takes more than one step: each does little.

use holdfast_core::{
    Bounds, CommandError, JobState, LocksCommand, MessageSeq, Owner, Query, Release, ReleaseTarget, Response, Rules,
    SessionCommand, SessionView,
};

use crate::durability::{soft, with_soft};
use crate::soft_grants::{Leader, acquire, expire_all, is_busy, owner, release};
use crate::soft_reports::{granted, report, reported, take};
use crate::support::{ACCOUNT, Shard};

/// What one step may end.
const ENDS: usize = 4;

/// A leader whose steps end little.
fn leader() -> Leader {
    let bounds = Bounds { ends_per_slice: ENDS, ..Bounds::of(Rules::TWO) };
    Leader::of(with_soft(Shard::with_bounds(bounds)), 1)
}

fn holds(leader: &Leader) -> u64 {
    match leader.table.usage(&leader.log.core, 0, &soft()).expect("its table is here").outcome {
        Ok(Response::Usage { holds, .. }) => holds,
        other => panic!("no usage: {other:?}"),
    }
}

#[test]
fn a_large_release_is_done_in_steps_and_its_reply_awaits_the_last() {
    let mut leader = leader();
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    for lock in 0..40 {
        leader.granted(&holder, &format!("l{lock}"));
    }
    leader.send(&waiter, acquire("l39")).unwrap();
    let owner_of_all = Owner::Session { session_id: "se_1".into(), holder: None };
    let message = Some(MessageSeq { epoch: holder.epoch, seq: 1_000 });
    let release = Release { namespace: soft(), owner: owner_of_all, what: ReleaseTarget::All, message };
    let context = leader.context();
    let reply = leader.table.apply(&leader.log.core, &context, &LocksCommand::Release(release));
    assert!(reply.outcome.is_ok(), "{:?}", reply.outcome);
    let began = reply.awaits.expect("it takes more than a step");
    assert_eq!(leader.table.next_deadline_ms(), Some(context.now_ms), "more is due at once");
    let (mut before, mut steps) = (holds(&leader), 0);
    assert!(before > 40 - 2 * ENDS as u64);
    while leader.table.job_state(began) == JobState::Running {
        leader.table.advance(&context);
        leader.table.verify();
        let left = holds(&leader);
        assert!(before.saturating_sub(left) <= ENDS as u64, "{before} to {left} in one step");
        (before, steps) = (left, steps + 1);
    }
    assert!(matches!(leader.table.job_state(began), JobState::Done { .. }) && steps > 40 / ENDS - 2, "{steps}");
    assert_eq!((leader.holder("l0"), leader.holder("l39")), (None, owner(&waiter)));
}

#[test]
fn sessions_that_end_together_end_in_steps_before_anything_is_granted() {
    let mut leader = leader();
    let other = leader.open("other", 0);
    let sessions: Vec<SessionView> = (0..24).map(|number| leader.open(&format!("se_{number}"), 0)).collect();
    for session in &sessions {
        leader.granted(session, &format!("lock of {}", session.session_id));
        leader.send(session, acquire(&format!("lock of {}", sessions[0].session_id))).unwrap();
    }
    expire_all(&mut leader, &sessions.iter().collect::<Vec<_>>());
    leader.follow();
    assert!(leader.table.is_behind());
    let context = leader.context();
    assert_eq!(leader.table.next_deadline_ms(), Some(context.now_ms));
    assert!(!leader.table.is_ready_to_answer(&leader.log.core, &soft()), "what is over is not shown");
    assert!(is_busy(&leader.send(&other, acquire("lock of se_0"))), "others may be granted it that end");
    let (mut before, mut steps) = (holds(&leader), 0);
    while leader.table.is_behind() {
        leader.table.advance(&context);
        leader.table.verify();
        let left = holds(&leader);
        // A step ends those of before, and another what it goes on with.
        assert!(before.saturating_sub(left) <= 2 * ENDS as u64, "{before} to {left} in one step");
        (before, steps) = (left, steps + 1);
    }
    assert!(steps > 1 && leader.table.take_completed(), "those who wait are woken: {steps}");
    // What is over is granted to nobody until it has left the queue.
    while leader.table.next_deadline_ms().is_some() {
        leader.table.advance(&context);
        steps += 1;
        assert!(steps < 100, "it ends");
    }
    leader.granted(&other, "lock of se_0");
}

#[test]
fn who_asks_what_it_still_holds_is_answered_before_the_first_claim_is_entered_or_after_the_last() {
    let mut leader = leader();
    let (holder, other) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let mut hold_one = |number| {
        let lock = format!("l{number}");
        granted(&lock, leader.granted(&holder, &lock))
    };
    let held = (0..3 * ENDS).map(&mut hold_one).collect();
    let mut leader = leader.next();
    let session_id = holder.session_id.clone();
    let ask = Query::ReconcileHolds { namespace: soft(), session_id, held: Vec::new() };
    let asked = |leader: &Leader| leader.table.query(&leader.log.core, 0, &ask).expect("its table is here").outcome;
    assert!(matches!(asked(&leader), Err(CommandError::Unreported { .. })));
    let whole = report(&leader, &holder, held);
    take(&mut leader, whole).unwrap();
    let has_lost_nothing = Ok(Response::reconciled(Vec::new(), (0, 0), Vec::new()));
    assert_eq!(asked(&leader), has_lost_nothing);
    reported(&mut leader, &other, &[]);
    assert!(is_busy(&asked(&leader)), "it may have lost what it was told before it subscribed");
    let context = leader.context();
    while leader.table.next_deadline_ms().is_some_and(|due_ms| due_ms <= context.now_ms) {
        leader.table.rebuild_all(&leader.log.core, &context);
    }
    assert_eq!(asked(&leader), has_lost_nothing);
}

#[test]
fn a_list_of_commands_ends_as_much_as_one() {
    let mut leader = leader();
    let other = leader.open("other", 0);
    let sessions: Vec<SessionView> = (0..24).map(|number| leader.open(&format!("se_{number}"), 0)).collect();
    for session in &sessions {
        leader.granted(session, &session.session_id);
    }
    expire_all(&mut leader, &sessions.iter().collect::<Vec<_>>());
    leader.follow();
    let command_of = |seq| {
        let message = MessageSeq { epoch: other.epoch, seq };
        LocksCommand::Session(SessionCommand {
            account: ACCOUNT,
            session: other.number,
            message,
            request: release("free"),
        })
    };
    let answered = leader.apply(&LocksCommand::Batch((1..=8).map(command_of).collect()));
    assert!(matches!(&answered, Ok(Response::Batch(outcomes)) if outcomes.iter().all(is_busy)), "{answered:?}");
    // What had ended before, and what was due: a slice of each.
    let ended = 24 - holds(&leader);
    assert!(leader.table.is_behind() && ended > 0 && ended <= 3 * ENDS as u64, "{ended}");
}

#[test]
fn steps_that_may_end_one_thing_get_to_every_kind() {
    let bounds = Bounds { ends_per_slice: 1, grants_per_slice: 1, ..Bounds::of(Rules::TWO) };
    let mut leader = Leader::of(with_soft(Shard::with_bounds(bounds)), 1);
    let (opened, ended, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0), leader.open("se_3", 0));
    leader.granted(&opened, "l");
    leader.granted(&ended, "m");
    for lock in ["l", "m"] {
        leader.send(&waiter, acquire(lock)).unwrap();
    }
    let forfeit = leader.force_open("l").expect("it is complete");
    expire_all(&mut leader, &[&ended]);
    leader.follow();
    leader.forfeit(&forfeit);
    let context = leader.context();
    let mut steps = 0;
    while leader.table.next_deadline_ms().is_some() {
        leader.table.advance(&context);
        leader.table.verify();
        steps += 1;
        assert!(steps < 20, "it ends");
    }
    assert!(!leader.table.is_behind());
    assert_eq!((leader.holder("l"), leader.holder("m")), (owner(&waiter), owner(&waiter)));
}
