//! Ends of sessions that have more than a slice ends.

use holdfast_core::{
    Acquire, AcquireOutcome, Bounds, CommandError, Effect, EventKind, FencingToken, Kinds, LockState, LocksCommand,
    Path, Phase, Query, Reason, Response, Rules, SessionEnd, Wait,
};

use crate::support::{Shard, assert_nothing_is_left, orders};
use crate::wait_requests::{at, session_owner, session_wait_request, try_request, wait_request, write};

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

/// A shard that ends two things in a slice, and looks at as many paths for it as it has to unless it is told otherwise.
fn shard(visits_per_slice: usize) -> Shard {
    let bounds = Bounds { ends_per_slice: 2, grants_per_slice: 2, visits_per_slice, ..Bounds::of(Rules::TWO) };
    let mut shard = Shard::with_bounds(bounds);
    shard.rules = Rules::TWO;
    shard
}

/// A session that holds seven paths, taken in another order than theirs.
fn session_with_holds(shard: &mut Shard, transition_ms: u64) -> (u64, Vec<FencingToken>) {
    let number = shard.open_session("se_1").number;
    let mut tokens = Vec::new();
    for name in NAMES.iter().rev() {
        let request = session_wait_request("se_1", name, &[write(name)]);
        tokens.insert(0, shard.granted(Acquire { transition_ms, ..request }));
    }
    (number, tokens)
}

fn close(shard: &mut Shard) {
    let close = LocksCommand::CloseSession { namespace: orders(), session_id: "se_1".into(), message: None };
    assert_eq!(shard.run(close), Ok(Response::Done));
}

/// Another entry without commands. It does the same to a replica that was restored right before it.
fn next_entry(shard: &mut Shard) {
    let mut restored = shard.restored();
    shard.advance_by(0);
    restored.advance_by(0);
    assert_eq!(restored.core.snapshot(), shard.core.snapshot(), "a restored replica goes on where it was");
    shard.core.verify();
}

fn held(shard: &Shard) -> Vec<&'static str> {
    NAMES.into_iter().filter(|name| shard.get(name).state != LockState::Unlocked).collect()
}

fn last_event(shard: &Shard) -> EventKind {
    let query = Query::Events {
        namespace: orders(),
        from_revision: Some(0),
        prefix: Path::default(),
        kinds: Kinds::LOCKS,
        limit: 1_000,
    };
    let Ok(Response::Events { events, .. }) = shard.query(&query) else { panic!("not events") };
    events.last().expect("something happened").kind
}

