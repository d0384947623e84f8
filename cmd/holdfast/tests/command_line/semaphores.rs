//! Semaphores from the shell.

use crate::support::{RunningCall, call, holdfast_at, server, unique_name, value, values};

#[test]
fn a_command_runs_with_permits_and_its_status_is_passed_on() {
    let name = unique_name("licences");
    let configured = value(&["sem", "set", &name, "--permits", "2"]);
    assert_eq!((&configured["permits"], &configured["configured"]), (&2.into(), &true.into()));
    let script = "echo $HOLDFAST_FENCING_TOKEN; cat; exit 7";
    let arguments = ["sem", "run", &name, "--weight", "2", "--", "sh", "-c", script];
    let mut running = RunningCall::start(holdfast_at(server(), &arguments));
    let token: u64 = running.read_line().parse().unwrap();
    let shown = value(&["sem", "get", &name]);
    assert_eq!((&shown["semaphore"]["in_use"], &shown["holders"][0]["weight"]), (&2.into(), &2.into()));
    assert_eq!((&shown["holders"][0]["fencing_token"], &shown["holders"][0]["holder"]), (&token.into(), &"sh".into()));
    let text = call(&["sem", "get", &name]).stdout;
    assert!(text.starts_with(&format!("{name}: 2 of 2 permits in use\n  2 for ann@")), "{text}");
    assert!(call(&["sem", "ls"]).stdout.lines().any(|line| line.starts_with(&name) && line.contains("2 of 2")));
    for wait in ["0s", "300ms"] {
        let refused = call(&["sem", "run", &name, "--wait", wait, "--", "echo", "ran"]);
        assert_eq!((refused.code, refused.stdout.as_str()), (75, ""), "{refused:?}");
        assert!(refused.stderr.contains("no permits: "), "{refused:?}");
    }
    running.close_input();
    let (status, said) = running.wait_for_end();
    assert_eq!((status.code(), said.as_str()), (Some(7), ""));
    assert_eq!(value(&["sem", "get", &name])["semaphore"]["in_use"], 0);
    assert!(values(&["sem", "ls", &name]).iter().all(|semaphore| semaphore["name"] == name.as_str()));
    value(&["sem", "rm", &name]);
    assert_eq!(call(&["sem", "get", &name]).code, 1);
}

#[test]
fn a_semaphore_that_nobody_configured_is_gone_after_the_command() {
    let name = unique_name("adhoc");
    let done = call(&["sem", "run", &name, "--permits", "3", "--priority", "9", "--", "echo", "ran"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "ran\n"), "{done:?}");
    assert_eq!(call(&["sem", "get", &name]).code, 1);
    let unknown = call(&["sem", "run", &name, "--", "echo", "ran"]);
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert_eq!(call(&["sem", "run", &name, "--priority", "10", "--", "echo"]).code, 2);
}
