//! What commands cost, counted in units: each is bounded however much is held and awaited.

use std::time::{Duration, Instant};

use holdfast_core::{
    Acquire, AcquireOutcome, Bounds, Claim, CommandError, Limits, Query, Reason, Response, Rules, Wait,
};

use crate::support::{Shard, orders};
use crate::wait_requests::{cancel_command, read, try_request, wait_request, write};

/// As much as one look for who waits for whom may take, with what is around it.
const MAX_SEARCH_UNITS: u64 = 40_000;
const A_SLICE: u64 = 4_096;

fn shard_by_rules_two() -> Shard {
    Shard::with_bounds(Bounds::of(Rules::TWO))
}

/// What it takes.
fn units<T>(shard: &mut Shard, what: impl FnOnce(&mut Shard) -> T) -> (T, u64) {
    let before = shard.core.units();
    let result = what(shard);
    (result, shard.core.units() - before)
}

fn enqueue(shard: &mut Shard, request: Acquire) {
    match shard.outcome(request) {
        AcquireOutcome::Enqueued(_) => {}
        other => panic!("it should wait: {other:?}"),
    }
}

fn assert_over_quota(answer: Result<Response, CommandError>, what: &str) {
    match answer {
        Err(refusal) if refusal.limit().is_some() && refusal.to_string().contains(what) => {}
        other => panic!("not refused for {what}: {other:?}"),
    }
}

fn assert_limited_by(answer: Result<Response, CommandError>, limit: &str) {
    let refusal = answer.expect_err("should be refused").to_string();
    assert!(refusal.contains(limit), "{refusal}");
}

/// Owners with 66 holds each that wait twice, so that each request may overtake each other one.
fn tangled_owners(owners: u64) -> Shard {
    let mut shard = shard_by_rules_two();
    shard.granted(try_request("h", &[write("l1"), write("l2")]));
    for number in 0..owners {
        let owner = format!("f{number}");
        for half in 0..2 {
            let holds: Vec<Claim> = (0..33).map(|hold| write(&format!("f/{number}/{half}/{hold}"))).collect();
            shard.granted(try_request(&owner, &holds));
        }
        enqueue(&mut shard, wait_request(&owner, &[write("l1"), write("m1")]));
        enqueue(&mut shard, wait_request(&owner, &[write("l2"), write("m2")]));
    }
    shard
}

#[test]
fn among_two_hundred_that_may_overtake_one_another_each_command_is_bounded() {
    let mut shard = tangled_owners(200);
    let (why, refused) = units(&mut shard, |shard| shard.refused(try_request("f7", &[write("m1/x")])).reason);
    assert_eq!(why, Reason::Queued);
    let (_, repeated) = units(&mut shard, |shard| enqueue(shard, wait_request("f7", &[write("l1"), write("m1")])));
    let (_, other) = units(&mut shard, |shard| shard.release_paths("f9", &["f/9/0/1"]));
    let (_, released) = units(&mut shard, |shard| shard.release_paths("h", &["l1"]));
    assert_eq!(shard.granted_owners(), ["f0"]);
    println!("units: {refused} to refuse a try, {repeated} for a repeat, {other} and {released} for a release");
    assert!(refused.max(repeated).max(other).max(released) < MAX_SEARCH_UNITS);
    assert!(repeated < 100, "what is known is not looked for again");
    shard.core.verify();
}

