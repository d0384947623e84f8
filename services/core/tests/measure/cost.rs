//! Time for states that somebody crafts to make commands dear, and what a unit takes.

use std::time::{Duration, Instant};

use holdfast_core::{Bounds, Claim, Mode, Rules, Wait};

use crate::exclusive;
use crate::shard::{LONG_WAIT, Shard, at};

fn write(text: &str) -> Claim {
    Claim { path: at(text), mode: Mode::Write }
}

fn read(text: &str) -> Claim {
    Claim { path: at(text), mode: Mode::Read }
}

fn shard_by_rules_two() -> Shard {
    Shard::with_bounds(Bounds::of(Rules::TWO))
}

/// How long it takes and what it spends.
fn timed(what: &str, things: u64, shard: &mut Shard, mut does: impl FnMut(&mut Shard)) -> Duration {
    let (before, start) = (shard.core.units(), Instant::now());
    does(shard);
    let (took, units) = (start.elapsed(), shard.core.units() - before);
    let each = took.as_nanos() as u64 / units.max(1);
    println!("| {what} | {things} | {units} | {took:.2?} | {each} |");
    took
}

/// Owners with 66 holds each that wait twice, for what the same one holds.
fn tangled_owners(owners: u64) -> Shard {
    let mut shard = shard_by_rules_two();
    shard.granted("h", vec![write("l1"), write("l2")]);
    for number in 0..owners {
        let owner = format!("f{number}");
        for half in 0..2 {
            shard.granted(&owner, (0..33).map(|hold| write(&format!("f/{number}/{half}/{hold}"))).collect());
        }
        shard.acquire_claims(&owner, vec![write("l1"), write("m1")], LONG_WAIT);
        shard.acquire_claims(&owner, vec![write("l2"), write("m2")], LONG_WAIT);
    }
    shard
}

fn measure_searches() {
    for owners in [10, 100, 200] {
        let mut shard = tangled_owners(owners);
        let tried = timed("a refused try among owners of 66 holds that wait twice", owners, &mut shard, |shard| {
            assert!(shard.acquire_claims("f7", vec![write("m1/x")], Wait::No).fencing_token().is_none());
        });
        let repeated = timed("a repeat among them", owners, &mut shard, |shard| {
            shard.acquire_claims("f7", vec![write("l1"), write("m1")], LONG_WAIT);
        });
        let ended = timed("a release of one of them", owners, &mut shard, |shard| {
            shard.release("f8", &["f", "8", "0", "1"]);
        });
        let released = timed("a release of what all wait for", owners, &mut shard, |shard| {
            shard.release("h", &["l1"]);
        });
        assert!(tried < Duration::from_millis(50), "{tried:?}");
        assert!(repeated.max(ended).max(released) < Duration::from_millis(50), "{repeated:?} {ended:?} {released:?}");
    }
}

fn measure_root_waits() {
    for waiting in [100, 1_000, 20_000, 100_000] {
        let mut shard = shard_by_rules_two();
        shard.granted("w", vec![write("w")]);
        (0..1_001).for_each(|number| drop(shard.acquire_claims("r", vec![read(&format!("r/{number}"))], Wait::No)));
        timed("to join those who wait for everything", waiting, &mut shard, |shard| {
            (0..waiting)
                .for_each(|number| drop(shard.acquire_claims(&format!("p{number}"), vec![read("")], LONG_WAIT)));
        });
        let released = timed("a release below those who wait for everything", waiting, &mut shard, |shard| {
            shard.release("r", &["r", "7"]);
        });
        assert!(released < Duration::from_millis(50), "{released:?}");
        timed("a release that lets all of them in", waiting, &mut shard, |shard| shard.release("w", &["w"]));
    }
}

fn measure_popular_lock() {
    for waiting in [100, 1_000, 10_000, 100_000] {
        let mut shard = shard_by_rules_two();
        shard.granted("h", vec![write("hot")]);
        for number in 0..waiting {
            let claim = if number % 2 == 0 { read("hot") } else { write("hot") };
            shard.acquire_claims(&format!("p{number}"), vec![claim], LONG_WAIT);
            if number % (waiting / 20) == 0 {
                let (owner, own) = (format!("t{number}"), format!("t/{number}"));
                shard.granted(&owner, vec![write(&own)]);
                shard.acquire_claims(&format!("behind {number}"), vec![write(&own)], LONG_WAIT);
                shard.acquire_claims(&owner, vec![write("hot")], LONG_WAIT);
            }
        }
        timed("to join a popular lock with owners that are waited for", waiting, &mut shard, |shard| {
            shard.acquire_claims("new", vec![write("hot")], LONG_WAIT);
        });
        timed("a try of one of these", waiting, &mut shard, |shard| {
            shard.acquire_claims("t0", vec![write("hot/x")], Wait::No);
        });
        timed("a release of the lock", waiting, &mut shard, |shard| shard.release("h", &["hot"]));
    }
}

#[test]
#[ignore = "prints figures"]
fn crafted_states() {
    let _alone = exclusive();
    println!("| command | things | units | took | ns a unit |\n|---|---|---|---|---|");
    measure_searches();
    measure_root_waits();
    measure_popular_lock();
}
