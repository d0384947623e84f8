//! Time for what must not grow with what waits or is held, as ratios within one run.

use std::ops::Range;
use std::time::{Duration, Instant};

use holdfast_core::{Mode, Query, Response};

use crate::exclusive;
use crate::shard::{LONG_WAIT, Shard, namespace};

/// A lock with so many that wait for it, the holder first.
fn lock_with_waiters(waiting: u64, mode: Mode) -> Shard {
    let mut shard = Shard::new();
    shard.hold("p0", &["lock"]);
    for index in 1..=waiting {
        let owner = format!("p{index}");
        let outcome = match mode {
            Mode::Write => shard.acquire(&owner, &["lock"], LONG_WAIT),
            Mode::Read => shard.read(&owner, &["lock"], LONG_WAIT),
        };
        assert!(outcome.fencing_token().is_none());
    }
    shard
}

/// As `lock_with_waiters`, of owners that each hold something that another one waits for.
fn lock_with_awaited_waiters(waiting: u64) -> Shard {
    let mut shard = Shard::new();
    shard.hold("p0", &["lock"]);
    for index in 1..=waiting {
        let (owner, own) = (format!("p{index}"), format!("own{index}"));
        shard.hold(&owner, &[&own]);
        shard.acquire(&format!("behind{index}"), &[&own], LONG_WAIT);
        shard.acquire(&owner, &["lock"], LONG_WAIT);
    }
    shard
}

/// Hands a lock on from one to the next, turn after turn; each goes to the end of the queue again.
fn hand_off(shard: &mut Shard, waiting: u64, turns: Range<u64>) -> (Duration, f64) {
    let examined = shard.core.requests_examined();
    let start = Instant::now();
    let times = turns.end - turns.start;
    for turn in turns {
        let owner = format!("p{}", turn % (waiting + 1));
        shard.release(&owner, &["lock"]);
        shard.acquire(&owner, &["lock"], LONG_WAIT);
    }
    let each = start.elapsed() / u32::try_from(times).expect("few enough");
    (each, (shard.core.requests_examined() - examined) as f64 / times as f64)
}

#[test]
fn the_requests_looked_at_for_a_hand_off_do_not_grow_with_those_that_wait() {
    let _alone = exclusive();
    let looked_at =
        [10, 100, 10_000].map(|waiting| hand_off(&mut lock_with_waiters(waiting, Mode::Write), waiting, 0..50).1);
    assert_eq!(looked_at, [3.0; 3], "the next, the one after it, and the one that comes again");
}

#[test]
fn nor_with_those_that_wait_for_the_ones_that_wait() {
    let _alone = exclusive();
    for waiting in [10, 1_000] {
        let mut shard = lock_with_awaited_waiters(waiting);
        let before = shard.core.requests_examined();
        (0..waiting / 2).for_each(|index| shard.release(&format!("p{index}"), &["lock"]));
        let looked_at = shard.core.requests_examined() - before;
        assert!(looked_at <= waiting, "{looked_at} looked at in {} hand-offs", waiting / 2);
    }
}

/// Returns the shortest time of many keep-alives of a session.
fn shortest_keep_alive(shard: &Shard, session_id: &str, holds: u64) -> Duration {
    let query = Query::KeepAlive { namespace: namespace(), session_id: session_id.to_owned(), epoch: None };
    let times = (0..200).map(|_| {
        let start = Instant::now();
        let reply = shard.core.query(0, &query);
        let took = start.elapsed();
        let Ok(Response::Session(session)) = reply.outcome else { panic!("not a session: {reply:?}") };
        assert_eq!((session.holds, session.waiting), (holds, 0));
        took
    });
    times.min().expect("there are some")
}

#[test]
fn a_sign_of_life_takes_no_longer_for_many_holders() {
    let _alone = exclusive();
    let mut shard = Shard::new();
    for (session_id, holders) in [("few", 1), ("many", 50_000)] {
        shard.open_session(session_id);
        for holder in 0..holders {
            shard.hold_for(session_id, &format!("holder-{holder}"), &format!("{session_id}-{holder}"));
        }
    }
    let few = shortest_keep_alive(&shard, "few", 1);
    let many = shortest_keep_alive(&shard, "many", 50_000);
    println!("a keep-alive: {few:?} with one holder, {many:?} with 50,000");
    // To look at all of them takes a thousand times as long as one look.
    assert!(many < 30 * few + Duration::from_micros(5), "{few:?} with one holder, {many:?} with 50,000");
}