#[test]
fn a_page_of_those_who_wait_costs_about_a_slice_and_all_are_listed_once() {
    let mut shard = tangled_owners(20);
    let wide: Vec<Claim> = (0..64).map(|number| write(&format!("l1/{number}"))).collect();
    for number in 0..2_000 {
        let claims = if number < 100 { wide.clone() } else { vec![write("l1")] };
        enqueue(&mut shard, wait_request(&format!("w{number}"), &claims));
    }
    let (mut after, mut listed, mut sizes) = (None, Vec::new(), Vec::new());
    loop {
        let query = Query::Queue { namespace: orders(), after, limit: 1_000 };
        let (page, spent) = units(&mut shard, |shard| shard.query(&query));
        let Ok(Response::Queue { waits, more }) = page else { panic!("not the queue: {page:?}") };
        assert!(spent < 2 * A_SLICE, "{spent} units for {} rows", waits.len());
        sizes.push(waits.len());
        after = waits.last().map(|last| last.wait.wait);
        listed.extend(waits);
        if !more {
            break;
        }
    }
    assert!(sizes[0] < 140, "the page ends when its slice is used up: {sizes:?}");
    assert_eq!(listed.len(), 40 + 2_000);
    assert!(listed.is_sorted_by_key(|row| row.wait.wait));
    let last = listed.last().unwrap();
    assert_eq!((last.not_granted.reason, last.not_granted.queue_position), (Reason::Queued, Some(20 + 1_899)));
}

/// What others wait for of what somebody holds is known until it changes.
#[test]
fn who_joins_a_line_in_which_many_wait_looks_at_no_holds_of_theirs() {
    let mut shard = shard_by_rules_two();
    shard.granted(try_request("x", &[write("one"), write("two")]));
    for number in 0..200 {
        for half in 0..2 {
            let holds: Vec<Claim> = (0..33).map(|hold| write(&format!("f/{number}/{half}/{hold}"))).collect();
            shard.granted(try_request(&format!("f{number}"), &holds));
        }
    }
    let mut most = 0;
    for wanted in ["one", "two"] {
        for number in 0..200 {
            let ((), spent) =
                units(&mut shard, |shard| enqueue(shard, wait_request(&format!("f{number}"), &[write(wanted)])));
            most = most.max(spent);
        }
    }
    shard.core.verify();
    println!("{most} units at most");
    assert!(most < A_SLICE);
}

/// The holds of everybody who waits are in its way.
#[test]
fn an_end_under_many_that_wait_for_everything_is_bounded() {
    let mut shard = shard_by_rules_two();
    shard.granted(try_request("w", &[write("w")]));
    for number in 0..300 {
        shard.granted(try_request("r", &[read(&format!("r/{number}"))]));
    }
    for number in 0..2_000 {
        let claim = if number % 2 == 0 { read("") } else { write("") };
        enqueue(&mut shard, wait_request(&format!("p{number}"), &[claim]));
    }
    let (_, one) = units(&mut shard, |shard| shard.release_paths("r", &["r/7"]));
    assert_eq!(shard.granted_owners(), [""; 0]);
    let (_, write) = units(&mut shard, |shard| shard.release_paths("w", &["w"]));
    assert_eq!(shard.granted_owners(), ["p0"], "a reader may be beside readers, and a writer is behind it");
    println!("units: {one} for the end of a read hold, {write} for that of the write hold");
    assert!(one < 100 && write < 300);
    shard.core.verify();
}

/// None of them is looked at before the last hold that excludes it is gone.
#[test]
fn readers_of_everything_are_let_in_by_the_end_of_the_last_writer_under_it() {
    let mut shard = shard_by_rules_two();
    shard.granted(try_request("w", &[write("w/1"), write("w/2")]));
    for number in 0..200 {
        enqueue(&mut shard, wait_request(&format!("p{number}"), &[read("")]));
    }
    enqueue(&mut shard, wait_request("last", &[write("")]));
    let (_, first) = units(&mut shard, |shard| shard.release_paths("w", &["w/1"]));
    assert_eq!(shard.granted_owners(), [""; 0]);
    assert!(first < 50, "{first} units");
    shard.release_paths("w", &["w/2"]);
    let mut granted = shard.granted_owners().len();
    while shard.core.has_backlog() {
        shard.advance_by(0);
        granted += shard.granted_owners().len();
    }
    assert_eq!(granted, 200);
    shard.core.verify();
}

