//! Every long-lived task is known to the tests that let it panic, and shown where a process says that it is not ready.

use std::collections::BTreeSet;

use holdfast_tidy::{assert_none, root};

use crate::house_rules::scans;

/// Where the points of injected panics are listed.
const POINTS_FILE: &str = "services/mutations/src/panics.rs";
const POINT_LISTS: [&str; 2] = ["PANIC_POINTS", "UNSIMULATED_PANIC_POINTS"];
/// Points that are no tasks.
const NO_TASKS: [&str; 1] = ["apply"];
/// Long-lived threads, each with its file. They are no tasks, so they have no panic point, and a panic is not counted.
const THREADS: [(&str, &str); 2] = [
    // Storage is below supervision. A panic fails the store for good, and `/readyz` says so.
    ("storage-commit", "services/storage/src/committer.rs"),
    // After a panic, data is freed by the task that sends it.
    ("purged", "services/node/src/machine/slices.rs"),
];
/// What starts such a thread, up to its name.
const THREAD_CALL: &str = "Builder::new().name(";
/// What makes sets, and says what is wrong with the tasks of the process itself.
const SUPERVISE: &str = "services/supervise/src";

/// The tasks of a leader are started by a function that gets their names.
const LEADER_TASKS_FILE: &str = "services/node/src/tasks/mod.rs";
const LEADER_TASKS_CALL: &str = "spawn(&tasks, ";

/// Where sets of tasks are made, and what shows their failures: each of these expressions in its file. Tasks of the
/// process itself are in sets that `TaskSet::of_process` or `TaskSet::in_background` makes.
const SHOWN_SETS: [(&str, &[(&str, &str)]); 6] = [
    (
        "services/node/src/node.rs",
        &[
            ("services/node/src/status.rs", "shared.tasks.unhealthy_reason()"),
            PROCESS_IN_NODE,
            PROCESS_IN_GATEWAY,
            BACKGROUND_IN_NODE,
            BACKGROUND_IN_GATEWAY,
        ],
    ),
    ("services/replication/src/group.rs", &[("services/node/src/status.rs", "group.tasks().unhealthy_reason()")]),
    (
        "services/replication/src/group_manager.rs",
        &[GROUP_MANAGER_IN_NODE, ("services/replication/src/group_manager.rs", "self.inner.tasks.unhealthy_reason()")],
    ),
    (
        "services/replication/src/network/peer_connection.rs",
        &[
            GROUP_MANAGER_IN_NODE,
            ("services/replication/src/group_manager.rs", "peer_connections.failing_task()"),
            ("services/replication/src/network/mod.rs", "link.tasks().unhealthy_reason()"),
        ],
    ),
    ("services/routing/src/router.rs", ROUTER),
    ("services/routing/src/channel.rs", ROUTER),
];
/// The same of a gateway.
const SHOWN_SETS_OF_GATEWAYS: [(&str, &[(&str, &str)]); 1] = [(
    "services/backend/src/directory/mod.rs",
    &[
        ("services/backend/src/directory/mod.rs", "self.tasks.unhealthy_reason()"),
        ("services/backend/src/service.rs", "self.inner.directory.check_fresh()"),
        ("services/backend/src/directory/mod.rs", "self.usage_tasks.unhealthy_reason()"),
        ("services/backend/src/service.rs", "self.inner.directory.failing_task()"),
    ],
)];
const PROCESS_IN_NODE: (&str, &str) = ("services/node/src/status.rs", "failing_process_task()");
const PROCESS_IN_GATEWAY: (&str, &str) = ("services/backend/src/service.rs", "failing_process_task()");
const BACKGROUND_IN_NODE: (&str, &str) = ("services/node/src/status.rs", "or_else(failing_background_task)");
const BACKGROUND_IN_GATEWAY: (&str, &str) = ("services/backend/src/service.rs", "or_else(failing_background_task)");
const GROUP_MANAGER_IN_NODE: (&str, &str) = ("services/node/src/status.rs", "group_manager.failing_task()");
const ROUTER: &[(&str, &str)] = &[
    ("services/routing/src/router.rs", "self.inner.tasks.unhealthy_reason()"),
    ("services/routing/src/router.rs", "channel.tasks()?.unhealthy_reason()"),
    ("services/node/src/status.rs", "router().failing_task()"),
    ("services/backend/src/service.rs", "router.failing_task()"),
];

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The texts in quotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn panic_points() -> BTreeSet<String> {
    let text = read(POINTS_FILE);
    let list = |name: &str| {
        let (_, list) = text.split_once(&format!("pub const {name}: [&str; ")).expect("the list is there");
        quoted(list.split_once("];").expect("it ends").0)
    };
    POINT_LISTS.into_iter().flat_map(list).collect()
}

