//! Leaderships return to the nodes that are preferred for them.

use std::collections::BTreeMap;

use holdfast_testkit::{Cluster, Setup, eventually};
use serde_json::Value;

/// The node that leads each group.
type Leaders = BTreeMap<String, String>;

async fn leaders(cluster: &Cluster) -> Result<Leaders, String> {
    let shown = cluster.operator_client(0).fetch("GET /v1/cluster", None).await;
    let shown: Value = shown.map_err(|error| error.to_string())?;
    let mut leaders = Leaders::new();
    for shard in shown["shards"].as_array().into_iter().flatten() {
        let text = |field: &str| shard[field].as_str().map(str::to_owned);
        let group = text("group").ok_or("a shard has no group")?;
        leaders.insert(group, text("leader").ok_or_else(|| format!("{shard} has no leader"))?);
    }
    Ok(leaders)
}

async fn wait_for_leaders(cluster: &Cluster, what: &str, expected: [&str; 3]) {
    let groups = ["g1", "g2", "g3"].map(str::to_owned).into_iter();
    let expected: Leaders = groups.zip(expected.map(str::to_owned)).collect();
    eventually(what, async || match leaders(cluster).await? {
        leaders if leaders == expected => Ok(()),
        leaders => Err(format!("{leaders:?}")),
    })
    .await;
}

async fn restart(cluster: &mut Cluster, node: usize) {
    assert!(cluster.nodes[node].terminate().await.success());
    cluster.nodes[node].start();
    cluster.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leadership_returns_to_a_restarted_node_and_what_was_moved_stays() {
    let node_flags = vec![("--leader-return-after-s", "1".to_owned())];
    let mut cluster = Cluster::start(Setup { node_flags, ..Setup::default() }).await;
    wait_for_leaders(&cluster, "the preferred nodes lead", ["nd_1", "nd_2", "nd_3"]).await;

    cluster.nodes[0].kill().await;
    eventually("another node leads", async || match leaders(&cluster).await?.get("g1").map(String::as_str) {
        Some("nd_1") | None => Err("it does not".to_owned()),
        Some(_) => Ok(()),
    })
    .await;
    cluster.nodes[0].start();
    wait_for_leaders(&cluster, "it leads again after a kill", ["nd_1", "nd_2", "nd_3"]).await;

    cluster.run_admin_command(&["leader", "transfer", "--group", "g1", "--to", "nd_2"]).await.unwrap();
    wait_for_leaders(&cluster, "g1 was moved", ["nd_2", "nd_2", "nd_3"]).await;
    restart(&mut cluster, 2).await;
    wait_for_leaders(&cluster, "nd_3 leads again after a restart", ["nd_2", "nd_2", "nd_3"]).await;

    restart(&mut cluster, 0).await;
    wait_for_leaders(&cluster, "what was moved from nd_1 returns after its restart", ["nd_1", "nd_2", "nd_3"]).await;

    // Each names a successor before it stops.
    for node in 0..3 {
        restart(&mut cluster, node).await;
    }
    wait_for_leaders(&cluster, "all lead again after a restart of each", ["nd_1", "nd_2", "nd_3"]).await;
}