/// Only what the others hold is in the way of one of several owners.
#[test]
fn the_only_owner_under_a_path_is_let_in_by_the_end_of_others() {
    let mut shard = shard_by_rules_two();
    shard.granted(try_request("own", &[write("a/own")]));
    shard.granted(try_request("other", &[write("a/other"), read("a/read")]));
    enqueue(&mut shard, wait_request("own", &[write("a")]));
    shard.release_paths("other", &["a/other"]);
    assert_eq!(shard.granted_owners(), [""; 0]);
    shard.release_paths("other", &["a/read"]);
    assert_eq!(shard.granted_owners(), ["own"]);
    shard.core.verify();
}

/// However many wait for one lock: who reads and who writes in turn.
fn popular_lock_request(shard: &mut Shard, number: u64) -> Acquire {
    let claim = if number.is_multiple_of(2) { read("hot") } else { write("hot") };
    let request = wait_request(&format!("p{number}"), &[claim]);
    enqueue(shard, request.clone());
    request
}

#[test]
fn a_popular_lock_costs_no_more_for_many_that_wait_for_it() {
    let costs = [200, 1_900].map(|waiting| {
        let mut shard = shard_by_rules_two();
        shard.granted(try_request("h", &[write("hot"), write("also")]));
        (0..waiting / 2).for_each(|number| drop(popular_lock_request(&mut shard, number)));
        // Owners in the middle, each of which is waited for, too.
        for number in 0..20 {
            let owner = format!("t{number}");
            shard.granted(try_request(&owner, &[write(&format!("t/{number}"))]));
            enqueue(&mut shard, wait_request(&format!("behind {number}"), &[write(&format!("t/{number}"))]));
            enqueue(&mut shard, wait_request(&owner, &[write("hot")]));
        }
        (waiting / 2..waiting).for_each(|number| drop(popular_lock_request(&mut shard, number)));
        let (request, joined) = units(&mut shard, |shard| popular_lock_request(shard, waiting));
        let (_, repeated) = units(&mut shard, |shard| enqueue(shard, request));
        let (_, tried) =
            units(&mut shard, |shard| drop(shard.refused(try_request("t3", &[write("also/x"), write("hot/x")]))));
        shard.granted(try_request("t4", &[write("mine")]));
        let (_, more) = units(&mut shard, |shard| enqueue(shard, wait_request("t4", &[write("also")])));
        let (_, released) = units(&mut shard, |shard| shard.release_paths("h", &["hot"]));
        assert_eq!(shard.granted_owners(), ["p0"]);
        shard.core.verify();
        [joined, repeated, tried, more, released]
    });
    println!("units to join, repeat, try, join as one that is waited for, release: {costs:?}");
    assert_eq!(costs[0], costs[1], "they are the same for 200 and for 1,900");
    assert!(costs[0].iter().all(|units| *units < 3_000));
}

/// The place in the queue is part of the answer, and exact.
#[test]
fn a_repeat_far_back_in_a_queue_takes_about_as_long_as_one_at_its_front() {
    let mut shard =
        Shard::with_limits(Limits { max_waiting_per_lock: 100_000, max_readers_per_lock: 10_000, ..Limits::default() });
    shard.rules = Rules::TWO;
    shard.granted(try_request("h", &[write("l")]));
    for number in 0..11_000_u64 {
        let claim = if number.is_multiple_of(3) { read("l") } else { write("l") };
        enqueue(&mut shard, wait_request(&format!("w{number}"), &[claim]));
    }
    let mut repeat = |number: u64| {
        let claim = if number.is_multiple_of(3) { read("l") } else { write("l") };
        let request = wait_request(&format!("w{number}"), &[claim]);
        let mut least = Duration::MAX;
        for _ in 0..10 {
            let (request, began) = (request.clone(), Instant::now());
            let outcome = shard.outcome(request);
            least = least.min(began.elapsed());
            let AcquireOutcome::Enqueued(enqueued) = outcome else { panic!("it should wait: {outcome:?}") };
            assert_eq!(enqueued.not_granted.queue_position, Some(number.min(10_000)));
        }
        least
    };
    let (front, back) = (repeat(3), repeat(9_001));
    repeat(10_999);
    println!("{front:?} at the front, {back:?} far back");
    assert!(back < 4 * front, "{front:?} at the front and {back:?} far back");
    shard.core.verify();
}