/// The names of tasks that are started, with the places.
fn supervised_tasks() -> (Vec<(String, String)>, Vec<String>) {
    let (mut tasks, mut findings) = (Vec::new(), Vec::new());
    for (file, scan) in scans().into_iter().filter(|(file, _)| !file.path.starts_with(SUPERVISE)) {
        for task in scan.supervised_tasks {
            let place = format!("{}:{}", file.path.display(), task.line);
            match task.what.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
                Some(name) => tasks.push((name.to_owned(), place)),
                None if file.path.ends_with(LEADER_TASKS_FILE) => {}
                None => {
                    findings.push(format!("{place}: name the task in this place, so that its panic point is found"))
                }
            }
        }
    }
    let calls = read(LEADER_TASKS_FILE);
    let calls = calls.lines().filter(|line| line.contains(LEADER_TASKS_CALL)).flat_map(quoted);
    tasks.extend(calls.map(|name| (name, LEADER_TASKS_FILE.to_owned())));
    (tasks, findings)
}

#[test]
fn every_long_lived_task_has_a_panic_point() {
    let points = panic_points();
    let (tasks, mut findings) = supervised_tasks();
    for (task, place) in tasks.iter().filter(|(task, _)| !points.contains(task)) {
        findings.push(format!("{place}: {task} is not in the panic points of {POINTS_FILE}"));
    }
    let names: BTreeSet<&str> = tasks.iter().map(|(task, _)| task.as_str()).chain(NO_TASKS).collect();
    let unknown = points.iter().filter(|point| !names.contains(point.as_str()));
    findings.extend(unknown.map(|point| format!("{POINTS_FILE}: there is no task {point}")));
    assert_none(&findings);
}

#[test]
fn every_long_lived_thread_is_listed() {
    let mut found = BTreeSet::new();
    for (file, _) in scans().into_iter().filter(|(file, _)| file.path.starts_with("services")) {
        let calls = file.text.lines().filter_map(|line| line.split_once(THREAD_CALL));
        found.extend(calls.flat_map(|(_, rest)| quoted(rest)).map(|name| (name, file.path.display().to_string())));
    }
    let listed = BTreeSet::from(THREADS.map(|(name, file)| (name.to_owned(), file.to_owned())));
    let unlisted = found.difference(&listed).map(|(name, file)| format!("{file}: list the thread {name} in this test"));
    let missing = listed.difference(&found).map(|(name, file)| format!("{file}: there is no thread {name}"));
    assert_none(&unlisted.chain(missing).collect::<Vec<_>>());
}

#[test]
fn the_failures_of_every_set_of_tasks_are_shown_by_readyz() {
    let shown: Vec<_> = SHOWN_SETS.into_iter().chain(SHOWN_SETS_OF_GATEWAYS).collect();
    let mut findings = Vec::new();
    for (file, scan) in scans().into_iter().filter(|(file, _)| !file.path.starts_with(SUPERVISE)) {
        let is_listed = shown.iter().any(|(known, _)| file.path.ends_with(known));
        for set in scan.task_sets.iter().filter(|_| !is_listed) {
            let place = format!("{}:{}", file.path.display(), set.line);
            findings
                .push(format!("{place}: say in this test how /readyz shows its failures, or use a set of the process"));
        }
    }
    for (made, shows) in shown {
        for (file, expression) in shows.iter().filter(|(file, expression)| !read(file).contains(expression)) {
            findings.push(format!("{file}: {expression} showed the failures of the tasks of {made}"));
        }
    }
    assert_none(&findings);
}
