//! Session-durable namespaces: all rules hold, and each that is taken away is missed.
//!
//! `make models` runs the ignored tests too; `SHORT=1` leaves out the large bounds.

use std::num::NonZeroUsize;
use std::time::Instant;

use holdfast_model_tests::search::{self, Model, Options, Outcome};
use holdfast_model_tests::session_durable::Step;
use holdfast_model_tests::session_durable::configurations::{Configuration, LONG, OMISSIONS, SHORT};
use holdfast_model_tests::session_durable::invariants::Invariant;
use holdfast_model_tests::session_durable::rules::SessionDurable;

const HEAD: &str = "| configuration | seen | distinct states | steps | left out | depth | seconds |\n\
                    |---|---|---:|---:|---:|---:|---:|\n";

fn threads() -> usize {
    let given = std::env::var("HOLDFAST_MODEL_THREADS").ok().and_then(|text| text.parse().ok());
    given.or_else(|| std::thread::available_parallelism().ok().map(NonZeroUsize::get)).unwrap_or(1)
}

/// Searches, prints a row of the table, and returns what was found.
fn check(configuration: &Configuration) -> Outcome<SessionDurable> {
    let model = &configuration.model;
    let options = Options { threads: threads(), max_states: u64::MAX, keeps_traces: model.without.is_some() };
    let began = Instant::now();
    let outcome = search::run(model, options);
    println!(
        "| {} | {} | {} | {} | {} | {} | {:.0} |",
        configuration.name,
        invariant_of(&outcome).map_or("holds".to_owned(), |invariant| format!("{invariant:?} falls")),
        grouped(outcome.states),
        grouped(outcome.steps),
        grouped(outcome.left_out),
        outcome.depth,
        began.elapsed().as_secs_f32()
    );
    outcome
}

fn invariant_of(outcome: &Outcome<SessionDurable>) -> Option<Invariant> {
    outcome.counterexample.as_ref().map(|found| found.invariant)
}

/// A number with a comma after each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits are ASCII")).collect();
    groups.join(",")
}

/// Fails with all configurations that came to something else than expected.
fn check_all(configurations: &[Configuration]) {
    print!("{HEAD}");
    let mut unexpected = Vec::new();
    for configuration in configurations {
        let outcome = check(configuration);
        if invariant_of(&outcome) != configuration.model.only {
            unexpected.push((configuration.name, configuration.about, outcome.counterexample));
        }
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

#[test]
fn each_rule_that_is_taken_away_is_missed() {
    check_all(&OMISSIONS);
}

#[test]
fn a_counterexample_has_all_steps_that_lead_to_it() {
    let found = check(&OMISSIONS[0]);
    assert_eq!(found.counterexample.map(|counterexample| counterexample.trace.len()), Some(found.depth));
}

#[test]
fn states_that_differ_in_names_only_are_one() {
    // Two sessions and a liar; the first and the liar are at one gateway.
    let model = SHORT[3].model;
    let mut found = Vec::new();
    model.successors(&model.initial(), &mut found);
    let after = |session, lock| {
        let step = Step::Acquire { session, lock };
        found.iter().find(|(taken, _)| *taken == step).map(|(_, state)| model.fingerprint(state))
    };
    assert!(after(0, 0).is_some());
    assert_eq!(after(0, 0), after(0, 1), "locks are alike");
    assert_ne!(after(0, 0), after(1, 0), "only one of them shares its gateway with the liar");
    assert_ne!(after(0, 0), after(2, 0), "the liar is not like the others");
    let pair = SHORT[0].model;
    found.clear();
    pair.successors(&pair.initial(), &mut found);
    let requests: Vec<u64> = found
        .iter()
        .filter(|(step, _)| matches!(step, Step::Acquire { .. }))
        .map(|(_, state)| pair.fingerprint(state))
        .collect();
    assert!(matches!(requests[..], [first, second] if first == second), "two sessions at two gateways: {requests:?}");
}

#[test]
fn what_is_found_does_not_depend_on_threads() {
    let model = SHORT[3].model;
    let visit = |threads| {
        let outcome = search::run(&model, Options { threads, max_states: 20_000, keeps_traces: false });
        assert!(outcome.is_partial);
        (outcome.states, outcome.steps, outcome.depth)
    };
    assert_eq!(visit(1), visit(4));
}

#[test]
#[ignore = "13 s of CPU; part of `make models SHORT=1`"]
fn all_rules_hold_within_small_bounds() {
    check_all(&SHORT);
}

#[test]
#[ignore = "minutes and gigabytes; part of `make models`"]
fn all_rules_hold_within_large_bounds() {
    check_all(&LONG);
}