#[test]
fn a_session_ends_at_once_and_what_it_has_in_slices() {
    let mut shard = shard(usize::MAX);
    let (_, tokens) = session_with_holds(&mut shard, 0);
    shard.queued(wait_request("q", &[write("g")]), Reason::Held);
    shard.core.take_effects();
    close(&mut shard);
    let ended = shard.core.take_effects().into_iter().filter_map(|effect| match effect {
        Effect::SessionEnded { session_id, reason, .. } => Some((session_id, reason)),
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [("se_1".to_owned(), SessionEnd::Closed)], "it is told at once");
    let query = Query::Session { namespace: orders(), session_id: "se_1".into() };
    assert_eq!(shard.query(&query), Err(CommandError::SessionNotFound("se_1".into())));
    assert_eq!(held(&shard), NAMES, "nothing has ended yet");
    for (name, fencing_token) in NAMES.iter().zip(tokens) {
        let query = Query::Check { namespace: orders(), path: at(name), fencing_token };
        let Ok(Response::Checked { current, .. }) = shard.query(&query) else { panic!("not a check") };
        assert!(!current, "{name} is over");
    }
    assert_eq!(shard.get("g").write_lock_holder.expect("it is held").phase, Phase::Transition);
    for left in [&NAMES[2..], &NAMES[4..], &NAMES[6..]] {
        next_entry(&mut shard);
        assert_eq!(held(&shard), left, "holds end in order of path");
        assert!(shard.core.has_backlog() && last_event(&shard) == EventKind::Released);
    }
    next_entry(&mut shard);
    assert_eq!(shard.holders("g"), ["q"], "whoever waits is granted when its turn comes");
    assert!(!shard.core.has_backlog());
}

#[test]
fn an_expired_session_counts_transitions_from_when_it_ended() {
    let mut shard = shard(usize::MAX);
    let (number, _) = session_with_holds(&mut shard, 10_000);
    let since_ms = shard.core.clock_ms();
    let known_revision = shard.core.revision();
    shard.run(LocksCommand::ExpireSessions { ids: vec![number], known_revision }).unwrap();
    let deadlines = |shard: &Shard| -> Vec<Option<u64>> {
        NAMES.iter().map(|name| shard.get(name).write_lock_holder.expect("it is held").deadline_ms).collect()
    };
    assert_eq!(deadlines(&shard), [Some(since_ms + 10_000); 7], "what is shown before its turn");
    shard.advance_by(5_000);
    while shard.core.has_backlog() {
        next_entry(&mut shard);
    }
    assert_eq!(deadlines(&shard), [Some(since_ms + 10_000); 7], "and after it");
    assert_eq!(last_event(&shard), EventKind::SessionEnded);
    shard.advance_by(5_000);
    while shard.core.has_backlog() {
        next_entry(&mut shard);
    }
    assert_nothing_is_left(&shard.core);
}

#[test]
fn nothing_is_granted_to_a_session_that_has_ended() {
    let mut shard = shard(usize::MAX);
    session_with_holds(&mut shard, 0);
    shard.open_session("se_2");
    shard.granted(session_wait_request("se_2", "own", &[write("z")]));
    for name in ["x", "y", "w"] {
        shard.queued(session_wait_request("se_1", name, &[write("z")]), Reason::Held);
    }
    close(&mut shard);
    shard.core.take_effects();
    let close = LocksCommand::CloseSession { namespace: orders(), session_id: "se_2".into(), message: None };
    let mut effects = Vec::new();
    shard.run(close).unwrap();
    loop {
        effects.extend(shard.core.take_effects());
        if !shard.core.has_backlog() {
            break;
        }
        next_entry(&mut shard);
    }
    let outcomes = effects.into_iter().filter_map(|effect| match effect {
        Effect::WaitResolved { outcome: AcquireOutcome::Refused(refused), .. } => Some(refused.reason),
        Effect::WaitResolved { outcome, .. } => panic!("something is granted: {outcome:?}"),
        _ => None,
    });
    assert_eq!(outcomes.collect::<Vec<_>>(), [Reason::Ended; 3]);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_session_of_the_same_id_is_another_one() {
    let mut shard = shard(usize::MAX);
    session_with_holds(&mut shard, 0);
    close(&mut shard);
    shard.open_session_as("se_1", false, 9).unwrap();
    let request = session_wait_request("se_1", "a", &[write("g")]);
    assert_eq!(shard.refused(Acquire { wait: Wait::No, ..request.clone() }).reason, Reason::Transition);
    shard.granted(session_wait_request("se_1", "g", &[write("z")]));
    while shard.core.has_backlog() {
        next_entry(&mut shard);
    }
    assert_eq!(shard.core.footprint().holds, 1);
    assert_eq!(shard.get("z").write_lock_holder.expect("it is held").owner, session_owner("se_1"));
    shard.granted(request);
}

/// However few of the paths that a slice looks at are of the session.
#[test]
fn a_slice_looks_at_no_more_than_it_may() {
    let mut shard = shard(3);
    session_with_holds(&mut shard, 0);
    for number in 0..40 {
        let name = format!("a{number}");
        let owner = format!("p{number}");
        shard.granted(try_request(&owner, &[write(&name)]));
    }
    close(&mut shard);
    let mut entries = 0;
    while shard.core.has_backlog() {
        next_entry(&mut shard);
        entries += 1;
        assert!(entries < 30, "it comes to an end");
    }
    assert_eq!((held(&shard), shard.core.footprint().holds), (vec![], 40));
    assert!(entries > 10, "{entries} entries");
    assert_eq!(last_event(&shard), EventKind::SessionEnded);
}