#[test]
fn requests_of_many_kinds_between_owners_that_are_waited_for_are_refused_at_last() {
    let mut shard = Shard::with_bounds(Bounds { tangle_visits: 300, ..Bounds::of(Rules::TWO) });
    shard.granted(try_request("h", &[write("hot")]));
    for number in 0..200 {
        // Nobody tells them apart as long as nobody is behind them.
        enqueue(&mut shard, wait_request(&format!("p{number}"), &[write("hot"), read(&format!("own/{number}"))]));
    }
    shard.granted(try_request("t", &[write("t")]));
    enqueue(&mut shard, wait_request("behind", &[write("t")]));
    let before = shard.core.snapshot();
    assert_over_quota(shard.try_acquire(wait_request("t", &[write("hot")])), "steps to find out who waits for whom");
    assert!(shard.core.snapshot() == before, "nothing is left of what was refused");
    shard.granted(try_request("h", &[write("t2")]));
    enqueue(&mut shard, wait_request("t", &[write("t2"), read("own/7/x")]));
    shard.core.verify();
}

#[test]
fn an_owner_waits_with_so_many_requests_and_holds_at_most() {
    let bounds = Bounds { waiting_of_owner: 3, holds_of_waiting_owner: 10, ..Bounds::of(Rules::TWO) };
    let mut shard = Shard::with_bounds(bounds);
    shard.granted(try_request("h", &[write("l")]));
    for number in 0..3 {
        enqueue(&mut shard, wait_request("p", &[write(&format!("l/{number}"))]));
    }
    assert_over_quota(shard.try_acquire(wait_request("p", &[write("l/3")])), "waiting requests of an owner");
    // The claims that wait do not count.
    for number in 0..10 {
        shard.granted(try_request("p", &[write(&format!("own/{number}"))]));
    }
    assert_over_quota(shard.try_acquire(try_request("p", &[write("own/10")])), "the number of holds of an owner");
    shard.granted(try_request("p", &[write("own/9")]));
    for number in 0..10 {
        shard.granted(try_request("big", &[write(&format!("big/{number}"))]));
    }
    let waiting = wait_request("big", &[write("l/y"), write("l/z")]);
    enqueue(&mut shard, waiting.clone());
    assert!(shard.run(cancel_command(&waiting)).is_ok());
    shard.granted(try_request("big", &[write("big/10")]));
    assert_over_quota(shard.try_acquire(wait_request("big", &[write("l/x")])), "the number of holds of an owner");
    assert_eq!(shard.refused(try_request("big", &[write("l/x")])).reason, Reason::Ancestor);
    shard.core.verify();
}

/// What the rules allow is the most that an account can be allowed; what it is allowed by default is less.
#[test]
fn an_account_has_limits_of_its_own_for_owners_that_wait() {
    let limits = Limits { max_tangle: 1, max_waiting_per_owner: 2, max_holds_of_waiting_owner: 4, ..Limits::default() };
    let mut shard = Shard::with_limits(limits);
    shard.granted(try_request("h", &[write("l"), write("m"), write("n")]));
    enqueue(&mut shard, wait_request("p", &[write("l")]));
    enqueue(&mut shard, wait_request("p", &[write("m")]));
    assert_limited_by(
        shard.try_acquire(wait_request("p", &[write("n")])),
        "waiting requests of an owner is limited to 2",
    );
    enqueue(&mut shard, wait_request("q", &[write("l")]));
    let before = shard.core.snapshot();
    assert_limited_by(shard.try_acquire(wait_request("q", &[write("m")])), "wait and are waited for is limited to 1");
    assert!(shard.core.snapshot() == before, "nothing is left of what was refused");
    let many: Vec<_> = (0..5).map(|number| write(&format!("own/{number}"))).collect();
    shard.granted(try_request("r", &many));
    assert_limited_by(shard.try_acquire(wait_request("r", &[write("l")])), "an owner that waits is limited to 4");

    shard.core.verify();
}

