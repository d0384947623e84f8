//! Wall clocks that are set back and forward while locks are held: time to live does not know of it.

use std::time::Duration;

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    Load, LoadPlan, Outages, WallClocks, assert_no_violations, lock_ids, offset_to, print_summary, read_all_locks,
    shards_of,
};
use holdfast_testkit::{Cluster, Setup, eventually_within, wait_out};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const HOUR_SECS: i64 = 3_600;
/// Longer than the short times to live of the load.
const OFFSET_DURATION: Duration = Duration::from_millis(3_200);

/// The third of February 2001, some minutes past four.
const PAST_INSTANT: Duration = Duration::from_secs(981_173_106);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "half a minute: make fault-tests"]
async fn a_wall_clock_that_jumps_ends_no_hold_and_keeps_none() {
    let mut cluster = Cluster::prepare(Setup { gateways: 2, ..Setup::default() }).await;
    let clocks = match WallClocks::prepare(&cluster.dir()) {
        Ok(clocks) => clocks,
        Err(reason) => return eprintln!("SKIPPED: wall clocks that jump: a C compiler is needed: {reason}"),
    };
    for process in cluster.nodes.iter_mut().chain(&mut cluster.gateways) {
        clocks.attach(process);
        process.start();
    }
    cluster.wait_ready().await;
    let tenant = cluster.create_tenant("clocks", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let shards = shards_of(&locks);
    let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
    let history = History::default();
    let plan = LoadPlan { clients: 40, locks: locks.clone(), gateways, some_have_short_deadlines: true };
    let load = Load::start(&plan, &history);
    let all = ["nd_1", "nd_2", "nd_3", "gw_1", "gw_2"];
    for (who, offset) in [(&all[..1], -HOUR_SECS), (&all[1..4], 48 * HOUR_SECS), (&all[..], offset_to(PAST_INSTANT))] {
        for name in who {
            clocks.set_offset(name, offset);
        }
        let mut outages = Outages::default();
        outages.add(history.now(), Vec::new());
        wait_out(OFFSET_DURATION).await;
        eventually_within(Duration::from_secs(10), &format!("{offset} s of {who:?}: all is answered"), async || {
            outages.check_recovered(&history, &shards).map_err(str::to_owned)
        })
        .await;
        println!("{offset} s of {who:?}: {} calls so far", history.len());
    }
    // A client that acquires a lock now sees the jump, in a field that is for display only.
    let api = cluster.rest_client(0, &tenant.key);
    api.acquire("orders", "new", "p").await.expect("the service is up");
    let path = "/v1/namespaces/orders/locks/new";
    let shown: serde_json::Value = api.fetch(&format!("GET {path}"), None).await.expect("it can be read");
    let locked_at = shown["lock"]["write_lock_holder"]["locked_at"].as_str().expect("a hold has it");
    assert!(locked_at.starts_with("2001-02-03T"), "the wall clocks have not been set: {shown}");
    load.stop().await;
    read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    assert_no_violations(&history);
    cluster.wait_equal_states().await;
}
