//! A few seeds, and that a seed gives the same run every time.

use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_sim_tests::Run;

/// Seeds that are always run.
const FIXED_SEEDS: std::ops::Range<u64> = 10..14;
/// Seeds that once found something, and what they found.
const REGRESSION_SEEDS: [(u64, &str); 5] = [
    (
        700_002,
        "an owner with two waiting requests was overtaken, rightly, by an owner for which the other request waits",
    ),
    (10_190, "a refusal named another cycle of waits on a replica that was restored from a snapshot"),
    (10_402, "the last lease of a process that is gone was counted as a second one"),
    (40_396, "a request in the queue was answered as if it were not, when its leader stopped before it said so"),
    (80_011, "a namespace that was created again was not found before its locks shard knew it"),
];
/// Seeds that differ every time.
const RANDOM_SEEDS: u64 = 3;

fn assert_clean(run: &Run) -> String {
    let found = crate::execute(run);
    assert!(found.is_clean, "repeat with `SEED={} make sim`\n{}{}", run.seed, found.text, found.errors);
    found.text
}

#[test]
fn the_same_seed_gives_the_same_run_packet_for_packet() {
    let run = |seed| assert_clean(&Run { packets: true, ..Run::from_seed(seed) });
    let first = run(1);
    assert_eq!(run(1), first);
    assert_ne!(run(2), first);
}

#[test]
fn a_cluster_without_faults_serves() {
    assert_clean(&Run { calm: true, ..Run::from_seed(3) });
}

/// Seeds with a hostile account, with tiny bounds and without.
const HOSTILE_SEEDS: [u64; 2] = [12, 15];

#[test]
fn a_hostile_account_harms_nobody_and_without_faults_delays_nobody() {
    for seed in HOSTILE_SEEDS {
        for calm in [true, false] {
            let text = assert_clean(&Run { calm, ..Run::from_seed(seed) });
            assert!(!text.contains(" attacks 0 "), "there was no hostile account: {text}");
        }
    }
}

/// More messages than that pass while the calls are made once.
const MIN_LOST_MESSAGES: u64 = 20;

#[test]
fn a_lost_answer_at_any_message_and_a_repeat_make_one_hold_and_one_count() {
    let run = Run { lost_answers: true, ..Run::from_seed(5) };
    let found = crate::execute(&run);
    assert!(found.is_clean, "{}{}", found.text, found.errors);
    // In each of two ways.
    let lost = found.value("faults").expect("the report says how many messages were lost");
    assert!(lost > 2 * MIN_LOST_MESSAGES, "{lost} messages were lost");
}

#[test]
fn some_seeds_find_nothing() {
    for seed in FIXED_SEEDS {
        assert_clean(&Run::from_seed(seed));
    }
}

#[test]
fn seeds_that_once_found_something_find_nothing() {
    for (seed, what) in REGRESSION_SEEDS {
        println!("seed {seed}: {what}");
        assert_clean(&Run::from_seed(seed));
    }
}

#[test]
fn fresh_seeds_find_nothing() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
    let first = u64::try_from(since.as_micros()).expect("it fits for a long time") % 1_000_000_000;
    println!("fresh seeds from {first} on");
    for seed in first..first + RANDOM_SEEDS {
        assert_clean(&Run::from_seed(seed));
    }
}