#[test]
#[ignore = "prints figures"]
fn a_hand_off_with_100_000_waiting_against_one_with_10() {
    let _alone = exclusive();
    let mut few = lock_with_waiters(10, Mode::Write);
    let start = Instant::now();
    let mut many = lock_with_waiters(100_000, Mode::Write);
    println!("to enqueue 100,000: {:?}", start.elapsed());
    for round in 0..3 {
        let turns = round * 50_000..(round + 1) * 50_000;
        let (with_few, looked_few) = hand_off(&mut few, 10, turns.clone());
        let (with_many, looked_many) = hand_off(&mut many, 100_000, turns.clone());
        assert_eq!(looked_few, looked_many);
        let ratio = with_many.as_secs_f64() / with_few.as_secs_f64();
        println!(
            "round {round}: release and enqueue again: {with_few:?} with 10 ({looked_few:.2} looked at), {with_many:?} with 100,000 ({looked_many:.2} looked at), ratio {ratio:.2}"
        );
    }
}

#[test]
#[ignore = "prints figures"]
fn a_hand_off_among_owners_that_others_wait_for() {
    let _alone = exclusive();
    for waiting in [10, 10_000] {
        let start = Instant::now();
        let mut shard = lock_with_awaited_waiters(waiting);
        println!("to enqueue {waiting} owners that others wait for: {:?}", start.elapsed());
        let start = Instant::now();
        let examined = shard.core.requests_examined();
        for index in 0..waiting.min(1_000) {
            shard.release(&format!("p{index}"), &["lock"]);
        }
        let (each, looked) = (start.elapsed() / waiting.min(1_000) as u32, shard.core.requests_examined() - examined);
        println!("a hand-off: {each:?}, {:.2} looked at", looked as f64 / waiting.min(1_000) as f64);
    }
}

#[test]
#[ignore = "prints figures"]
fn pairs_of_acquire_and_release() {
    let _alone = exclusive();
    for held in [0, 1_000_000] {
        let mut shard = Shard::new();
        for index in 0..held {
            shard.hold(&format!("process-{index:06}"), &[&format!("lock-{index:06}")]);
        }
        for depth in [1, 2, 8] {
            let segments: Vec<String> = (0..depth).map(|level| format!("level{level}")).collect();
            let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
            let start = Instant::now();
            for _ in 0..100_000 {
                shard.hold("p", &segments);
                shard.release("p", &segments);
            }
            println!("with {held} held, {depth} deep: {:?} a pair", start.elapsed() / 100_000);
        }
        if held > 0 {
            let start = Instant::now();
            let chunks = shard.core.snapshot();
            let bytes: usize = chunks.iter().map(Vec::len).sum();
            println!("snapshot of {held}: {:?}, {bytes} bytes", start.elapsed());
            let start = Instant::now();
            shard.restored(&chunks);
            println!("restore of {held}: {:?}", start.elapsed());
        }
    }
}

#[test]
#[ignore = "prints figures"]
fn the_end_of_100_000_at_once() {
    let _alone = exclusive();
    let mut shard = Shard::new();
    (0..100_000).for_each(|index| shard.hold(&format!("process-{index:06}"), &[&format!("lock-{index:06}")]));
    let start = Instant::now();
    shard.advance(60_000);
    shard.finish();
    println!("100,000 holds expire: {:?}", start.elapsed());
    assert_eq!(shard.core.footprint(), Default::default());
    for index in 0..100_000 {
        let session_id = format!("se_{index:06}");
        shard.open_session(&session_id);
        shard.lock(&session_id, "r", &format!("lock-{index:06}"));
    }
    let ids = shard.core.sessions().map(|lease| lease.number).collect();
    let start = Instant::now();
    shard.expire(ids);
    shard.finish();
    println!("100,000 sessions with a hold expire: {:?}", start.elapsed());
    let start = Instant::now();
    println!("their {} effects: {:?}", shard.core.take_effects().len(), start.elapsed());
    let mut shard = lock_with_waiters(1_000, Mode::Read);
    let start = Instant::now();
    shard.release("p0", &["lock"]);
    println!("1,000 readers are let in: {:?}", start.elapsed());
    let start = Instant::now();
    println!("their {} effects: {:?}", shard.core.take_effects().len(), start.elapsed());
    let mut shard = lock_with_waiters(100_000, Mode::Write);
    let start = Instant::now();
    shard.advance(600_000);
    shard.finish();
    println!("100,000 waits and a hold end: {:?}", start.elapsed());
}

#[test]
#[ignore = "prints figures"]
fn asking_for_a_lock_while_100_000_wait_for_another_that_is_held() {
    let _alone = exclusive();
    let mut shard = lock_with_waiters(100_000, Mode::Write);
    shard.hold("other", &["second"]);
    let start = Instant::now();
    shard.acquire("p0", &["second"], LONG_WAIT);
    println!("a hot holder waits for somebody who waits for nothing: {:?}", start.elapsed());
    shard.hold("p99999x", &["third"]);
    let start = Instant::now();
    shard.acquire("p99999", &["third"], LONG_WAIT);
    println!("the last in the queue waits for another: {:?}", start.elapsed());
    shard.acquire("p99999x", &["lock"], LONG_WAIT);
    let start = Instant::now();
    let outcome = shard.acquire("p0", &["third"], LONG_WAIT);
    println!("a hot holder is refused a deadlock: {:?}, {:?}", start.elapsed(), outcome.fencing_token());
}
