//! Locks that are taken for a time, without a command.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Running, call, fresh, holdfast_at, server, value, wait_for_waiting};

#[test]
fn a_lock_is_taken_for_a_time_and_its_owner_unlocks_it() {
    let name = fresh("alone");
    let taken = value(&["lock", &name, "--ttl", "1m"]);
    let (owner, token) = (taken["owner"].as_str().unwrap(), taken["fencing_token"].as_u64().unwrap());
    assert_eq!(taken["lock"]["write_lock_holder"]["process_id"], owner);
    let left = taken["lock"]["write_lock_holder"]["remaining_ms"].as_u64().unwrap();
    assert!((50_000..=60_000).contains(&left));
    assert_eq!(call(&["lock", &name, "--wait", "0s"]).code, 75, "the default owner is another one each time");
    let again = value(&["lock", &name, "--owner", owner]);
    assert_eq!(again["fencing_token"], token, "the same owner extends its hold");
    assert_eq!(value(&["unlock", &name, "--owner", "somebody"])["released"], false);
    assert_eq!(call(&["unlock", &name, "--owner", owner, "--token", "1"]).code, 1);
    assert_eq!(value(&["unlock", &name, "--owner", owner, "--token", &token.to_string()])["released"], true);
    assert_eq!(call(&["unlock", &name]).code, 2, "an owner has to be named");
}

#[test]
fn a_waited_lock_counts_its_time_from_when_it_is_told() {
    let name = fresh("waited");
    value(&["lock", &name, "--ttl", "700ms"]);
    let began = Instant::now();
    let taken = value(&["lock", &name, "--ttl", "5s", "--wait", "1m"]);
    assert!(began.elapsed() > Duration::from_millis(100));
    assert!(taken["lock"]["write_lock_holder"]["remaining_ms"].as_u64().unwrap() > 4_500);
}

#[test]
fn an_interrupt_while_waiting_leaves_the_queue() {
    let name = fresh("interrupted");
    value(&["lock", &name]);
    let waiting = Running::start(holdfast_at(server(), &["lock", &name]));
    wait_for_waiting(&name, 1);
    waiting.signal(Signal::INT);
    let (status, _) = waiting.wait_for_end();
    assert_eq!(status.code(), Some(130));
    wait_for_waiting(&name, 0);
}

#[test]
fn people_are_told_how_to_unlock() {
    let name = fresh("it's mine");
    let told = call(&["lock", &name, "--owner", "me"]).stdout;
    let command = told.lines().find_map(|line| line.strip_prefix("unlock it with: holdfast ")).expect(&told);
    let mut shell = holdfast_at(server(), &[""; 0]);
    let program = shell.get_program().to_owned();
    let mut line = std::process::Command::new("sh");
    line.arg("-c").arg(format!("{} {command}", program.to_str().unwrap())).env_clear();
    line.envs(shell.get_envs().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))));
    shell = line;
    assert_eq!(crate::support::done(shell).stdout, format!("{name} is unlocked\n"));
}
