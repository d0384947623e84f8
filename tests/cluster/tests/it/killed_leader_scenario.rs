//! `dev scenario-rebuild` beside `dev cluster up`: it has the leader's process killed.

use std::time::Duration;

use holdfast_testkit::{Cluster, Program, Setup, eventually_within, executable, find_installed, free_address, run_dev};

/// Time for a first start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the first of three free ports in a row.
fn three_free_ports() -> u16 {
    loop {
        let [first, second, third] = [(); 3].map(|()| free_address().port());
        if (second, third) == (first + 1, first + 2) {
            return first;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scenario_of_a_rebuild_kills_the_leader_and_sees_it_come_back() {
    if find_installed("setpriv").is_none() {
        eprintln!("SKIPPED: setpriv, of the package util-linux, is not installed");
        return;
    }
    // No process of it is started. It keeps clusters of other tests waiting, and has a folder.
    let idle = Cluster::prepare(Setup::default()).await;
    let data = idle.dir().join("up");
    let (base_port, listen) = (three_free_ports(), free_address());
    let text = |file: &str| data.join(file).display().to_string();
    let flags = [
        ("--data-dir", data.display().to_string()),
        ("--base-port", base_port.to_string()),
        ("--listen", listen.to_string()),
    ];
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    let arguments = ["cluster", "up"].map(str::to_owned).into_iter().chain(flags).collect();
    let mut up = Program::of_machine("up", &executable("dev"), arguments, &idle.dir());
    up.start();
    eventually_within(START_TIMEOUT, "the first start is complete", async || {
        up.assert_running();
        if up.log().contains("curl ") { Ok(()) } else { Err(up.log()) }
    })
    .await;

    let token = std::fs::read_to_string(data.join("operator.token")).expect("the first start has written it");
    let (url, config, secret) = (format!("http://{listen}"), text("cluster_config.json"), text("cluster.secret"));
    let run = move || {
        let service = ["scenario-rebuild", "--url", url.as_str(), "--operator-token", token.trim()];
        let files = ["--cluster-config", config.as_str(), "--cluster-secret-file", secret.as_str()];
        run_dev(&[&service[..], &files[..]].concat())
    };
    let told = tokio::task::spawn_blocking(run).await.expect("it can be waited for");
    let told = told.unwrap_or_else(|error| panic!("{error}\n{}", up.log()));
    assert!(told.ends_with("# All responses were as expected"), "{told}");
    assert!(told.contains("killed with SIGKILL") && told.contains(" is back, "), "{told}");
    assert!(!told.contains("NO PROCESS IS KILLED"), "{told}");
    let log = up.log();
    assert!(log.contains(" was killed (signal: 9") && log.contains(" is started again"), "{log}");
    assert!(!log.contains("HAS ENDED"), "nothing else has ended: {log}");
    assert!(up.terminate().await.success(), "{}", up.log());
}