#[test]
fn an_owner_with_as_many_holds_as_allowed_by_default_may_wait() {
    let mut shard = Shard::with_limits(Limits::default());
    shard.rules = Rules::TWO;
    shard.granted(try_request("h", &[write("l")]));
    for part in 0..16 {
        let claims: Vec<_> = (0..64).map(|number| write(&format!("own/{part}/{number}"))).collect();
        shard.granted(try_request("p", &claims));
    }
    let waiting = Acquire { attempt: 1, ..wait_request("p", &[write("l/a"), write("l/b")]) };
    enqueue(&mut shard, waiting.clone());
    let limit = "the number of holds of an owner that waits is limited to 1024";
    assert_limited_by(shard.try_acquire(try_request("p", &[write("one more")])), limit);
    assert!(shard.run(cancel_command(&waiting)).is_ok());
    shard.granted(try_request("p", &[write("one more")]));
    assert_limited_by(shard.try_acquire(waiting), limit);
    shard.core.verify();
}

/// Who holds so much that it may not wait asks as anybody else does, but stands behind those who wait for it.
#[test]
fn an_owner_that_holds_too_much_to_wait_overtakes_nobody() {
    for (most, expected) in [(10, true), (2, false)] {
        let mut shard = Shard::with_bounds(Bounds { holds_of_waiting_owner: most, ..Bounds::of(Rules::TWO) });
        for number in 0..3 {
            shard.granted(try_request("big", &[write(&format!("big/{number}"))]));
        }
        enqueue(&mut shard, wait_request("w", &[write("big/1"), write("free")]));
        let outcome = shard.outcome(try_request("big", &[write("free")]));
        assert_eq!(matches!(outcome, AcquireOutcome::Granted { .. }), expected);
        shard.core.verify();
    }
}

#[test]
fn while_those_who_wait_hold_much_nobody_joins_above_holds() {
    let mut shard = Shard::with_bounds(Bounds { holds_of_waiting: 5, ..Bounds::of(Rules::TWO) });
    shard.granted(try_request("h", &[write("l")]));
    shard.granted(try_request(
        "p",
        &[write("p/1"), write("p/2"), write("p/3"), write("p/4"), write("p/5"), write("p/6")],
    ));
    enqueue(&mut shard, wait_request("q", &[write("p")]));
    enqueue(&mut shard, wait_request("p", &[write("l")]));
    assert_over_quota(shard.try_acquire(wait_request("all", &[write("")])), "holds of owners that wait");
    assert_eq!(
        shard.refused(Acquire { wait: Wait::No, ..try_request("all", &[write("")]) }).reason,
        Reason::Descendant
    );
    enqueue(&mut shard, wait_request("one", &[write("p/1")]));
    shard.core.verify();
}

/// Numbers that look random and are the same each time.
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, max: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % max
    }
}

/// Hundreds of threads of few processes that ask for sets of the same few locks. A call looks who waits for whom when it
/// asks and when it has joined.
#[test]
fn sets_of_few_locks_asked_for_by_many_cost_two_searches_each_at_most() {
    let (mut shard, mut most, mut joined, mut numbers) = (shard_by_rules_two(), 0, 0, SeededRng(41));
    for _ in 0..1_000 {
        let owner = format!("s{}-{}", numbers.below(6), numbers.below(41));
        let claims: Vec<Claim> = (0..=numbers.below(5))
            .map(|_| {
                let (top, path) = (numbers.below(3), numbers.below(13));
                let path = if path == 0 { format!("{top}") } else { format!("{top}/{path}") };
                if numbers.below(2) == 0 { read(&path) } else { write(&path) }
            })
            .collect();
        let (answer, units) = units(&mut shard, |shard| shard.try_acquire(wait_request(&owner, &claims)));
        joined += u64::from(matches!(answer, Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(_), .. })));
        most = most.max(units);
    }
    println!("{joined} wait; at most {most} units a call");
    assert!(joined > 100, "{joined} wait");
    assert!(most <= 2 * MAX_SEARCH_UNITS, "{most} units");
    shard.core.verify();
}

