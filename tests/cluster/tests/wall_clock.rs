//! Wall clocks that are set back and forward while locks are held: time to live does not know of it.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    Cluster, Load, LoadPlan, Outages, Setup, assert_right, eventually_within, look_at_all, print_summary, shards_of,
    wait_out,
};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
/// Longer than the short times to live of the load.
const LASTS: Duration = Duration::from_millis(3_200);

/// The library that lies to a process about the wall clock.
fn libfaketime() -> Option<PathBuf> {
    let arch = std::env::consts::ARCH;
    let places = [
        format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1"),
        "/usr/lib64/faketime/libfaketimeMT.so.1".into(),
    ];
    places.map(PathBuf::from).into_iter().find(|path| path.is_file())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "libfaketime and the allocator wait for each other when a node starts: make faults"]
async fn a_wall_clock_that_jumps_ends_no_hold_and_keeps_none() {
    let Some(library) = libfaketime() else {
        eprintln!("SKIPPED: wall clocks that jump: libfaketime is not here (package faketime)");
        return;
    };
    let mut cluster = Cluster::prepare(Setup { gateways: 2, ..Setup::default() }).await;
    let dir = cluster.dir();
    let clock_of = |name: &str| dir.join(format!("{name}.clock"));
    for process in cluster.nodes.iter_mut().chain(&mut cluster.gateways) {
        let clock = clock_of(process.name());
        std::fs::write(&clock, "+0").expect("a clock can be written");
        process.set_environment("LD_PRELOAD", &library.display().to_string());
        process.set_environment("FAKETIME_TIMESTAMP_FILE", &clock.display().to_string());
        process.set_environment("FAKETIME_NO_CACHE", "1");
        process.set_environment("DONT_FAKE_MONOTONIC", "1");
        process.set_environment("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        process.start();
    }
    cluster.wait_ready().await;
    let tenant = cluster.tenant("clocks", &NAMESPACES).await;
    let locks = cluster.locks(&tenant, &NAMESPACES, 5);
    let shards = shards_of(&locks);
    let gateways = vec![cluster.api(0, &tenant.key), cluster.api(1, &tenant.key)];
    let history = History::default();
    let plan = LoadPlan { clients: 40, locks: locks.clone(), gateways, some_are_impatient: true };
    let load = Load::start(&plan, &history);
    let all = ["nd_1", "nd_2", "nd_3", "gw_1", "gw_2"];
    for (who, offset) in [(&all[..1], "-1h"), (&all[1..4], "+2d"), (&all[..], "@2001-02-03 04:05:06")] {
        for name in who {
            std::fs::write(clock_of(name), offset).expect("a clock can be written");
        }
        let mut outages = Outages::default();
        outages.add(history.now(), Vec::new());
        wait_out(LASTS).await;
        eventually_within(Duration::from_secs(10), &format!("{offset} of {who:?}: all is answered"), async || {
            outages.is_back(&history, &shards).map_err(str::to_owned)
        })
        .await;
        println!("{offset} of {who:?}: {} calls so far", history.len());
    }
    // Whoever takes a lock now sees the jump, in what is for display only.
    let api = cluster.api(0, &tenant.key);
    api.acquire("orders", "new", "p").await.expect("the service is up");
    let path = "/v1/namespaces/orders/locks/new";
    let shown: serde_json::Value = api.json(reqwest::Method::GET, path, None).await.expect("it can be read");
    let locked_at = shown["lock"]["write_lock_holder"]["locked_at"].as_str().expect("a hold has it");
    assert!(locked_at.starts_with("2001-02-03T"), "the wall clocks have not been set: {shown}");
    load.stop().await;
    look_at_all(&cluster.api(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    assert_right(&history);
    cluster.wait_equal_states().await;
}
