//! Tests that run again in processes of their own, with mutations: no process can disable one again.

use std::io;
use std::process::Command;
use std::sync::OnceLock;

use crate::{Mutation, enable};

/// Names the mutations that a process of a test program enables, separated by spaces.
const MUTATIONS_ENV: &str = "HOLDFAST_TEST_MUTATIONS";

const NOT_IN_THIS_BUILD: &str = "mutations are off in this build: `make mutations` makes one with them";

/// Enables the mutations that [`failure_of_test`] started this process with. A test calls it first; only the first call
/// of a process changes anything.
///
/// # Errors
/// When there is no such mutation, or this build has none.
pub fn enable_from_env() -> Result<(), String> {
    static OUTCOME: OnceLock<Result<(), String>> = OnceLock::new();
    let enable_all = || {
        let names = std::env::var(MUTATIONS_ENV).unwrap_or_default();
        names.split_whitespace().try_for_each(|name| {
            let mutation = Mutation::from_name(name).ok_or_else(|| format!("there is no mutation named {name:?}"))?;
            if enable(mutation) { Ok(()) } else { Err(NOT_IN_THIS_BUILD.to_owned()) }
        })
    };
    OUTCOME.get_or_init(enable_all).clone()
}

/// Runs a test of the calling test program in a process of its own, with these mutations and variables of the
/// environment. Returns its output if it fails.
///
/// # Errors
/// When the program can't be run or is killed, when it has no such test, or when its build has no mutations.
pub fn failure_of_test(test: &str, mutations: &[Mutation], env: &[(&str, &str)]) -> Result<Option<String>, String> {
    let not_run = |error: io::Error| format!("{test} can't be run: {error}");
    let names: Vec<&str> = mutations.iter().map(|mutation| mutation.name()).collect();
    let mut command = Command::new(std::env::current_exe().map_err(not_run)?);
    command.args(["--exact", test, "--nocapture"]).env(MUTATIONS_ENV, names.join(" ")).envs(env.iter().copied());
    let run = command.output().map_err(not_run)?;
    let text = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    if !text.contains("running 1 test") {
        return Err(format!("there is no test {test}: {text}"));
    }
    if text.contains(NOT_IN_THIS_BUILD) {
        return Err(NOT_IN_THIS_BUILD.to_owned());
    }
    let failed = text.contains("panicked") || text.contains("FAILED");
    match run.status.success() {
        true => Ok(None),
        false if failed => Ok(Some(text)),
        false => Err(format!("{test} was ended, {}: {text}", run.status)),
    }
}

/// Checks that each mutation breaks the test that `test_of` names of the calling test program, and that the test
/// succeeds without it. Prints a table.
///
/// # Panics
/// When a test fails without its mutation, does not fail with it, or can't be run.
pub fn assert_each_breaks_its_test(test_of: impl Fn(Mutation) -> Option<&'static str>) {
    println!("| mutation | fails |\n|---|---|");
    for fault in Mutation::ALL.iter().copied() {
        let Some(test) = test_of(fault) else { continue };
        let fails =
            |mutations: &[Mutation]| failure_of_test(test, mutations, &[]).expect("it runs to its end").is_some();
        assert!(!fails(&[]), "{test} fails without a mutation too");
        assert!(fails(&[fault]), "{test} does not fail with {}", fault.name());
        println!("| {} | {test} |", fault.name());
    }
}