/// Sessions that ask for sets of locks under one that somebody holds, in a hurry, until it is released.
#[test]
fn a_crowd_that_waits_for_sets_is_let_in_over_several_entries() {
    let (mut shard, mut numbers, mut joined, mut most) = (shard_by_rules_two(), SeededRng(7), 0_usize, 0);
    shard.granted(try_request("x", &[write("q")]));
    let began = Instant::now();
    for _ in 0..5_400 {
        let owner = format!("s{}", numbers.below(6 * 41));
        let claims: Vec<Claim> = (0..=numbers.below(5))
            .map(|_| {
                let below: String = (0..numbers.below(4)).map(|_| format!("/{}", numbers.below(3))).collect();
                let path = format!("q{below}");
                if numbers.below(2) == 0 { read(&path) } else { write(&path) }
            })
            .collect();
        let (answer, units) = units(&mut shard, |shard| shard.try_acquire(wait_request(&owner, &claims)));
        joined += usize::from(matches!(answer, Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(_), .. })));
        most = most.max(units);
    }
    println!("{joined} wait after {:?}; at most {most} units a call", began.elapsed());
    assert!(joined > 200, "{joined} wait");
    let began = Instant::now();
    let (_, released) = units(&mut shard, |shard| shard.release_paths("x", &["q"]));
    let (mut let_in, mut entries, mut longest) = (shard.granted_owners().len(), 0, Duration::ZERO);
    while shard.core.has_backlog() {
        let began = Instant::now();
        let ((), slice) = units(&mut shard, |shard| shard.advance_by(0));
        let_in += shard.granted_owners().len();
        (most, longest) = (most.max(slice), longest.max(began.elapsed()));
        entries += 1;
    }
    println!("{released} units to release; {let_in} let in in {entries} entries and {:?}", began.elapsed());
    println!("the longest took {longest:?}; at most {most} units an entry");
    assert!(let_in > 0 && released.max(most) <= 2 * MAX_SEARCH_UNITS);
    shard.core.verify();
}

/// What they watched is gone, and something else is in their way: nobody is let in, and that takes several entries.
#[test]
fn many_who_have_to_wait_for_something_else_then_are_looked_at_in_slices() {
    let mut shard = Shard::with_bounds(Bounds { visits_per_slice: 1_024, ..Bounds::of(Rules::TWO) });
    shard.rules = Rules::TWO;
    shard.granted(try_request("b", &[write("h1"), write("h2")]));
    for number in 0..500 {
        shard.enqueued(wait_request(&format!("w{number}"), &[read("h1"), read("h2")]));
    }
    let examined = shard.core.requests_examined();
    shard.release_paths("b", &["h1"]);
    let mut entries = 0;
    while shard.core.has_backlog() {
        let mut restored = shard.restored();
        shard.advance_by(0);
        restored.advance_by(0);
        assert_eq!(restored.core.snapshot(), shard.core.snapshot(), "a restored replica goes on where it was");
        shard.core.verify();
        entries += 1;
    }
    assert!((5..20).contains(&entries), "{entries} entries");
    assert_eq!(shard.core.requests_examined() - examined, 500, "each is looked at once");
    shard.release_paths("b", &["h2"]);
    while shard.core.has_backlog() {
        shard.advance_by(0);
    }
    assert_eq!(shard.holders("h1").len(), 500);
}
