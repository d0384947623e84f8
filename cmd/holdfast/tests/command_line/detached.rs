//! Locks that are taken for a time, without a command.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{RunningCall, call, holdfast_at, server, unique_name, value, wait_for_waiting};

#[test]
fn a_lock_is_taken_for_a_time_and_its_owner_unlocks_it() {
    let name = unique_name("alone");
    let taken = value(&["lock", &name, "--ttl", "1m"]);
    let (owner, token) = (taken["owner"].as_str().unwrap(), taken["fencing_token"].as_u64().unwrap());
    assert_eq!(taken["lock"]["write_lock_holder"]["process_id"], owner);
    let left = taken["lock"]["write_lock_holder"]["remaining_ms"].as_u64().unwrap();
    assert!((50_000..=60_000).contains(&left));
    assert_eq!(call(&["lock", &name, "--wait", "0s"]).code, 75, "the default owner is another one each time");
    let again = value(&["lock", &name, "--owner", owner]);
    assert_eq!(again["fencing_token"], token, "the same owner extends its hold");
    assert_eq!(value(&["unlock", &name, "--owner", "somebody"])["released"], false);
    let other = (token + 1).to_string();
    assert_eq!(call(&["unlock", &name, "--owner", owner, "--token", &other]).code, 1);
    assert_eq!(value(&["unlock", &name, "--owner", owner, "--token", &token.to_string()])["released"], true);
    let nobody = call(&["unlock", &name]);
    assert_eq!(nobody.code, 2, "an owner has to be named");
    assert!(nobody.stderr.contains("--owner") && nobody.stderr.contains("--force"), "{nobody:?}");
}

#[test]
fn programs_are_told_who_is_in_the_way() {
    let name = unique_name("told");
    let token = value(&["lock", &name, "--owner", "me"])["fencing_token"].clone();
    for (wait, code) in [("0s", "HELD"), ("200ms", "TIMED_OUT")] {
        let done = call(&["--output", "json", "lock", &name, "--wait", wait]);
        assert_eq!(done.code, 75);
        let told: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!((&told["success"], &told["reason"]["code"]), (&false.into(), &code.into()), "{told}");
        assert_eq!(told["lock"]["write_lock_holder"]["process_id"], "me");
        if code == "HELD" {
            let blocker = &told["reason"]["blockers"][0];
            assert_eq!((&blocker["process_id"], &blocker["fencing_token"]), (&"me".into(), &token), "{told}");
            assert_eq!((&blocker["path"][0], &blocker["waiting"]), (&name.as_str().into(), &false.into()), "{told}");
        } else {
            assert!(done.stderr.contains("me holds it since 20"), "{done:?}");
        }
        let error = done.stderr.lines().last().unwrap();
        let error: serde_json::Value = serde_json::from_str(error).unwrap();
        assert_eq!(error["error"]["code"], code);
    }
}

#[test]
fn a_waited_lock_counts_its_time_from_when_it_is_told() {
    let name = unique_name("waited");
    value(&["lock", &name, "--ttl", "5s"]);
    let began = Instant::now();
    let taken = value(&["lock", &name, "--ttl", "20s", "--wait", "1m"]);
    assert!(began.elapsed() > Duration::from_millis(100));
    // Counted from when it was asked for, the time of the other hold would be missing.
    assert!(taken["lock"]["write_lock_holder"]["remaining_ms"].as_u64().unwrap() > 17_000);
}

/// At any moment: also between two calls of the wait the place is free when the program has ended.
#[test]
fn an_interrupt_while_waiting_leaves_the_queue() {
    let name = unique_name("interrupted");
    value(&["lock", &name]);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut waiting = RunningCall::start(holdfast_at(server(), &["lock", &name]));
        wait_for_waiting(&name, 1);
        waiting.signal(Signal::USR1);
        // Told after the first call, the place of which is kept.
        let told = waiting.read_error_line();
        assert!(told.contains(&format!("waiting for {name}: ann@")) && told.contains("next in the queue"), "{told}");
        waiting.signal(signal);
        assert_eq!(waiting.wait_for_end().0.code(), Some(code));
        assert_eq!(value(&["get", &name])["waiting"], 0);
    }
}

#[test]
fn people_are_told_how_to_unlock() {
    let name = unique_name("it's mine");
    let told = call(&["lock", &name, "--owner", "it's me"]).stdout;
    let command = told.lines().find_map(|line| line.strip_prefix("unlock it with: holdfast ")).expect(&told);
    let mut shell = holdfast_at(server(), &[""; 0]);
    let program = shell.get_program().to_owned();
    let mut line = std::process::Command::new("sh");
    line.arg("-c").arg(format!("{} {command}", program.to_str().unwrap())).env_clear();
    line.envs(shell.get_envs().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))));
    shell = line;
    assert_eq!(crate::support::run_to_end(shell).stdout, format!("{name} is unlocked\n"));
}
